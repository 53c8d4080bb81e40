//! Cells of the matrix of front-ends that differ most from what the other tests run; `cargo xtask guests --all` runs all.

use guest::matrix::{self, Cell, Device, Reconnection, Verdict};
use guest::{Firmware, KernelVersion, Progress, QemuVersion};

/// 12 sizes, 24 small files, and one by direct I/O.
const FILES: usize = 12 + 24 + 1;

fn passes(qemu: QemuVersion, firmware: Firmware, device: Device) {
    let cell = Cell {
        qemu,
        firmware,
        device,
        kernel: KernelVersion::V6_12,
    };
    let program = guest::blockplane().unwrap_or_else(|error| panic!("{error}"));
    let outcome = matrix::run_cell(&program, cell, &Progress::start(cell.to_string()));
    match outcome.verdict {
        Verdict::Passed(passed) => {
            assert_eq!(passed.sums, FILES);
            assert!(matches!(passed.reconnection, Reconnection::Survived(times) if times > 0));
        }
        Verdict::Failed(why) => panic!("{cell}: {why}"),
        Verdict::NotApplicable(reason) => panic!("{cell}: {reason}"),
    }
}

#[test]
fn a_bios_of_qemu_10_boots_a_virtio_disk_that_outlives_its_daemon() {
    passes(QemuVersion::V10_0, Firmware::SeaBios, Device::BlkSplit);
}

#[test]
fn uefi_of_qemu_10_boots_a_scsi_disk_that_outlives_its_daemon() {
    passes(QemuVersion::V10_0, Firmware::Ovmf, Device::Scsi);
}

/// The firmware uses split queues, and Linux packed ones.
#[test]
fn uefi_of_qemu_11_boots_a_virtio_disk_whose_driver_uses_packed_queues() {
    passes(QemuVersion::V11_1, Firmware::Ovmf, Device::BlkPacked);
}
