//! Figures that one thread writes at the cost of an addition, and any thread reads at any time.
//!
//! - [`Counter`], a number with one writer: no lock prefix, no lock, nobody is asked;
//! - [`Clock`], time for durations: a reading costs a fraction of clock_gettime(2);
//! - [`Histogram`], durations on a logarithmic scale;
//! - [`Bins`], durations between boundaries that somebody chose.
//!
//! What is counted is not known here.

mod bins;
mod clock;
mod counter;
mod histogram;

pub use bins::{Bins, Boundaries, BoundariesError, MAX_BOUNDARIES};
pub use clock::{Clock, Scale};
pub use counter::Counter;
pub use histogram::{BUCKETS, Histogram};
