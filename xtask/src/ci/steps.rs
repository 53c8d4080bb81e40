//! Steps of a run: their output, their results, and the table at the end.
//!
//! Steps of several lanes run side by side, so that the output of each is kept and printed as a whole when the
//! step ends.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::rerun::failed_tests;
use super::time_limit::{STEP_LIMIT, unfinished_tests, wait_within};

/// How a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    Failed,
    /// What it tests was not built.
    NotRun,
}

/// A step that has ended.
#[derive(Debug)]
struct Step {
    name: &'static str,
    outcome: Outcome,
    took: Duration,
}

#[derive(Debug, Default)]
struct Results {
    steps: Vec<Step>,
    /// Tests that did not run, as the test harness reports them: with the reason.
    ignored: Vec<String>,
    /// Tests that failed, and passed when they were run again.
    unreliable: Vec<String>,
}

/// The steps of a run, so far.
#[derive(Debug)]
pub(super) struct Steps {
    started: Instant,
    logs: PathBuf,
    results: Mutex<Results>,
}

impl Steps {
    /// None yet. `logs` is a folder for their output; it is created.
    pub(super) fn new(logs: PathBuf) -> io::Result<Self> {
        std::fs::create_dir_all(&logs)?;
        Ok(Steps {
            started: Instant::now(),
            logs,
            results: Mutex::default(),
        })
    }

    /// Runs the command as a step, which passes if the status is 0.
    pub(super) fn command(&self, name: &'static str, mut command: Command) -> bool {
        self.step(name, |log| run(&mut command, log))
    }

    /// Runs a `cargo test --no-fail-fast` as a step, and tests that fail once more, alone. `test` makes the command, without its
    /// other options.
    pub(super) fn tests(
        &self,
        name: &'static str,
        options: &[&str],
        test: impl Fn() -> Command,
    ) -> bool {
        self.step(name, |log| {
            let mut all = test();
            all.arg("--no-fail-fast").args(options);
            if run(&mut all, log)? {
                return Ok(true);
            }
            let failed = failed_tests(&read_lossy(log));
            for tests in &failed {
                let mut again = test();
                tests.add_to(&mut again);
                if !run(&mut again, log)? {
                    return Ok(false);
                }
                let names = tests.names().map(str::to_owned);
                self.results().unreliable.extend(names);
            }
            Ok(!failed.is_empty())
        })
    }

    /// Runs `check` as a step; what it returns as an error is printed.
    pub(super) fn check(
        &self,
        name: &'static str,
        check: impl FnOnce() -> Result<(), String>,
    ) -> bool {
        self.step(name, |_| check().map(|()| true))
    }

    fn step(&self, name: &'static str, check: impl FnOnce(&Path) -> Result<bool, String>) -> bool {
        eprintln!("== {name}: started");
        let log = self.logs.join(name.replace(' ', "-")).with_extension("log");
        // Of an earlier run.
        let _ = std::fs::remove_file(&log);
        let started = Instant::now();
        let checked = check(&log);
        let took = started.elapsed();
        let outcome = match checked {
            Ok(true) => Outcome::Passed,
            Ok(false) | Err(_) => Outcome::Failed,
        };
        let output = read_lossy(&log);
        let error = checked.err().unwrap_or_default();
        let seconds = took.as_secs_f64();
        // While this is locked, so that steps do not mix.
        let mut results = self.results();
        eprintln!("\n== {name}: {outcome}, {seconds:.1} s\n{output}{error}");
        results.ignored.extend(ignored(&output).map(str::to_owned));
        results.steps.push(Step {
            name,
            outcome,
            took,
        });
        outcome == Outcome::Passed
    }

    /// A step that cannot run, since what it tests was not built.
    pub(super) fn not_run(&self, name: &'static str) {
        self.results().steps.push(Step {
            name,
            outcome: Outcome::NotRun,
            took: Duration::ZERO,
        });
    }

    /// The tests that did not run, those that had to be run again, the table, and whether everything passed.
    pub(super) fn summary(&self) -> (String, bool) {
        let results = self.results();
        let mut text = String::new();
        if !results.ignored.is_empty() {
            text.push_str("\n  ignored tests, with the reason:\n");
            for test in &results.ignored {
                text.push_str(&format!("  {test}\n"));
            }
        }
        if !results.unreliable.is_empty() {
            text.push_str("\n  tests that failed, and passed when they were run again:\n");
            for test in &results.unreliable {
                text.push_str(&format!("  {test}\n"));
            }
        }
        text.push_str("\n  step                              result        time\n");
        for Step {
            name,
            outcome,
            took,
        } in &results.steps
        {
            let outcome = outcome.to_string();
            let seconds = took.as_secs_f64();
            text.push_str(&format!("  {name:<32}  {outcome:<8}  {seconds:>7.1} s\n"));
        }
        text.push_str(&format!(
            "  {:<42}  {:>7.1} s\n",
            "in all (lanes run side by side)",
            self.started.elapsed().as_secs_f64()
        ));
        let passed = |step: &Step| step.outcome == Outcome::Passed;
        (text, results.steps.iter().all(passed))
    }

