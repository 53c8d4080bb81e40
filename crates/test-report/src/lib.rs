//! Reports of tests that cannot run on this machine.
//!
//! A test harness cannot ignore a test once it runs, and hides what a passing test prints. A test that lacks something
//! (root rights, a program, a kernel's feature) therefore reports itself here and returns. The report is a line as the harness has it
//! for an ignored test, so that `cargo xtask ci` lists both; with [`STRICT`] it is a failure.

use std::io::Write;

/// Environment variable: a test that cannot run fails.
pub const STRICT: &str = "BLOCKPLANE_TESTS_STRICT";

/// Reports that the calling test does not run, or a part of it, for this reason.
///
/// # Panics
/// If [`STRICT`] is set.
#[track_caller]
pub fn not_run(reason: &str) {
    assert!(
        std::env::var_os(STRICT).is_none(),
        "cannot run here: {reason}"
    );
    let line = line(std::thread::current().name(), reason);
    // Past the capture of the test harness.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// The harness names a test's thread after the test.
fn line(test: Option<&str>, reason: &str) -> String {
    let test = test.unwrap_or("(a thread of a test)");
    let reason: Vec<&str> = reason.split_whitespace().collect();
    format!("test {test} ... ignored, {}\n", reason.join(" "))
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_report_is_one_line_with_the_test_and_the_reason() {
        let line = super::line(Some("storage::devices"), "no loop device:\n  not root\n");
        assert_eq!(
            line,
            "test storage::devices ... ignored, no loop device: not root\n"
        );
    }
}
