//! The disk under libiscsi's conformance suite, `iscsi-test-cu` (Debian: `libiscsi-bin`).
//!
//! The suite speaks iSCSI, so there is as much of an iSCSI target here as it takes. What the suite says of
//! iSCSI itself does not count.
//!
//! Where the program is not installed the tests [report](test_report) that they do not run. `ISCSI_TEST_CU` is another place to
//! look for it.

mod pdu;
mod server;
mod session;

use std::process::Command;

use scsi::UnitOptions;
use server::{LUN, Server, TARGET_NAME};

/// A suite, a test of it that fails, and why: not for what the disk does.
type Exception = (&'static str, &'static str, &'static str);

const EXCEPTIONS: &[Exception] = &[
    (
        "CompareAndWrite",
        "Simple",
        "1.19 puts 256 blocks into a byte",
    ),
    (
        "CompareAndWrite",
        "Miscompare",
        "1.19 puts 256 blocks into a byte",
    ),
    (
        "CompareAndWrite",
        "InvalidDataOutSize",
        "newer ones do not change the command as they mean to",
    ),
    (
        "GetLBAStatus",
        "UnmapSingle",
        "it asks for one block, and wants the next physical one",
    ),
];

const DATA_OF_512: &str = "1.19 brings 512 bytes, however many a block has";

/// More of them, with blocks of 4096 bytes.
const LARGE_EXCEPTIONS: &[Exception] = &[
    ("ProutReserve", "AccessEA", DATA_OF_512),
    ("ProutReserve", "AccessWE", DATA_OF_512),
    ("ProutReserve", "AccessEARO", DATA_OF_512),
    ("ProutReserve", "AccessWERO", DATA_OF_512),
    ("ProutReserve", "AccessEAAR", DATA_OF_512),
    ("ProutReserve", "AccessWEAR", DATA_OF_512),
    ("Write10", "Async", DATA_OF_512),
    ("MultipathIO", "CompareAndWrite", DATA_OF_512),
];

/// The suite's tests that are there in all its versions, roughly.
const FEWEST: usize = 180;

fn suite() -> Option<Command> {
    let program = std::env::var("ISCSI_TEST_CU").unwrap_or_else(|_| "iscsi-test-cu".to_owned());
    match Command::new(&program).arg("--list").output() {
        Ok(_) => Some(Command::new(program)),
        Err(error) => {
            test_support::report::not_run(&format!("no {program} (Debian: libiscsi-bin): {error}"));
            None
        }
    }
}

/// Suite and name of each test, and whether it passed.
fn results(output: &str) -> Vec<(String, String, bool)> {
    let mut all: Vec<(String, String, bool)> = Vec::new();
    let mut suite = "";
    for line in output.lines() {
        if let Some(name) = line.strip_prefix("Suite: ") {
            suite = name.trim();
        } else if let Some((name, _)) = line
            .strip_prefix("  Test: ")
            .and_then(|rest| rest.split_once(" ..."))
        {
            all.push((suite.to_owned(), name.to_owned(), true));
        }
        if (line.starts_with("FAILED") || line.contains("...FAILED"))
            && let Some((.., passed)) = all.last_mut()
        {
            *passed = false;
        }
    }
    all
}

fn blocks_of(bytes: u32) -> UnitOptions {
    UnitOptions {
        logical_block_size: bytes,
        ..UnitOptions::default()
    }
}

/// What these tests say of a disk; `None`: the suite is not there.
fn say(tests: &str, disk: UnitOptions, physical: u32) -> Option<String> {
    let mut suite = suite()?;
    let address = Server::start(disk, physical);
    let url = format!("iscsi://{address}/{TARGET_NAME}/{LUN}");
    // Twice the same: two ways to one disk.
    let output = suite
        .args([
            "--test",
            tests,
            "--dataloss",
            "--allow-sanitize",
            "--verbose",
        ])
        .args([&url, &url])
        .output()
        .unwrap();
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn conforms(disk: UnitOptions, physical: u32, more_exceptions: &[Exception]) {
    let Some(text) = say("ALL", disk, physical) else {
        return;
    };
    let of_scsi: Vec<_> = results(&text)
        .into_iter()
        .filter(|(suite, ..)| !suite.starts_with("iSCSI"))
        .collect();
    let failed: Vec<_> = of_scsi
        .iter()
        .filter(|(suite, name, passed)| {
            let mut known = EXCEPTIONS.iter().chain(more_exceptions);
            !passed && !known.any(|(known, test, _)| suite == known && name == test)
        })
        .collect();
    assert!(failed.is_empty(), "{failed:?}\n{text}");
    assert!(of_scsi.len() > FEWEST, "only {}:\n{text}", of_scsi.len());
}

#[test]
fn small_blocks_on_small_blocks() {
    conforms(blocks_of(512), 512, &[]);
}

#[test]
fn small_blocks_on_large_ones() {
    conforms(blocks_of(512), 4096, &[]);
}

#[test]
fn large_blocks() {
    conforms(blocks_of(4096), 4096, LARGE_EXCEPTIONS);
}

#[test]
fn a_disk_without_thin_provisioning() {
    let disk = UnitOptions {
        thin: false,
        ..blocks_of(512)
    };
    conforms(disk, 512, &[]);
}

#[test]
fn a_read_only_disk() {
    let disk = UnitOptions {
        read_only: true,
        ..blocks_of(512)
    };
    if let Some(text) = say("ALL.ReadOnly", disk, 512) {
        let results = results(&text);
        assert!(results.iter().all(|(.., passed)| *passed), "{text}");
        assert!(!results.is_empty() && !text.contains("SKIPPED"), "{text}");
    }
}
