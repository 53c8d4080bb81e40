//! Repetitions of a test that failed: how often it fails when it runs alone tells a mistake from a race.
//!
//! They do not turn a failure into a success: a test that fails now and then hides a mistake, in the product or in itself.

use std::path::Path;
use std::time::{Duration, Instant};

use super::Extent;
use super::output::failed_tests;
use super::programs::{Run, run};
use super::test_programs::TestProgram;

const TIMES: u32 = 20;
/// A test that fails because a deadline has passed takes a minute each time.
const LIMIT: Duration = Duration::from_secs(5 * 60);
/// With more failures the change is wrong, and repetitions tell nothing.
const MOST_TESTS: usize = 3;

/// A failed test, and how often it failed again.
#[derive(Debug)]
pub(super) struct Repeated {
    pub test: String,
    pub failed: u32,
    pub times: u32,
}

/// Repeats the failed tests of a step. Empty if there are many, or if a program ended without naming them.
pub(super) fn repeat(runs: &[Run], extent: Extent, logs: &Path) -> Vec<Repeated> {
    let failed: Vec<(&TestProgram, &str)> = runs
        .iter()
        .flat_map(|run| {
            failed_tests(&run.output)
                .into_iter()
                .map(|test| (&run.program, test))
        })
        .collect();
    let counted: usize = runs.iter().map(|run| run.counts.failed).sum();
    let unnamed = runs.iter().any(|run| !run.passed && run.counts.failed == 0);
    if unnamed || failed.len() != counted || failed.len() > MOST_TESTS {
        return Vec::new();
    }
    failed
        .into_iter()
        .map(|(program, test)| alone(program, test, extent, logs))
        .collect()
}

fn alone(program: &TestProgram, test: &str, extent: Extent, logs: &Path) -> Repeated {
    let begin = Instant::now();
    let mut repeated = Repeated {
        test: test.to_owned(),
        failed: 0,
        times: 0,
    };
    let logged = TestProgram {
        name: format!("{} repeated", program.name),
        ..program.clone()
    };
    while repeated.times < TIMES && begin.elapsed() < LIMIT {
        let run = run(logged.clone(), extent, &["--exact", test], logs);
        repeated.times += 1;
        repeated.failed += u32::from(!run.passed);
    }
    repeated
}
