//! Every experiment runs, for tiny times, and prints its tables. What the figures are is not asserted.
#![allow(clippy::unwrap_used, missing_docs)] // a test panics on what it did not expect

use std::process::Command;

use bench::program::{blockplane, find_program};

/// What the experiment prints.
fn tables(name: &str, options: &[&str]) -> String {
    let ours = blockplane(None).unwrap();
    let patched = |patch: &str| format!("--patched={patch}={}", ours.display());
    let ended = Command::new(env!("CARGO_BIN_EXE_blockplane-experiments"))
        .args([name, "--time=20ms", "--warm-up=5ms", "--repetitions=1"])
        .arg("--size=16M")
        .args(["pile-up", "completion-syscall", "late-notify"].map(patched))
        .args(options)
        .arg("--server")
        .arg(&ours)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{name}: {said}");
    String::from_utf8(ended.stdout).unwrap()
}

/// Asserts that a row of a table has a figure in each column.
fn complete(tables: &str, row: &str) {
    let row = tables.lines().find(|line| line.starts_with(row));
    let row = row.unwrap_or_else(|| panic!("no row in {tables}"));
    assert!(
        row.split('|')
            .rev()
            .skip(1)
            .all(|cell| !cell.trim().is_empty() || cell.is_empty()),
        "{row}"
    );
}

#[test]
fn notify_measures_both_orders() {
    let tables = tables("notify", &["--backing=null"]);
    complete(&tables, "| 4k read, depth 1, 1 queue");
    complete(&tables, "| 4k read, depth 128, 4 queues");
    assert!(
        tables.contains("before it / after the submission"),
        "{tables}"
    );
}

#[test]
#[ignore = "full run only"]
fn other_published_results_have_all_rows() {
    for (name, rows) in [
        (
            "batch-limit",
            [
                "| 4k read, depth 1, 1 queue",
                "| 16k read, depth 128, 4 queues",
            ],
        ),
        (
            "completions",
            [
                "| 4k read, depth 1, 8 queues",
                "| 64k write, depth 16, 8 queues",
            ],
        ),
        (
            "handlers",
            ["| no kernel: dispatch one", "| 4k read, depth 32, 1 queue"],
        ),
        (
            "scsi",
            [
                "| 16k write, depth 16, 1 queue",
                "| 4k read, depth 32, 1 queue",
            ],
        ),
    ] {
        let tables = tables(name, &["--backing=tmpfs"]);
        for row in rows {
            complete(&tables, row);
        }
        // The program of that patch was not named.
        assert_eq!(
            tables.contains("not measured"),
            name == "handlers",
            "{tables}"
        );
    }
}

#[test]
#[ignore = "full run only"]
fn guests_beside_others_have_all_rows() {
    let rates = tables("neighbours", &["--backing=null"]);
    complete(&rates, "| null: unaligned reads of 4 KiB, another server");
    let ratios = tables("backup", &["--backing=tmpfs", "--size=4M"]);
    complete(&ratios, "| tmpfs: randwrite 4k, 1 queue, depth 32");
    if find_program("fio").is_some() {
        let rates = tables("nbd", &["--backing=null", "--time=100ms"]);
        assert!(rates.contains("| null: randwrite, depth 128"), "{rates}");
    }
}
