//! Few repetitions, honestly summed up: the median, and how far the others were from it.

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
        for place in 0..contenders {
            let contender = match repetition % 2 {
                0 => place,
                _ => contenders - 1 - place,
            };
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
}

impl Summary {
    /// Sums up; `None` without a single value.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Summary> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (lower, upper) = (sorted.len().saturating_sub(1) / 2, sorted.len() / 2);
        Some(Summary {
            median: f64::midpoint(*sorted.get(lower)?, sorted[upper]),
            min: *sorted.first()?,
            max: *sorted.last()?,
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

    /// Half of the range, in percent of the median: 0 for a median of 0.
    #[must_use]
    pub fn spread_percent(&self) -> f64 {
        match self.median {
            0.0 => 0.0,
            median => (self.max - self.min) / 2.0 / median * 100.0,
        }
    }

    /// For scripts.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "median": self.median,
            "min": self.min,
            "max": self.max,
            "spread_percent": self.spread_percent(),
        })
    }
}

/// Three significant digits at least, no more than are worth reading, with commas between thousands: 4.27, 42.7, 427, 4,270. Not
/// negative.
#[must_use]
pub fn number(value: f64) -> String {
    if value < 99.95 {
        let decimals = if value >= 9.995 { 1 } else { 2 };
        return format!("{value:.decimals$}");
    }
    let digits = format!("{value:.0}");
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_spread_and_ratios_of_repetitions() {
        let summary = Summary::of(&[10.0, 1000.0, 11.0, 9.0, 10.5]).unwrap();
        assert_eq!(
            [summary.median, summary.min, summary.max],
            [10.5, 9.0, 1000.0]
        );
        assert_eq!(Summary::of(&[4.0, 1.0, 2.0, 3.0]).unwrap().median, 2.5);
        assert_eq!(Summary::of(&[]), None);
        let two = Summary::of(&[90.0, 110.0]).unwrap();
        assert_eq!(two.spread_percent(), 10.0);
        let ratio = Summary::of_ratios(&[90.0, 110.0], &[100.0, 100.0], |&run| Some(run));
        assert_eq!(ratio.unwrap().ratio_text(), "1.00x (0.90-1.10)");
    }

    #[test]
    fn numbers_have_at_least_three_significant_digits() {
        let values = [0.0, 4.267, 9.999, 42.67, 99.96, 427.4, 999.6, 1_234_567.0];
        let texts = [
            "0.00",
            "4.27",
            "10.0",
            "42.7",
            "100",
            "427",
            "1,000",
            "1,234,567",
        ];
        assert_eq!(values.map(number), texts);
    }
}
