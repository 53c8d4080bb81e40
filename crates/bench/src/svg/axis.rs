//! The vertical axis: from zero to a round number, in round steps.

/// About so many lines.
const WANTED_STEPS: f64 = 5.0;

/// Where the lines of an axis are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Axis {
    step: f64,
    steps: u32,
}

impl Axis {
    /// That shows everything up to `largest`.
    pub fn up_to(largest: f64) -> Self {
        let largest = if largest.is_finite() && largest > 0.0 {
            largest
        } else {
            1.0
        };
        let rough = largest / WANTED_STEPS;
        let magnitude = 10f64.powf(rough.log10().floor());
        let round = [1.0, 2.0, 2.5, 5.0, 10.0];
        let step = round.iter().map(|round| round * magnitude);
        let step = step.fold(f64::INFINITY, |best, step| {
            if step >= rough * 0.999 && step < best {
                step
            } else {
                best
            }
        });
        // At most ten, by the choice of the step.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let steps = (largest / step * 0.999_999).ceil() as u32;
        Axis {
            step,
            steps: steps.max(1),
        }
    }

    /// The value at its end.
    pub fn end(self) -> f64 {
        self.step * f64::from(self.steps)
    }

    /// Values of its lines, zero first.
    pub fn lines(self) -> impl Iterator<Item = f64> {
        (0..=self.steps).map(move |line| self.step * f64::from(line))
    }

    /// A line's value, as exact as the steps are.
    pub fn label(self, value: f64) -> String {
        let (value, step, unit) = if self.end() >= 2e6 {
            (value / 1e6, self.step / 1e6, "M")
        } else if self.end() >= 2e4 {
            (value / 1e3, self.step / 1e3, "k")
        } else {
            (value, self.step, "")
        };
        let exact = |decimals: i32| {
            let scaled = step * 10f64.powi(decimals);
            (scaled - scaled.round()).abs() < 1e-6
        };
        let decimals = if exact(0) {
            0
        } else if exact(1) {
            1
        } else if exact(2) {
            2
        } else {
            3
        };
        format!("{value:.decimals$}{}", if value == 0.0 { "" } else { unit })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round_and_the_largest_value_fits() {
        for (largest, end, lines) in [
            (1.0, 1.0, 6),
            (99.0, 100.0, 6),
            (101.0, 125.0, 6),
            (640_000.0, 800_000.0, 5),
            (278.0, 300.0, 4),
            (0.03, 0.03, 4),
        ] {
            let axis = Axis::up_to(largest);
            assert!((axis.end() - end).abs() < 1e-9, "{largest}: {axis:?}");
            assert_eq!(axis.lines().count(), lines, "{largest}: {axis:?}");
        }
        for nothing in [0.0, -1.0, f64::NAN] {
            assert_eq!(Axis::up_to(nothing).end(), 1.0);
        }
    }

    #[test]
    fn labels_are_short_and_exact() {
        let labels = |largest: f64| {
            let axis = Axis::up_to(largest);
            axis.lines()
                .map(|line| axis.label(line))
                .collect::<Vec<_>>()
        };
        assert_eq!(labels(99.0), ["0", "20", "40", "60", "80", "100"]);
        assert_eq!(labels(640_000.0), ["0", "200k", "400k", "600k", "800k"]);
        assert_eq!(labels(12.0), ["0.0", "2.5", "5.0", "7.5", "10.0", "12.5"]);
        assert_eq!(labels(2_400_000.0).last().unwrap(), "2.5M");
    }
}
