//! Few repetitions, honestly summed up: the median, and how far the others were from it; and for
//! tables that compare means, the mean with its standard error.

use std::fmt;

/// Repetitions of one measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// The middle one; the mean of the two middle ones when their number is even.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
    /// The arithmetic mean.
    pub mean: f64,
    /// The standard error of the mean (the sample's standard deviation over the root of the number
    /// of repetitions); `None` of a single repetition, which says nothing about the next.
    pub error: Option<f64>,
}

impl Summary {
    /// Sums up; `None` without a single value.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Summary> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len().is_multiple_of(2) {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        } else {
            sorted[middle]
        };
        let count = sorted.len() as f64;
        let mean = sorted.iter().sum::<f64>() / count;
        let squares: f64 = sorted.iter().map(|value| (value - mean).powi(2)).sum();
        let error = (sorted.len() > 1).then(|| (squares / (count - 1.0) / count).sqrt());
        Some(Summary {
            median,
            min,
            max,
            mean,
            error,
        })
    }

    /// The standard error in percent of the mean; `None` of a single repetition or a mean of 0.
    #[must_use]
    pub fn error_percent(&self) -> Option<f64> {
        let error = self.error.filter(|_| self.mean != 0.0)?;
        Some(error / self.mean.abs() * 100.0)
    }

    /// `mean ± error %`, in units of `unit`.
    #[must_use]
    pub fn mean_text(&self, unit: f64) -> String {
        let mean = number(self.mean / unit);
        match self.error_percent() {
            Some(percent) => format!("{mean} ±{percent:.1} %"),
            None => mean,
        }
    }

    /// Half of the range, in percent of the median: 0 for a median of 0.
    #[must_use]
    pub fn spread_percent(&self) -> f64 {
        if self.median == 0.0 {
            return 0.0;
        }
        (self.max - self.min) / 2.0 / self.median * 100.0
    }

    /// For scripts: `median`, `min`, `max`, `spread_percent`, `mean`, `error_percent` (null of a
    /// single repetition).
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "median": self.median,
            "min": self.min,
            "max": self.max,
            "spread_percent": self.spread_percent(),
            "mean": self.mean,
            "error_percent": self.error_percent(),
        })
    }
}

/// `median (min-max) ±spread %`.
impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} ({}-{}) ±{:.0} %",
            number(self.median),
            number(self.min),
            number(self.max),
            self.spread_percent()
        )
    }
}

/// Three significant digits at least, no more than are worth reading: 4.27, 42.7, 427, 4,270.
#[must_use]
pub fn number(value: f64) -> String {
    let magnitude = value.abs();
    if magnitude >= 99.95 {
        return grouped(value);
    }
    let decimals = if magnitude >= 9.995 { 1 } else { 2 };
    format!("{value:.decimals$}")
}

/// A whole number with commas between thousands.
fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut out = String::from(if value < 0.0 { "-" } else { "" });
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A count with commas between thousands.
#[must_use]
pub fn count(value: u64) -> String {
    // Counts that a person reads are far below 2^53, where this would begin to round.
    grouped(value as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_not_moved_by_an_outlier() {
        let summary = Summary::of(&[10.0, 1000.0, 11.0, 9.0, 10.5]).unwrap();
        assert_eq!(
            (summary.median, summary.min, summary.max),
            (10.5, 9.0, 1000.0)
        );
        let even = Summary::of(&[4.0, 1.0, 2.0, 3.0]).unwrap();
        assert_eq!(even.median, 2.5);
        assert_eq!(Summary::of(&[]), None);
    }

    #[test]
    fn spread_is_half_the_range() {
        let summary = Summary::of(&[90.0, 100.0, 110.0]).unwrap();
        assert_eq!(summary.spread_percent(), 10.0);
        assert_eq!(summary.to_string(), "100 (90.0-110) ±10 %");
        assert_eq!(Summary::of(&[0.0]).unwrap().spread_percent(), 0.0);
    }

    #[test]
    fn the_standard_error_needs_two_and_shrinks_with_more() {
        let two = Summary::of(&[90.0, 110.0]).unwrap();
        // The deviation is 10 * sqrt(2), its error that over sqrt(2).
        assert_eq!((two.mean, two.error_percent()), (100.0, Some(10.0)));
        assert_eq!(two.mean_text(10.0), "10.0 ±10.0 %");
        let eight = Summary::of(&[90.0, 110.0].repeat(4)).unwrap();
        assert!(eight.error.unwrap() < 4.0, "{eight:?}");
        let one = Summary::of(&[100.0]).unwrap();
        assert_eq!((one.mean, one.error_percent()), (100.0, None));
        assert_eq!(one.mean_text(1.0), "100");
        assert_eq!(Summary::of(&[0.0, 0.0]).unwrap().error_percent(), None);
    }

    #[test]
    fn numbers_have_at_least_three_significant_digits() {
        for (value, text) in [
            (4.267, "4.27"),
            (9.999, "10.0"),
            (42.67, "42.7"),
            (99.96, "100"),
            (427.4, "427"),
            (999.6, "1,000"),
            (1_234_567.0, "1,234,567"),
            (-4200.0, "-4,200"),
            (0.0, "0.00"),
        ] {
            assert_eq!(number(value), text);
        }
        assert_eq!(count(19_700), "19,700");
    }
}
