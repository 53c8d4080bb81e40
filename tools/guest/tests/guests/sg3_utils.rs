//! Answers of SCSI disks to a real guest with the programs that administrators use (sg3-utils): through the
//! LSI 53C895A and through a virtio SCSI controller. What must be answered is in `src/init/sg3.sh`.

use guest::{Boot, Device};

use crate::{disk, serve};

/// Asserts that the script checked everything: one that ends early would pass without checks.
fn conforms(device: Device) {
    // The script relies on this size.
    let (_folder, mut options) = disk(64 << 20);
    options.monitor = true;
    options.device = device;
    let server = serve(&options);
    let report = Boot::new(&server, "sg3").run().unwrap();
    server.stop().unwrap();
    for (fact, expected) in [
        // Operation codes in the table; commands whose data was checked; refusals whose sense data was.
        ("opcodes", "44"),
        ("answers", "33"),
        ("refusals", "115"),
    ] {
        assert_eq!(report.fact(fact), Some(expected), "{fact}");
    }
    assert_eq!(report.steps().len(), 15);
}

#[test]
#[ignore = "full run only"]
fn disks_of_a_virtio_controller_conform_to_spc_and_sbc() {
    conforms(Device::Controller);
}

#[test]
#[ignore = "full run only"]
fn disks_of_a_host_adapter_conform_to_spc_and_sbc() {
    conforms(Device::HostAdapter);
}
