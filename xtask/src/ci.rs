//! Everything that CI checks, cheapest first, and a table of how long each step took.
//!
//! A failing step does not hide what the others would say; a step whose input could not be built
//! counts as failed.

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use crate::{cargo, duplicates, fuzz, root, sim};

/// How a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    Failed,
    /// What it tests was not built.
    NotRun,
}

/// The steps so far.
#[derive(Debug, Default)]
struct Steps {
    done: Vec<(&'static str, Outcome, Duration)>,
}

impl Steps {
    /// Runs `check` and remembers how it went.
    fn step(&mut self, name: &'static str, check: impl FnOnce() -> bool) -> bool {
        eprintln!("\n== {name}");
        let started = Instant::now();
        let passed = check();
        self.done.push((
            name,
            if passed {
                Outcome::Passed
            } else {
                Outcome::Failed
            },
            started.elapsed(),
        ));
        passed
    }

    /// Runs the command as a step; it passes if the status is 0.
    fn command(&mut self, name: &'static str, mut command: Command) -> bool {
        self.step(name, || match command.status() {
            Ok(status) => status.success(),
            Err(error) => {
                eprintln!("cannot start {command:?}: {error}");
                false
            }
        })
    }

    fn not_run(&mut self, name: &'static str) {
        self.done.push((name, Outcome::NotRun, Duration::ZERO));
    }

    /// The table, and whether everything passed.
    fn summary(&self) -> (String, bool) {
        let mut text = String::from("\n  step                              result        time\n");
        for (name, outcome, took) in &self.done {
            let outcome = match outcome {
                Outcome::Passed => "ok",
                Outcome::Failed => "FAILED",
                Outcome::NotRun => "NOT RUN",
            };
            text.push_str(&format!(
                "  {name:<32}  {outcome:<8}  {:>7.1} s\n",
                took.as_secs_f64()
            ));
        }
        let total: Duration = self.done.iter().map(|(_, _, took)| *took).sum();
        text.push_str(&format!(
            "  {:<32}  {:<8}  {:>7.1} s\n",
            "",
            "",
            total.as_secs_f64()
        ));
        (
            text,
            self.done
                .iter()
                .all(|(_, outcome, _)| *outcome == Outcome::Passed),
        )
    }
}

/// `cargo xtask ci`.
pub(crate) fn ci() -> ExitCode {
    let mut steps = Steps::default();
    steps.command("format", cargo(&["fmt", "--all", "--check"]));
    steps.step("one version of each key crate", single_versions);
    steps.command(
        "lints",
        cargo(&[
            "clippy",
            "--workspace",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ]),
    );
    let traced = ["--package", "data-plane", "--features", "latency-trace"];
    let mut lints = cargo(&["clippy", "--all-targets"]);
    lints.args(traced).args(["--", "-D", "warnings"]);
    steps.command("latency trace, lints", lints);
    let mut tests = cargo(&["test", "--lib"]);
    tests.args(traced);
    steps.command("latency trace, tests", tests);
    let built = steps.command(
        "build blockplane",
        cargo(&["build", "--package", "blockplane"]),
    );
    let binary = guest::target_dir().join("debug/blockplane");

    steps.command(
        "tests",
        with_binary(
            cargo(&[
                "test",
                "--workspace",
                "--exclude",
                "guest",
                "--no-fail-fast",
            ]),
            &binary,
        ),
    );
    let interop = root().join("interop");
    if built {
        let mut suite = with_binary(cargo(&["test"]), &binary);
        suite.current_dir(&interop);
        steps.command("interoperability suite", suite);
        let mut lints = cargo(&["clippy", "--all-targets", "--", "-D", "warnings"]);
        lints.current_dir(&interop);
        steps.command("interoperability suite, lints", lints);
        steps.command(
            "guests",
            with_binary(cargo(&["test", "--package", "guest"]), &binary),
        );
    } else {
        for name in [
            "interoperability suite",
            "interoperability suite, lints",
            "guests",
        ] {
            steps.not_run(name);
        }
    }

    let mut lints = cargo(&[
        "clippy",
        "--release",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ]);
    lints.current_dir(root().join("fuzz"));
    steps.command("fuzzing, lints", lints);
    steps.step("fuzzing", fuzz::check);

    let mut lints = cargo(&[
        "clippy",
        "--release",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ]);
    lints.current_dir(sim::folder());
    steps.command("simulation, lints", lints);
    let mut tests = cargo(&["test", "--release"]);
    tests.current_dir(sim::folder());
    steps.command("simulation, tests", tests);
    steps.step("simulation", sim::check);

    let (table, passed) = steps.summary();
    eprint!("{table}");
    if passed {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Tells tests which blockplane to test.
fn with_binary(mut command: Command, binary: &Path) -> Command {
    command.env("BLOCKPLANE_BIN", binary);
    command
}

/// Reads the lock file and says what is there twice.
fn single_versions() -> bool {
    let lock = match std::fs::read_to_string(root().join("Cargo.lock")) {
        Ok(lock) => lock,
        Err(error) => {
            eprintln!("Cargo.lock: {error}");
            return false;
        }
    };
    let found = duplicates::duplicates(&lock);
    for (name, versions) in &found {
        eprintln!(
            "Cargo.lock has {name} {}: one version only, see docs/dependencies.md",
            versions.join(" and ")
        );
    }
    found.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_failure_or_a_step_not_run_fails_everything() {
        let mut steps = Steps::default();
        assert!(steps.step("a", || true));
        assert!(steps.summary().1);
        steps.not_run("b");
        assert!(!steps.summary().1);
        let mut steps = Steps::default();
        assert!(!steps.command("c", Command::new("/bin/false")));
        assert!(steps.summary().0.contains("FAILED"));
        assert!(!steps.command("d", Command::new("/no/such/program")));
        assert!(!steps.summary().1);
    }
}
