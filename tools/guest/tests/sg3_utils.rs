//! Answers of SCSI disks to a real guest with the programs that administrators use (sg3-utils): through the
//! LSI 53C895A and through a virtio SCSI controller. What must be answered is in `src/init/sg3.sh`.

#![allow(clippy::unwrap_used)] // the lint's exception for tests does not reach helper functions

use std::time::Duration;

use guest::{Boot, Device, Report, Scenario, Server, ServerOptions};

/// The script relies on it.
const SIZE_BYTES: u64 = 64 << 20;

/// It takes half a minute on an idle core: each of the programs is loaded by an emulated processor.
const LIMIT: Duration = Duration::from_secs(600);

fn ask(device: Device) -> Report {
    let folder = guest::disk_folder().unwrap();
    let mut options = ServerOptions::new(&folder.path().join("disk.img"), SIZE_BYTES);
    options.monitor = true;
    options.device = device;
    let server = Server::start(&guest::blockplane().unwrap(), &options)
        .unwrap_or_else(|error| panic!("{error}"));
    let report = Boot::new(&server, Scenario::Sg3Utils)
        .limit(LIMIT)
        .run()
        .unwrap_or_else(|error| panic!("{error}"));
    server.stop().unwrap_or_else(|error| panic!("{error}"));
    report
}

/// Asserts that the script checked everything: one that ends early would pass without checks.
fn assert_checked(report: &Report) {
    let fact = |key: &str| report.fact(key).unwrap().parse::<usize>().unwrap();
    assert_eq!(fact("opcodes"), 44, "operation codes in the table");
    assert_eq!(fact("answers"), 33, "commands whose data was checked");
    assert_eq!(
        fact("refusals"),
        115,
        "refusals whose sense data was checked"
    );
    assert_eq!(report.steps().len(), 15);
}

#[test]
fn disks_of_a_virtio_controller_conform_to_spc_and_sbc() {
    assert_checked(&ask(Device::Controller { slow: None }));
}

#[test]
fn disks_of_a_host_adapter_conform_to_spc_and_sbc() {
    assert_checked(&ask(Device::HostAdapter { slow: None }));
}
