//! Every experiment runs, for tiny times, and prints its tables. What the figures are is not asserted.
#![allow(clippy::unwrap_used, missing_docs)] // a test panics on what it did not expect

use std::process::Command;

use bench::program::blockplane;

/// What the experiments print; asserts that these rows have a figure in each column.
fn tables(names: &[&str], backing: &str, rows: &[&str]) -> String {
    let ours = blockplane(None).unwrap();
    let patched = |patch: &str| format!("--patched={patch}={}", ours.display());
    let ended = Command::new(env!("CARGO_BIN_EXE_blockplane-experiments"))
        .args(names)
        .args(["--time=20ms", "--warm-up=5ms", "--repetitions=1"])
        .args(["--size=16M", backing, "--server"])
        .arg(&ours)
        .args(["pile-up", "completion-syscall", "late-notify"].map(patched))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{said}");
    let tables = String::from_utf8(ended.stdout).unwrap();
    for row in rows {
        let found = tables.lines().find(|line| line.starts_with(row));
        let found = found.unwrap_or_else(|| panic!("no row {row} in {tables}"));
        let mut cells = found.trim_matches('|').split('|');
        assert!(cells.all(|cell| !cell.trim().is_empty()), "{found}");
    }
    tables
}

#[test]
fn notify_measures_both_orders() {
    let rows = [
        "| 4k read, depth 1, 1 queue",
        "| 4k read, depth 128, 4 queues",
    ];
    let tables = tables(&["notify"], "--backing=null", &rows);
    let ratio = "before it / after the submission";
    assert!(tables.contains(ratio), "{tables}");
}

#[test]
#[ignore = "full run only"]
fn other_published_results_have_all_rows() {
    let rows = [
        "| 16k read, depth 128, 4 queues",
        "| 64k write, depth 16, 8 queues",
        "| 4k read, depth 32, 1 queue",
        "| 16k write, depth 16, 1 queue",
    ];
    let names = ["batch-limit", "completions", "handlers", "scsi"];
    let tables = tables(&names, "--backing=tmpfs", &rows);
    // The program of that patch was not named.
    assert!(tables.contains("scanning: not measured"), "{tables}");
}
