//! Runs test programs side by side, since most of them wait for much of their time.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::Extent;
use super::commit_seed;
use super::output::{Counts, has_result, read_lossy, unfinished_tests};
use super::test_programs::TestProgram;
use super::time_limit::wait_within;
use crate::environment::{FULL_RUN_SETTINGS, remove_settings_of_contributor};

/// Programs that run at the same time.
const AT_ONCE: usize = 3;
/// Tests of a program that run at the same time: with the other programs and the other lane more than two processors can run, since
/// they wait for each other's processes, for deadlines and for disks.
const TEST_THREADS: &str = "3";

/// Several times what the longest program takes on an idle machine, for each change and in a full run.
const LIMITS: [Duration; 2] = [Duration::from_secs(40 * 60), Duration::from_secs(120 * 60)];

/// How a program ended.
#[derive(Debug)]
pub(super) struct Run {
    pub program: TestProgram,
    pub passed: bool,
    pub counts: Counts,
    pub output: String,
    pub took: Duration,
}

/// Runs all of them. Each one's output is in a file of `logs` as well.
pub(super) fn run_all(programs: Vec<TestProgram>, extent: Extent, logs: &Path) -> Vec<Run> {
    let waiting = Mutex::new(VecDeque::from(programs));
    let runs = Mutex::new(Vec::new());
    let next = || {
        waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop_front()
    };
    let work = || {
        while let Some(program) = next() {
            let run = run(program, extent, &[], logs);
            eprintln!("   {}", run.line());
            runs.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(run);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(work);
        }
    });
    runs.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Runs one, with these arguments of the test harness besides.
pub(super) fn run(program: TestProgram, extent: Extent, arguments: &[&str], logs: &Path) -> Run {
    let begin = Instant::now();
    let log = logs
        .join(program.name.replace(' ', "-"))
        .with_extension("log");
    let ended = start(&program, extent, arguments, &log);
    let mut output = read_lossy(&log);
    let passed = match ended {
        Ok(true) if !has_result(&output) => {
            output.push_str("\nit ended without a result of its tests\n");
            false
        }
        Ok(passed) => passed,
        Err(error) => {
            output.push_str(&format!(
                "\n{error}; tests that had not ended: {:?}\n",
                unfinished_tests(&output)
            ));
            false
        }
    };
    Run {
        passed,
        counts: Counts::of(&output),
        output,
        took: begin.elapsed(),
        program,
    }
}

/// The folder of the program to test, and of the one that measures it.
pub(super) fn program_folder() -> PathBuf {
    guest::target_dir().join("debug")
}

/// Whether a program succeeded. The error says why it did not end by itself.
fn start(
    program: &TestProgram,
    extent: Extent,
    arguments: &[&str],
    log: &Path,
) -> Result<bool, String> {
    let mut command = Command::new(&program.executable);
    command.args(arguments).current_dir(&program.folder);
    command.env("CARGO_MANIFEST_DIR", &program.folder);
    command.env("RUST_TEST_THREADS", TEST_THREADS);
    remove_settings_of_contributor(&mut command);
    let built = program_folder();
    command.env("BLOCKPLANE_BIN", built.join("blockplane"));
    command.env("BLOCKPLANE_BENCH_BIN", built.join("blockplane-bench"));
    command.env("BLOCKPLANE_FUZZ_SEED", commit_seed::of_commit().to_string());
    let [mut limit, full_limit] = LIMITS;
    if extent == Extent::Full {
        command.arg("--include-ignored").envs(FULL_RUN_SETTINGS);
        limit = full_limit;
    }
    let ended = File::create(log).and_then(|file| {
        command.stdin(Stdio::null());
        command.stdout(file.try_clone()?).stderr(file);
        wait_within(&mut command.spawn()?, limit)
    });
    match ended.map_err(|error: io::Error| format!("{}: {error}", program.executable.display()))? {
        Some(status) => Ok(status.success()),
        None => Err(format!("killed after {} min", limit.as_secs() / 60)),
    }
}

impl Run {
    /// The result in a line.
    pub(super) fn line(&self) -> String {
        let result = if self.passed { "ok" } else { "FAILED" };
        let Counts { passed, failed, .. } = self.counts;
        format!(
            "{result:<6}  {:<40}  {passed:>4} passed, {failed} failed, {:>5.1} s",
            self.program.name,
            self.took.as_secs_f64()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_fails_is_reported_with_its_output() {
        let logs = tempfile::tempdir().unwrap();
        let program = |name: &str, script: &str| {
            let executable = logs.path().join(name);
            std::fs::write(&executable, format!("#!/bin/sh\n{script}\n")).unwrap();
            std::process::Command::new("chmod")
                .args(["+x".as_ref(), executable.as_os_str()])
                .status()
                .unwrap();
            TestProgram {
                name: name.to_owned(),
                executable,
                folder: logs.path().to_owned(),
            }
        };
        let result = "echo 'test result: ok. 3 passed; 0 failed; 0 ignored'";
        let programs = vec![
            program("good", result),
            program("bad", &format!("{result}; echo why >&2; exit 101")),
            program("empty", "exit 0"),
        ];
        let mut runs = run_all(programs, Extent::Quick, logs.path());
        runs.sort_by(|one, other| one.program.name.cmp(&other.program.name));
        let [bad, empty, good] = &runs[..] else {
            panic!("{runs:?}");
        };
        assert!(!bad.passed && bad.output.contains("why"), "{bad:?}");
        assert!(!empty.passed && empty.output.contains("without a result"));
        assert!(good.passed);
        assert_eq!(good.counts.passed, 3);
    }
}
