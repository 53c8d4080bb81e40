//! Second runs of tests that failed, one target at a time, when nothing else of their step runs.
//!
//! A busy machine can fail a test that depends on time. A test that passes when it is run again is listed at the end, to be
//! repaired; one that fails again fails its step.

use std::process::Command;

/// More failures than this in a step are a mistake in the product.
const MOST_FAILURES: usize = 3;

/// Tests of a target that failed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FailedTests {
    /// The target, as cargo's options: `-p ceph --test cluster`.
    target: Vec<String>,
    names: Vec<String>,
}

impl FailedTests {
    /// Adds the options that run these tests alone to a `cargo test`.
    pub(super) fn add_to(&self, test: &mut Command) {
        test.args(&self.target).args(["--", "--exact"]);
        test.args(&self.names);
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }
}

/// The failed tests by target, as `cargo test --no-fail-fast` reports them. Empty if nothing failed, if too many tests did, or if
/// the output does not name all of them: a process was killed, a target was not built, or an example in a comment failed.
pub(super) fn failed_tests(output: &str) -> Vec<FailedTests> {
    let mut targets = Vec::new();
    let mut names = Vec::new();
    let mut counted = 0;
    for line in output.lines() {
        if let Some(name) = failed_test(line) {
            names.push(name.to_owned());
        } else if let Some(count) = failure_count(line) {
            counted += count;
        } else if let Some(target) = failed_target(line) {
            if names.len() != counted || names.is_empty() || target.ends_with("--doc") {
                return Vec::new();
            }
            counted = 0;
            targets.push(FailedTests {
                target: target.split(' ').map(str::to_owned).collect(),
                names: std::mem::take(&mut names),
            });
        }
    }
    let failures: usize = targets.iter().map(|failed| failed.names.len()).sum();
    if failures > MOST_FAILURES || !names.is_empty() || counted != 0 {
        targets.clear();
    }
    targets
}

/// `test status::counted ... FAILED`
fn failed_test(line: &str) -> Option<&str> {
    let name = line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?;
    Some(name.strip_suffix(" - should panic").unwrap_or(name))
}

/// `test result: FAILED. 27 passed; 1 failed; ...`
fn failure_count(line: &str) -> Option<usize> {
    let counts = line.strip_prefix("test result: FAILED. ")?;
    let failed = counts
        .split("; ")
        .find_map(|count| count.strip_suffix(" failed"))?;
    failed.parse().ok()
}

/// ``error: test failed, to rerun pass `-p ceph --test cluster` ``
fn failed_target(line: &str) -> Option<&str> {
    line.strip_prefix("error: test failed, to rerun pass `")?
        .strip_suffix('`')
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE_FAILED: &str = "\
test status::counted ... FAILED
test status::dropped - should panic ... FAILED
test size::grown ... ok
test result: FAILED. 27 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 32.52s

error: test failed, to rerun pass `-p ceph --test cluster`
     Running tests/leaks.rs (target/debug/deps/leaks-11dd85ca66983886)
test no_thread ... ok
test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 3.32s
";

    #[test]
    fn failed_tests_are_run_by_target_and_name() {
        let failed = failed_tests(ONE_FAILED);
        let [cluster] = failed.as_slice() else {
            panic!("{failed:?}");
        };
        let mut command = Command::new("test");
        cluster.add_to(&mut command);
        let args: Vec<_> = command.get_args().collect();
        let expected = "-p ceph --test cluster -- --exact status::counted status::dropped";
        assert_eq!(args, expected.split(' ').collect::<Vec<_>>());
    }

    #[test]
    fn output_that_does_not_name_all_failures_or_has_many_is_not_run_again() {
        let killed = "error: test failed, to rerun pass `-p ceph --test cluster`\n";
        assert_eq!(failed_tests(&format!("{ONE_FAILED}{killed}")), []);
        assert_eq!(
            failed_tests(&ONE_FAILED.replace("2 failed", "3 failed")),
            []
        );
        assert_eq!(failed_tests(&ONE_FAILED.repeat(2)), []);
        assert_eq!(
            failed_tests(&ONE_FAILED.replace("--test cluster", "--doc")),
            []
        );
    }
}
