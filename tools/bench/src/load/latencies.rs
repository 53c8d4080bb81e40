//! Histograms of latencies.

use hdrhistogram::Histogram;

/// Longer ones count as this long: 68 s, longer than a guest waits.
const MAX_NS: u64 = (1 << 36) - 1;
/// Percentiles are at most one part in a thousand too high.
const DIGITS: u8 = 3;

/// An empty histogram in nanoseconds, for [`Histogram::saturating_record`]: recording does not allocate.
pub(crate) fn latencies() -> Histogram<u64> {
    Histogram::new_with_bounds(1, MAX_NS, DIGITS).expect("valid bounds")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn percentiles_are_those_of_the_sorted_values() {
        let mut random = Random::new(7);
        // Three distributions: short, wide, and with a tail.
        for bound in [100, 1_000_000, 40_000_000_000] {
            let mut histogram = latencies();
            let mut values: Vec<u64> = (0..20_000u64)
                .map(|index| {
                    let value = random.below(bound);
                    if index % 100 == 0 {
                        value * 10 % MAX_NS
                    } else {
                        value
                    }
                })
                .collect();
            for &value in &values {
                histogram.saturating_record(value);
            }
            values.sort_unstable();
            for percent in [0.0, 1.0, 50.0, 90.0, 99.0, 99.9, 99.99, 100.0] {
                let rank = (values.len() as f64 * percent / 100.0).ceil().max(1.0);
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
                let rank = rank as usize;
                // A percentage is not exact: it may be the next value.
                let next = values[rank.min(values.len() - 1)];
                let found = histogram.value_at_percentile(percent) as f64;
                assert!(
                    values[rank - 1] as f64 * 0.999 <= found && found <= next as f64 * 1.001,
                    "{percent} %: {found} for {}",
                    values[rank - 1]
                );
            }
        }
    }

    #[test]
    fn latencies_above_the_maximum_count_as_the_maximum() {
        let mut histogram = latencies();
        histogram.saturating_record(u64::MAX);
        assert_eq!(histogram.value_at_percentile(100.0), MAX_NS);
    }
}
