//! The output of test programs: results that libtest prints.

use std::path::Path;

/// Results of a test program, or of many.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub passed: usize,
    pub failed: usize,
    /// Tests that are run by `./x test --full` only.
    pub full_only: usize,
    /// Tests that did not run: their lines, with the reason.
    pub not_run: Vec<String>,
}

/// The reason of tests that are run by `--full` only: `#[ignore = "full run only"]`.
const FULL_ONLY: &str = "full run only";

impl Counts {
    /// Reads the output of a program. Tests that report that they did not run count as passed in the harness' own count.
    pub(super) fn of(output: &str) -> Self {
        let mut counts = Counts::default();
        for line in output.lines() {
            if let Some((_, reason)) = ignored(line) {
                match reason == FULL_ONLY {
                    true => counts.full_only += 1,
                    false => counts.not_run.push(line.to_owned()),
                }
            } else if let Some(result) = line.strip_prefix("test result: ") {
                counts.passed += number_before(result, " passed");
                counts.failed += number_before(result, " failed");
            }
        }
        counts
    }

    pub(super) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.full_only += other.full_only;
        self.not_run.extend(other.not_run);
    }
}

/// The text of a log: programs may print any bytes.
pub(super) fn read_lossy(file: &Path) -> String {
    let output = std::fs::read(file).unwrap_or_default();
    String::from_utf8_lossy(&output).into_owned()
}

/// Whether a program has run its tests to the end.
pub(super) fn has_result(output: &str) -> bool {
    output.lines().any(|line| line.starts_with("test result: "))
}

/// `test NAME ... ignored, REASON`: the name and the reason, which is empty if there is none. An unfinished line of another process may
/// stand before it.
pub(super) fn ignored(line: &str) -> Option<(&str, &str)> {
    let (before, rest) = line.split_once(" ... ignored")?;
    let (_, name) = before.rsplit_once("test ")?;
    Some((name, rest.trim_start_matches(", ").trim()))
}

/// The names in lines `test NAME ... FAILED`.
pub(super) fn failed_tests(output: &str) -> Vec<&str> {
    let failed = output.lines().filter_map(|line| {
        let name = line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?;
        Some(name.strip_suffix(" - should panic").unwrap_or(name))
    });
    failed.collect()
}

/// The number before a word, as in `27 passed; 1 failed`.
fn number_before(text: &str, word: &str) -> usize {
    let before = text.split_once(word).map_or("", |(before, _)| before);
    let number = before.rsplit(' ').next().unwrap_or_default();
    number.parse().unwrap_or(0)
}

/// The tests that had begun and not ended. The harness names one when it has run for a minute.
pub(super) fn unfinished_tests(output: &str) -> Vec<&str> {
    let long = output.lines().filter_map(|line| {
        let name = line.strip_prefix("test ")?;
        name.strip_suffix(" has been running for over 60 seconds")
    });
    let has_ended = |name: &str| {
        let result = format!("test {name} ... ");
        output.lines().any(|line| line.starts_with(&result))
    };
    long.filter(|name| !has_ended(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
test kills::many ... ignored, full run only
of a childtest devices::loops ... ignored, no loop device: not root
test e has been running for over 60 seconds
test status::dropped has been running for over 60 seconds
test status::counted ... FAILED
test status::dropped - should panic ... FAILED
test size::grown ... ok
test result: FAILED. 27 passed; 2 failed; 1 ignored; 0 measured; 0 filtered out; finished in 32.52s
";

    #[test]
    fn output_is_counted() {
        let counts = Counts::of(OUTPUT);
        assert_eq!((counts.passed, counts.failed, counts.full_only), (27, 2, 1));
        assert_eq!(counts.not_run.len(), 1, "{counts:?}");
        let (test, reason) = ignored(&counts.not_run[0]).unwrap();
        assert_eq!(
            (test, reason),
            ("devices::loops", "no loop device: not root")
        );
    }

    #[test]
    fn failed_and_unfinished_tests_are_named() {
        assert_eq!(failed_tests(OUTPUT), ["status::counted", "status::dropped"]);
        let output = OUTPUT.replace("dropped - should panic ...", "dropped ...");
        assert_eq!(unfinished_tests(&output), ["e"]);
    }
}
