//! Few repetitions, honestly summed up: the median, and how far the others were from it; and for
//! tables that compare means, the mean with its standard error.

use crate::error::Result;

/// Measures each of several contenders once per repetition, forwards in one and backwards in the next: whatever else the machine
/// does affects all of them, and drift favours none. The results are by contender, then by repetition.
///
/// # Errors
/// Those of `measure`, which gets a contender's number.
pub fn in_turn<T>(
    contenders: usize,
    repetitions: u32,
    mut measure: impl FnMut(usize) -> Result<T>,
) -> Result<Vec<Vec<T>>> {
    let mut runs: Vec<Vec<T>> = (0..contenders).map(|_| Vec::new()).collect();
    for repetition in 0..repetitions {
        let mut order: Vec<usize> = (0..contenders).collect();
        if repetition % 2 == 1 {
            order.reverse();
        }
        for contender in order {
            runs[contender].push(measure(contender)?);
        }
    }
    Ok(runs)
}

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

    /// Sums up a figure of all runs; `None` where one of them does not have it.
    pub fn of_runs<T>(runs: &[T], figure: impl Fn(&T) -> Option<f64>) -> Option<Summary> {
        Summary::of(&runs.iter().map(figure).collect::<Option<Vec<_>>>()?)
    }

    /// How many times a figure of some runs is that of others, from the pair of each repetition.
    pub fn of_ratios<T>(
        of: &[T],
        over: &[T],
        figure: impl Fn(&T) -> Option<f64>,
    ) -> Option<Summary> {
        let pairs = of.iter().zip(over).map(|(of, over)| {
            let over = figure(over).filter(|&over| over > 0.0)?;
            Some(figure(of)? / over)
        });
        Summary::of(&pairs.collect::<Option<Vec<_>>>()?)
    }

    /// The median and the extremes of ratios: `0.98x (0.97-1.01)`.
    #[must_use]
    pub fn ratio_text(&self) -> String {
        format!("{:.2}x ({:.2}-{:.2})", self.median, self.min, self.max)
    }

    /// The standard error in percent of the mean; `None` of a single repetition or a mean of 0.
    #[must_use]
    pub fn error_percent(&self) -> Option<f64> {
        let error = self.error.filter(|_| self.mean != 0.0)?;
        Some(error / self.mean.abs() * 100.0)
    }

    /// `mean ±error`, which is in percent.
    #[must_use]
    pub fn mean_text(&self) -> String {
        let mean = number(self.mean);
        match self.error_percent() {
            Some(percent) => format!("{mean} ±{percent:.1}"),
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
    fn median_and_error_of_repetitions() {
        let summary = Summary::of(&[10.0, 1000.0, 11.0, 9.0, 10.5]).unwrap();
        assert_eq!(
            (summary.median, summary.min, summary.max),
            (10.5, 9.0, 1000.0)
        );
        let even = Summary::of(&[4.0, 1.0, 2.0, 3.0]).unwrap();
        assert_eq!(even.median, 2.5);
        assert_eq!(Summary::of(&[]), None);
        // The deviation is 10 * sqrt(2), its error that over sqrt(2).
        let two = Summary::of(&[90.0, 110.0]).unwrap();
        assert_eq!((two.mean, two.error_percent()), (100.0, Some(10.0)));
        assert_eq!(two.spread_percent(), 10.0);
        let ratio = Summary::of_ratios(&[90.0, 110.0], &[100.0, 100.0], |&run| Some(run));
        assert_eq!(ratio.unwrap().ratio_text(), "1.00x (0.90-1.10)");
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