    fn results(&self) -> MutexGuard<'_, Results> {
        self.results.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Outcome::Passed => "ok",
            Outcome::Failed => "FAILED",
            Outcome::NotRun => "NOT RUN",
        })
    }
}

/// Runs a command with all of its output at the end of a file.
fn run(command: &mut Command, log: &Path) -> Result<bool, String> {
    let status = start(command, log).and_then(|mut child| wait_within(&mut child, STEP_LIMIT));
    match status.map_err(|error| format!("cannot run {command:?}: {error}"))? {
        Some(status) => Ok(status.success()),
        None => {
            let tests = unfinished_tests(&read_lossy(log)).join(", ");
            let minutes = STEP_LIMIT.as_secs() / 60;
            Err(format!(
                "killed after {minutes} min; tests that had not ended: {tests}"
            ))
        }
    }
}

fn start(command: &mut Command, log: &Path) -> io::Result<Child> {
    let output = File::options().create(true).append(true).open(log)?;
    command.stdin(std::process::Stdio::null());
    command.stdout(output.try_clone()?).stderr(output);
    command.spawn()
}

/// The file's text: tests may print any bytes.
fn read_lossy(log: &Path) -> String {
    let output = std::fs::read(log).unwrap_or_default();
    String::from_utf8_lossy(&output).into_owned()
}

/// Lines such as `test floods::a_call ... ignored, a known limit`.
fn ignored(output: &str) -> impl Iterator<Item = &str> {
    output
        .lines()
        .filter(|line| line.starts_with("test ") && line.contains(" ... ignored"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps() -> (tempfile::TempDir, Steps) {
        let folder = tempfile::tempdir().expect("a folder");
        let steps = Steps::new(folder.path().join("logs")).expect("another one");
        (folder, steps)
    }

    #[test]
    fn one_failure_or_a_step_not_run_fails_everything() {
        let (_folder, good) = steps();
        assert!(good.check("a", || Ok(())));
        assert!(good.command("b", Command::new("/bin/true")));
        assert!(good.summary().1);
        good.not_run("c");
        assert!(!good.summary().1);
        let (_folder, bad) = steps();
        assert!(!bad.command("c", Command::new("/bin/false")));
        assert!(bad.summary().0.contains("FAILED"));
        assert!(!bad.command("d", Command::new("/no/such/program")));
        assert!(!bad.check("e", || Err("no".to_owned())));
        assert!(!bad.summary().1);
    }

    /// A cargo whose test fails the first time, or always.
    fn failing_test(folder: &Path, always: bool) -> impl Fn() -> Command {
        let ran = folder.join(format!("ran-{always}"));
        let fail = "echo 'test a::b ... FAILED'; echo 'test result: FAILED. 1 passed; 1 failed'
            echo 'error: test failed, to rerun pass `-p a`'; exit 101";
        let script = match always {
            true => fail.to_owned(),
            false => format!("[ -e {ran:?} ] && exit; touch {ran:?}; {fail}"),
        };
        move || {
            let mut shell = Command::new("/bin/sh");
            shell.args(["-c", &script]);
            shell
        }
    }

    #[test]
    fn a_test_that_fails_once_is_listed_and_one_that_fails_twice_fails_its_step() {
        let (folder, steps) = steps();
        assert!(steps.tests("unreliable", &[], failing_test(folder.path(), false)));
        let (text, passed) = steps.summary();
        assert!(passed);
        assert!(text.contains("run again:\n  a::b\n"), "{text}");
        assert!(!steps.tests("failing", &[], failing_test(folder.path(), true)));
        assert!(!steps.summary().1);
        assert!(!steps.tests("broken", &[], || Command::new("/bin/false")));
    }

    #[test]
    fn ignored_tests_are_listed_with_their_reasons() {
        let (_folder, steps) = steps();
        let mut tests = Command::new("/bin/sh");
        tests.args([
            "-c",
            "echo 'test a::b ... ok'; echo 'test c ... ignored, no KVM' >&2",
        ]);
        assert!(steps.command("tests", tests));
        let (text, passed) = steps.summary();
        assert!(passed);
        assert!(text.contains("test c ... ignored, no KVM"), "{text}");
        assert!(!text.contains("a::b"), "{text}");
    }
}
