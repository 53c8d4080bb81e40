//! Histograms of latencies.

use hdrhistogram::Histogram;

/// Longer ones count as this long: 68 s, longer than a guest waits.
const MAX_NS: u64 = (1 << 36) - 1;
/// Percentiles are at most one part in a thousand too high.
const DIGITS: u8 = 3;

/// An empty histogram in nanoseconds, for [`Histogram::saturating_record`]: recording does not allocate.
///
/// # Panics
/// Never: its bounds are valid.
#[must_use]
pub fn latencies() -> Histogram<u64> {
    Histogram::new_with_bounds(1, MAX_NS, DIGITS).expect("valid bounds")
}
