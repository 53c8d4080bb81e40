//! Steps of a run: their output, their results, and the tables at the end.
//!
//! Steps of several lanes run side by side, so that the output of each is kept, and printed as a whole when the step ends.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Extent;
use super::missing::may_not_run;
use super::output::{Counts, ignored, read_lossy};
use super::programs::{self, Run, program_folder};
use super::repeat::{Repeated, repeat};
use super::test_programs::{self, TestProgram};
use super::time_limit::wait_within;

/// Twice what the longest step takes on a slow machine.
const LIMIT: Duration = Duration::from_secs(60 * 60);
/// Rows of the table of test programs.
const SLOWEST: usize = 30;

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
    name: String,
    outcome: Outcome,
    took: Duration,
}

#[derive(Debug, Default)]
struct Results {
    steps: Vec<Step>,
    counts: Counts,
    /// Name and time of test programs.
    programs: Vec<(String, Duration)>,
    repeated: Vec<Repeated>,
}

/// The steps of a run, so far.
#[derive(Debug)]
pub(super) struct Steps {
    started: Instant,
    logs: PathBuf,
    extent: Extent,
    results: Mutex<Results>,
}

impl Steps {
    /// None yet. `logs` is a folder for their output; it is created, and emptied.
    pub(super) fn new(logs: PathBuf, extent: Extent) -> io::Result<Self> {
        // Of an earlier run.
        let _ = std::fs::remove_dir_all(&logs);
        std::fs::create_dir_all(&logs)?;
        Ok(Steps {
            started: Instant::now(),
            logs,
            extent,
            results: Mutex::default(),
        })
    }

    /// Runs a command as a step, which passes if the status is 0.
    pub(super) fn command(&self, name: &str, mut command: Command) -> bool {
        self.step(name, |log| {
            let passed = run(&mut command, log, Stdio::from(append(log)?))?;
            Ok((passed, read_lossy(log)))
        })
    }

    /// Runs `check` as a step; what it returns as an error is printed.
    pub(super) fn check(&self, name: &str, check: impl FnOnce() -> Result<(), String>) -> bool {
        self.step(name, |_| check().map(|()| (true, String::new())))
    }

    /// Runs a cargo that builds test programs as a step.
    pub(super) fn build(&self, name: &str, mut cargo: Command) -> Option<Vec<TestProgram>> {
        cargo.arg("--message-format=json-render-diagnostics");
        let mut built = None;
        self.step(name, |log| {
            let messages = log.with_extension("json");
            let file = File::create(&messages)
                .map_err(|error| format!("{}: {error}", messages.display()))?;
            if !run(&mut cargo, log, Stdio::from(file))? {
                return Ok((false, read_lossy(log)));
            }
            let messages = read_lossy(&messages);
            if let Some(path) = test_programs::misplaced_program(&messages, &program_folder()) {
                let path = path.display();
                return Err(format!(
                    "cargo built {path}: set only CARGO_TARGET_DIR to build elsewhere"
                ));
            }
            let programs = test_programs::listed(&messages);
            if programs.is_empty() {
                return Err("no test program was built".to_owned());
            }
            built = Some(programs);
            Ok((true, read_lossy(log)))
        });
        built
    }

    /// Runs test programs as a step, and repeats tests that fail. Programs that failed are printed. `None`: they were not built.
    pub(super) fn tests(&self, name: &str, programs: Option<Vec<TestProgram>>) {
        let Some(programs) = programs else {
            let (name, outcome, took) = (name.to_owned(), Outcome::NotRun, Duration::ZERO);
            self.results().steps.push(Step {
                name,
                outcome,
                took,
            });
            return;
        };
        self.step(name, |_| {
            let runs = programs::run_all(programs, self.extent, &self.logs);
            let repeated = repeat(&runs, self.extent, &self.logs);
            let verdict = verdict(&runs);
            let mut results = self.results();
            for Run {
                program,
                counts,
                took,
                ..
            } in runs
            {
                results.counts.add(counts);
                results.programs.push((program.name, took));
            }
            results.repeated.extend(repeated);
            Ok(verdict)
        });
    }

    fn step(
        &self,
        name: &str,
        check: impl FnOnce(&Path) -> Result<(bool, String), String>,
    ) -> bool {
        eprintln!("== {name}: started");
        let file_name = name.replace([' ', ','], "-");
        let started = Instant::now();
        let checked = check(&self.logs.join(file_name).with_extension("log"));
        let took = started.elapsed();
        let (passed, output) = checked.unwrap_or_else(|error| (false, error));
        let outcome = if passed {
            Outcome::Passed
        } else {
            Outcome::Failed
        };
        // While this is locked, so that steps do not mix.
        let mut results = self.results();
        eprintln!(
            "\n== {name}: {outcome}, {:.1} s\n{output}",
            took.as_secs_f64()
        );
        results.steps.push(Step {
            name: name.to_owned(),
            outcome,
            took,
        });
        passed
    }

