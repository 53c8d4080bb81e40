//! Counters, histograms and a clock: one thread writes a number at the cost of an addition, and any thread reads it.
//!
//! - [`Counter`], a number with one writer: no lock prefix and no lock;
//! - [`Clock`], time for durations: a reading costs a fraction of clock_gettime(2);
//! - [`Histogram`], durations on a logarithmic scale;
//! - [`Bins`], durations between configured boundaries.
//!
//! Nothing here knows what is counted.

mod bins;
mod clock;
mod counter;
mod histogram;

pub use bins::{BinBoundaries, Bins, BoundariesError, MAX_BOUNDARIES};
pub use clock::{Clock, Scale};
pub use counter::Counter;
pub use histogram::{BUCKETS, Histogram};
