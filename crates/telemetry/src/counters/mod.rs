//! Counters, histograms and a clock: one thread writes a number at the cost of an addition, and any thread reads it.
//!
//! - [`SingleWriterU64`], a number with one writer: no lock prefix and no lock;
//! - [`TickClock`], time for durations: a reading costs a fraction of clock_gettime(2);
//! - [`Histogram`], durations on a logarithmic scale, and [`SharedHistogram`], which several threads write;
//! - [`Bins`], durations between configured boundaries.
//!
//! Nothing here knows what is counted.

mod bins;
mod clock;
mod histogram;
mod single_writer_u64;

pub use bins::{BinBoundaries, Bins, BoundariesError, MAX_BOUNDARIES};
pub use clock::{Scale, TickClock};
pub use histogram::{BUCKETS, BucketCount, Histogram, HistogramOf, SharedHistogram};
pub use single_writer_u64::SingleWriterU64;
