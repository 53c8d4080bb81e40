//! Reports of tests that cannot run on this machine.
//!
//! A test harness cannot ignore a test once it runs, and hides what a passing test prints. A test that lacks something
//! (root rights, a program, a kernel's feature) therefore reports itself here and returns. The report is a line as the harness has it
//! for an ignored test. `cargo xtask ci` lists both; in continuous integration it fails if the reason is not one that it knows
//! (`xtask/src/ci/missing.rs`).

use std::io::Write;

/// Reports that the calling test does not run, or a part of it, for this reason.
pub fn not_run(reason: &str) {
    let line = line(std::thread::current().name(), reason);
    // Past the capture of the test harness.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Whether a program is on this machine; [reports](not_run) that the calling test does not run if it is not.
#[must_use]
pub fn installed(program: &str) -> bool {
    let found = is_on_path(program);
    if !found {
        not_run(&format!("{program} is not installed"));
    }
    found
}

/// Whether a program is on this machine.
#[must_use]
pub fn is_on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Whether the kernel lets this process have an io_uring; [reports](not_run) that the calling test, or a part of it, does not run
/// if it does not.
#[must_use]
pub fn has_io_uring() -> bool {
    let nothing = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: without parameters the call makes nothing: it fails because of them, if not before.
    let result = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, nothing) };
    let error = std::io::Error::last_os_error();
    let allowed = result < 0 && error.raw_os_error() == Some(libc::EFAULT);
    if !allowed {
        not_run(&format!("no io_uring: {error}"));
    }
    allowed
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
