//! The disk under libiscsi's conformance suite, `iscsi-test-cu` (Debian: `libiscsi-bin`).
//!
//! The suite speaks iSCSI, so there is as much of an iSCSI target here as it takes. What the suite says of
//! iSCSI itself does not count.
//!
//! Where the program is not installed the tests [report](test_support::report) that they do not run. `ISCSI_TEST_CU` is another place to
//! look for it.

mod pdu;
mod session;

use std::process::Command;
use std::sync::Arc;

use block::Geometry;
use scsi::UnitOptions;
use session::TARGET_NAME;

use crate::rig::{Kept, LUN, Rig, geometry, options};

/// Enough for what the suite calls a disk.
const SIZE: u64 = 64 << 20;

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
fn results(output: &str) -> Vec<(&str, &str, bool)> {
    let mut all: Vec<(&str, &str, bool)> = Vec::new();
    let mut suite = "";
    for line in output.lines() {
        let test = line.strip_prefix("  Test: ");
        if let Some(name) = line.strip_prefix("Suite: ") {
            suite = name.trim();
        } else if let Some((name, _)) = test.and_then(|rest| rest.split_once(" ...")) {
            all.push((suite, name, true));
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
        // The suite asks for reservations that are kept.
        reservation_store: Some(Arc::<Kept>::default()),
        ..options()
    }
}

/// What these tests say of a disk; `None`: the suite is not there.
fn say(tests: &str, disk: &UnitOptions, physical: u32) -> Option<String> {
    let mut suite = suite()?;
    let geometry = Geometry {
        size: SIZE,
        logical_block_size: disk.logical_block_size,
        physical_block_size: physical,
        ..geometry()
    };
    let mut rig = Rig::of(disk.clone(), geometry);
    // That it has no space shows by its zeroes.
    (rig.discarded, rig.segment) = (0, 4096);
    let address = session::serve(rig);
    let url = format!("iscsi://{address}/{TARGET_NAME}/{LUN}");
    // Twice the same: two ways to one disk.
    let flags = ["--dataloss", "--allow-sanitize", "--verbose", "--test"];
    let output = suite.args(flags).args([tests, &url, &url]).output();
    Some(String::from_utf8_lossy(&output.unwrap().stdout).into_owned())
}

/// A disk, its physical blocks, the suites that it answers in its own way, and its exceptions.
type Variant = (
    UnitOptions,
    u32,
    &'static [&'static str],
    &'static [Exception],
);

const LARGE_BLOCKS: &[&str] = &[
    "SCSI.ReadCapacity16",
    "SCSI.Read10",
    "SCSI.Write10",
    "SCSI.WriteSame10",
    "SCSI.Verify10",
    "SCSI.CompareAndWrite",
    "SCSI.OrWrite",
    "SCSI.Unmap",
];

const PROVISIONING: &[&str] = &[
    "SCSI.Inquiry",
    "SCSI.ReadCapacity16",
    "SCSI.GetLBAStatus",
    "SCSI.Unmap",
    "SCSI.WriteSame10",
    "SCSI.WriteSame16",
];

fn variants() -> [Variant; 4] {
    let thick = UnitOptions {
        thin: false,
        ..blocks_of(512)
    };
    [
        (blocks_of(512), 4096, &["SCSI"], &[]),
        (
            blocks_of(512),
            512,
            &["SCSI.ReadCapacity16", "SCSI.Unmap"],
            &[],
        ),
        (blocks_of(4096), 4096, LARGE_BLOCKS, LARGE_EXCEPTIONS),
        (thick, 512, PROVISIONING, &[]),
    ]
}

/// Runs these tests of the suite; how many they are. `None`: the suite is not there.
fn check_conformance(variant: &Variant, tests: &str) -> Option<usize> {
    let (disk, physical, _, exceptions) = variant;
    let text = say(tests, disk, *physical)?;
    let results = results(&text);
    let failed: Vec<_> = results
        .iter()
        .filter(|(suite, name, passed)| {
            let mut known = EXCEPTIONS.iter().chain(*exceptions);
            !passed && !known.any(|(known, test, _)| suite == known && name == test)
        })
        .collect();
    assert!(failed.is_empty(), "{failed:?}\n{text}");
    assert!(!results.is_empty(), "{tests}: {text}");
    Some(results.len())
}

#[test]
fn a_disk_conforms_and_others_do_where_they_differ() {
    for variant in variants() {
        for tests in variant.2 {
            let Some(count) = check_conformance(&variant, tests) else {
                return;
            };
            assert!(*tests != "SCSI" || count > FEWEST, "only {count}");
        }
    }
}

#[test]
#[ignore = "full run only"]
fn all_disks_conform() {
    for variant in variants() {
        let count = check_conformance(&variant, "SCSI");
        assert!(count.is_none_or(|count| count > FEWEST), "only {count:?}");
    }
}

#[test]
fn a_read_only_disk_conforms() {
    let disk = UnitOptions {
        read_only: true,
        ..blocks_of(512)
    };
    if let Some(text) = say("ALL.ReadOnly", &disk, 512) {
        let results = results(&text);
        assert!(results.iter().all(|(.., passed)| *passed), "{text}");
        assert!(!results.is_empty() && !text.contains("SKIPPED"), "{text}");
    }
}
