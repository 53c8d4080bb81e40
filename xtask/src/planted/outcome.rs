//! Runs of commands that look for a mistake, and what follows from them.

use std::fmt;
use std::time::Duration;

/// A command that has ended.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub passed: bool,
    pub timed_out: bool,
    pub output: String,
    pub took: Duration,
}

/// The outcome of a planted mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// By this test, or with this last line of output.
    Found {
        by: String,
        took: Duration,
    },
    Survived,
    /// For this reason, the test cannot run on this machine, or only a part of it.
    NotRun(String),
    /// The command fails without the mistake, too.
    FailsWithout(String),
}

impl Run {
    /// The first test that has failed, the first panic, or the last line of the output.
    pub fn finding(&self) -> String {
        let lines = || self.output.lines().map(str::trim);
        let test =
            lines().find_map(|line: &str| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"));
        let panic = || {
            lines()
                .skip_while(|line| !line.contains(" panicked at "))
                .nth(1)
        };
        let last = || lines().rfind(|line| !line.is_empty());
        let found = test.or_else(panic).or_else(last).unwrap_or("no output");
        match self.timed_out {
            true => format!("{found} (no end)"),
            false => found.to_owned(),
        }
    }

    /// The reason of a test that reports that it cannot run here.
    fn not_run(&self) -> Option<&str> {
        let mut lines = self.output.lines();
        lines.find_map(|line| Some(line.strip_prefix("test ")?.split_once(" ... ignored, ")?.1))
    }
}

impl Outcome {
    /// From a run without the mistake, which has passed, and one with it.
    pub fn of(without: &Run, with: &Run) -> Self {
        match without.not_run() {
            // At the time limit a slow command looks like one that hangs, unless it is much faster without the mistake.
            _ if with.timed_out && without.took > with.took / 3 => Outcome::FailsWithout(format!(
                "it takes {:.0} s, too long to tell an end from none",
                without.took.as_secs_f64()
            )),
            _ if !with.passed => Outcome::Found {
                by: with.finding(),
                took: with.took,
            },
            Some(reason) => Outcome::NotRun(reason.to_owned()),
            None => Outcome::Survived,
        }
    }

    pub fn is_found(&self) -> bool {
        matches!(self, Outcome::Found { .. })
    }

    pub fn is_not_run(&self) -> bool {
        matches!(self, Outcome::NotRun(_))
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Found { by, took } => write!(f, "{:>4.1} s  {by}", took.as_secs_f64()),
            Outcome::Survived => f.write_str("SURVIVED"),
            Outcome::NotRun(why) => write!(f, "... ignored, {why}"),
            Outcome::FailsWithout(how) => write!(f, "ITS TEST FAILS WITHOUT IT: {how}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_is_found_by_a_failing_command_only() {
        let run = |passed, timed_out, output: &str| Run {
            passed,
            timed_out,
            output: output.to_owned(),
            took: Duration::ZERO,
        };
        let took = |seconds, run| Run {
            took: Duration::from_secs(seconds),
            ..run
        };
        let passes = run(true, false, "test a ... ok\n");
        let cannot = run(true, false, "test a ... ignored, no disk\ntest a ... ok\n");
        let model = "thread 'main' panicked at a.rs:1:2:\nnever woken\nnote: a\n";
        for (timed_out, output, found) in [
            (false, "test a ... ok\ntest b ... FAILED\nerror\n", "b"),
            (false, "seed 7: lost a write\n\n", "seed 7: lost a write"),
            (false, model, "never woken"),
            (true, "test a ...\n", "test a ... (no end)"),
        ] {
            let found = Outcome::Found {
                by: found.to_owned(),
                took: Duration::ZERO,
            };
            let fails = run(false, timed_out, output);
            assert_eq!(Outcome::of(&passes, &fails), found);
            assert_eq!(Outcome::of(&cannot, &fails), found);
        }
        let slow = Outcome::of(&took(200, passes.clone()), &took(300, run(false, true, "")));
        assert!(matches!(slow, Outcome::FailsWithout(_)), "{slow:?}");
        let mentions = run(true, false, "test b ... FAILED\n");
        assert_eq!(Outcome::of(&passes, &mentions), Outcome::Survived);
        let not_run = Outcome::NotRun("no disk".to_owned());
        assert_eq!(Outcome::of(&cannot, &cannot), not_run);
    }
}
