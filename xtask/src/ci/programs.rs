//! Test programs: built by cargo, then run side by side, since most of them wait for much of their time.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::Extent;
use super::output::{Counts, read_lossy, unfinished_tests};
use super::time_limit::wait_within;

/// Programs that run at the same time.
const AT_ONCE: usize = 3;
/// Tests of a program that run at the same time: with the other program and the other lane more than two processors can run, since
/// they wait for each other's processes, for deadlines and for disks.
const THREADS: &str = "3";

/// Twice what the longest program takes on a slow machine, for each change and in a full run.
const LIMITS: [Duration; 2] = [Duration::from_secs(15 * 60), Duration::from_secs(120 * 60)];

/// What makes tests longer in a full run.
const LONGER: [(&str, &str); 4] = [
    ("BLOCKPLANE_KILLS", "500"),
    ("BLOCKPLANE_OPENS", "1000"),
    ("BLOCKPLANE_OSD_KILLS", "10"),
    ("BLOCKPLANE_UPGRADES", "10"),
];

/// A built program of tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TestProgram {
    /// Its package and its target, as `blockplane qmp`.
    pub name: String,
    pub executable: PathBuf,
    /// The folder of its package, in which it is run.
    pub folder: PathBuf,
}

/// How a program ended.
#[derive(Debug)]
pub(super) struct Run {
    pub program: TestProgram,
    pub passed: bool,
    pub counts: Counts,
    pub output: String,
    pub took: Duration,
}

/// Packages whose programs take longest begin first.
const FIRST: [&str; 3] = ["guest ", "blockplane ", "ceph "];

/// The test programs in what `cargo test --no-run --message-format=json-render-diagnostics` prints on standard output.
pub(super) fn listed(messages: &str) -> Vec<TestProgram> {
    let mut programs: Vec<_> = messages.lines().filter_map(listed_program).collect();
    let place = |name: &str| FIRST.iter().position(|first| name.starts_with(first));
    programs.sort_by_key(|program| place(&program.name).unwrap_or(FIRST.len()));
    programs
}

fn listed_program(line: &str) -> Option<TestProgram> {
    let message: Value = serde_json::from_str(line).ok()?;
    if message["profile"]["test"] != true {
        return None;
    }
    let executable = PathBuf::from(message["executable"].as_str()?);
    let folder = Path::new(message["manifest_path"].as_str()?)
        .parent()?
        .to_owned();
    let package = folder.file_name()?.to_string_lossy().into_owned();
    let target = message["target"]["name"].as_str()?;
    let kind = message["target"]["kind"][0].as_str()?;
    let name = match kind {
        "test" => format!("{package} {target}"),
        _ => format!("{package} (unit tests)"),
    };
    Some(TestProgram {
        name,
        executable,
        folder,
    })
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
    command.env("RUST_TEST_THREADS", THREADS);
    // The program to test, and the one that measures it.
    let built = guest::target_dir().join("debug");
    command.env("BLOCKPLANE_BIN", built.join("blockplane"));
    command.env("BLOCKPLANE_BENCH_BIN", built.join("blockplane-bench"));
    let [mut limit, full_limit] = LIMITS;
    if extent == Extent::Full {
        command.arg("--include-ignored").envs(LONGER);
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
    fn test_programs_are_those_that_cargo_built_for_tests() {
        let artifact = |test: bool, kind: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/p/crates/qmp/Cargo.toml","target":{{"kind":["{kind}"],"name":"server"}},"profile":{{"test":{test}}},"executable":"/p/target/debug/deps/server-1"}}"#
            )
        };
        let messages = [
            artifact(true, "test"),
            artifact(false, "bin"),
            artifact(true, "lib"),
        ]
        .join("\n");
        let names: Vec<String> = listed(&messages)
            .into_iter()
            .map(|program| program.name)
            .collect();
        assert_eq!(names, ["qmp server", "qmp (unit tests)"]);
    }

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
        ];
        let mut runs = run_all(programs, Extent::Quick, logs.path());
        runs.sort_by_key(|run| run.passed);
        assert!(
            !runs[0].passed && runs[0].output.contains("why"),
            "{runs:?}"
        );
        assert!(runs[1].passed);
        assert_eq!(runs[1].counts.passed, 3);
    }
}