    /// The tables, and whether everything passed.
    pub(super) fn summary(&self) -> (String, bool) {
        let mut results = self.results();
        let mut text = String::new();
        let mut passed = results
            .steps
            .iter()
            .all(|step| step.outcome == Outcome::Passed);
        for line in &results.counts.not_run {
            let (_, reason) = ignored(line).unwrap_or_default();
            let known = may_not_run(reason);
            passed &= known;
            text.push_str(&format!(
                "  {line}{}\n",
                if known {
                    ""
                } else {
                    " (FAILED: not listed in xtask/src/ci/missing.rs)"
                }
            ));
        }
        for Repeated {
            test,
            failed,
            times,
        } in &results.repeated
        {
            text.push_str(&format!(
                "  {test} failed; of {times} repetitions alone {failed} failed\n"
            ));
        }
        results
            .programs
            .sort_by_key(|(_, took)| std::cmp::Reverse(*took));
        text.push_str(&format!("\n  {:<56}     time\n", "slowest test programs"));
        for (name, took) in results.programs.iter().take(SLOWEST) {
            text.push_str(&format!("  {name:<54}  {:>7.1} s\n", took.as_secs_f64()));
        }
        text.push_str(&format!("\n  {:<44}  result        time\n", "step"));
        for Step {
            name,
            outcome,
            took,
        } in &results.steps
        {
            let (outcome, seconds) = (outcome.to_string(), took.as_secs_f64());
            text.push_str(&format!("  {name:<44}  {outcome:<8}  {seconds:>7.1} s\n"));
        }
        let (all, seconds) = (
            "in all (lanes run side by side)",
            self.started.elapsed().as_secs_f64(),
        );
        text.push_str(&format!("  {all:<54}  {seconds:>7.1} s\n\n"));
        let Counts {
            passed: good,
            failed,
            full_only,
            not_run,
        } = &results.counts;
        let skipped = full_only + not_run.len();
        text.push_str(&format!(
            "{good} passed, {failed} failed, {skipped} skipped\n"
        ));
        (text, passed)
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

/// Whether programs passed, and what to print of those that did not.
fn verdict(runs: &[Run]) -> (bool, String) {
    let failed: Vec<&Run> = runs.iter().filter(|run| !run.passed).collect();
    let text = failed
        .iter()
        .map(|run| format!("{}\n{}\n", run.line(), run.output));
    (failed.is_empty(), text.collect())
}

/// Runs a command with what it reports at the end of a file.
fn run(command: &mut Command, log: &Path, output: Stdio) -> Result<bool, String> {
    command
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(append(log)?);
    let ended = command
        .spawn()
        .and_then(|mut child| wait_within(&mut child, LIMIT));
    match ended.map_err(|error| format!("cannot run {command:?}: {error}"))? {
        Some(status) => Ok(status.success()),
        None => Err(format!(
            "killed after {} min\n{}",
            LIMIT.as_secs() / 60,
            read_lossy(log)
        )),
    }
}

fn append(log: &Path) -> Result<File, String> {
    let file = File::options().create(true).append(true).open(log);
    file.map_err(|error| format!("{}: {error}", log.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps() -> (tempfile::TempDir, Steps) {
        let folder = tempfile::tempdir().expect("a folder");
        let steps = Steps::new(folder.path().join("logs"), Extent::Quick).expect("another one");
        (folder, steps)
    }

    #[test]
    fn one_failure_or_a_step_not_run_fails_everything() {
        let (_folder, good) = steps();
        assert!(good.check("a", || Ok(())));
        assert!(good.command("b", Command::new("/bin/true")));
        assert!(good.summary().1);
        good.tests("c", None);
        assert!(!good.summary().1);
        let (_folder, bad) = steps();
        assert!(!bad.command("c", Command::new("/bin/false")));
        assert!(bad.summary().0.contains("FAILED"));
        assert!(!bad.command("d", Command::new("/no/such/program")));
        assert!(!bad.check("e", || Err("no".to_owned())));
        assert!(!bad.summary().1);
    }

    fn program(folder: &Path, script: &str) -> Vec<TestProgram> {
        let executable = folder.join("program");
        std::fs::write(&executable, format!("#!/bin/sh\n{script}\n")).expect("a script");
        let executable_mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&executable, executable_mode).expect("its mode");
        vec![TestProgram {
            name: "a test".to_owned(),
            executable,
            folder: folder.to_owned(),
        }]
    }

    #[test]
    fn a_test_that_fails_once_is_repeated_and_fails_the_run() {
        let (folder, steps) = steps();
        let fails_once = "[ -e ran ] && echo 'test result: ok. 1 passed; 0 failed' && exit
            touch ran; echo 'test a::b ... FAILED'
            echo 'test result: FAILED. 1 passed; 1 failed'; exit 101";
        steps.tests("tests", Some(program(folder.path(), fails_once)));
        let (text, passed) = steps.summary();
        assert!(!passed);
        assert!(
            text.contains("a::b failed; of 20 repetitions alone 0 failed"),
            "{text}"
        );
        assert!(text.ends_with("1 passed, 1 failed, 0 skipped\n"), "{text}");
    }

    #[test]
    fn tests_that_do_not_run_are_listed_with_their_reasons() {
        let (folder, steps) = steps();
        let lacks =
            "echo 'test a::b ... ignored, no such thing'; echo 'test c ... ignored, full run only'
            echo 'test result: ok. 1 passed; 0 failed'";
        steps.tests("tests", Some(program(folder.path(), lacks)));
        let (text, passed) = steps.summary();
        // Where this test runs may be strict.
        assert_eq!(passed, std::env::var_os("CI").is_none());
        assert!(text.contains("a::b ... ignored, no such thing"), "{text}");
        assert!(text.ends_with("1 passed, 0 failed, 2 skipped\n"), "{text}");
    }
}
