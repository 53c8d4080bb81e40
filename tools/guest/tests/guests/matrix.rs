//! A matrix of real front-ends: versions of QEMU, firmware, devices and kernels, each combination a test.
//!
//! The firmware loads a boot loader from the served disk, and that a Linux, which works while the daemon is killed, and finds at its
//! second boot what it wrote at its first. docs/guests.md has the results, and why some combinations cannot exist.

use guest::{Boot, Device, KernelVersion, QemuVersion, Report};

use crate::{disk, kill_again_and_again, serve};

const DISK_BYTES: u64 = 256 << 20;
const QUEUES: u16 = 2;
const KILLS: u64 = 3;
/// 11 sizes, 8 small files, and one by direct I/O.
const FILES: usize = 11 + 8 + 1;

#[derive(Clone, Copy, PartialEq)]
enum Firmware {
    Bios,
    Uefi,
}

/// What the guest has its disk behind.
#[derive(Clone, Copy, PartialEq)]
enum Disk {
    Split,
    /// Firmware has no driver for packed queues and uses split ones.
    Packed,
    Scsi,
    Lsi,
}

fn passes(qemu: QemuVersion, firmware: Firmware, device: Disk, kernel: KernelVersion) {
    let (folder, mut options) = disk(DISK_BYTES);
    guest::boot_disk(&options.disk, DISK_BYTES, "installed", Some(kernel)).unwrap();
    options.num_queues = QUEUES;
    options.packed = device == Disk::Packed;
    options.device = match device {
        Disk::Split | Disk::Packed => Device::VirtioBlk,
        Disk::Scsi => Device::Controller,
        Disk::Lsi => Device::HostAdapter,
    };
    // QEMU's vfio-user does not connect again, and its vhost-user-scsi since 8.2.
    let kills = match device {
        Disk::Lsi => 0,
        Disk::Scsi if qemu == QemuVersion::V7_2 => 0,
        _ => KILLS,
    };
    let server = serve(&options);
    let boot = |number| {
        let mut boot = Boot::new(&server, "installed").qemu(qemu).from_disk();
        if firmware == Firmware::Uefi {
            boot = boot.uefi(folder.path());
        }
        if device == Disk::Lsi {
            // SeaBIOS has a driver for this adapter behind the older chipset's interrupts.
            boot = boot.pc();
        }
        if kills > 0 {
            boot = boot.reconnecting();
        }
        let report = boot.run_asking(|_, _| kill_again_and_again(&server, kills));
        let report = report.unwrap();
        check(&report, number, firmware, device, kernel);
        report
    };
    let first = boot("first");
    assert_eq!(first.idle_writer(2 * QUEUES), None);
    let second = boot("second");
    assert_eq!(first.sums().len(), FILES);
    assert_eq!(first.sums(), second.sums());
    server.stop().unwrap();
}

/// Whether the guest is what the cell says.
fn check(report: &Report, number: &str, firmware: Firmware, device: Disk, kernel: KernelVersion) {
    let fact = |name| report.fact(name).unwrap();
    assert_eq!(fact("boot"), number);
    let is_uefi = firmware == Firmware::Uefi;
    assert_eq!(fact("firmware"), if is_uefi { "uefi" } else { "bios" });
    assert_eq!(fact("size_bytes"), "268435456");
    let (driver, queues) = match device {
        Disk::Split | Disk::Packed => ("virtio_blk", "2"),
        Disk::Scsi => ("virtio_scsi", "2"),
        Disk::Lsi => ("sym53c8xx", "1"),
    };
    assert_eq!([fact("driver"), fact("queues")], [driver, queues]);
    if device != Disk::Lsi {
        let packed = if device == Disk::Packed { "1" } else { "0" };
        assert_eq!(fact("packed"), packed);
    }
    // The loader's kernel, and the cell's.
    let command_line = fact("command_line");
    let begin = "BOOT_IMAGE=(hd0,msdos1)/vmlinuz ";
    assert!(command_line.starts_with(begin), "{command_line}");
    let release = fact("kernel");
    let begin = format!("{}.", kernel.name());
    assert!(release.starts_with(&begin), "{release}");
}

/// The newest of everything, and the firmware with the most drivers.
#[test]
fn qemu_11_1_uefi_packed_linux_6_12() {
    passes(
        QemuVersion::V11_1,
        Firmware::Uefi,
        Disk::Packed,
        KernelVersion::V6_12,
    );
}

macro_rules! cells {
    ($kernel:ident: $($name:ident $qemu:ident $firmware:ident $disk:ident,)*) => {$(
        #[test]
        #[ignore = "full run only"]
        fn $name() {
            passes(QemuVersion::$qemu, Firmware::$firmware, Disk::$disk, KernelVersion::$kernel);
        }
    )*};
}

mod linux_6_1 {
    use super::*;

    cells! { V6_1:
        qemu_7_2_bios_split V7_2 Bios Split,
        qemu_7_2_bios_packed V7_2 Bios Packed,
        qemu_7_2_bios_scsi V7_2 Bios Scsi,
        qemu_7_2_uefi_split V7_2 Uefi Split,
        qemu_7_2_uefi_packed V7_2 Uefi Packed,
        qemu_7_2_uefi_scsi V7_2 Uefi Scsi,
        qemu_10_0_bios_split V10_0 Bios Split,
        qemu_10_0_bios_packed V10_0 Bios Packed,
        qemu_10_0_bios_scsi V10_0 Bios Scsi,
        qemu_10_0_uefi_split V10_0 Uefi Split,
        qemu_10_0_uefi_packed V10_0 Uefi Packed,
        qemu_10_0_uefi_scsi V10_0 Uefi Scsi,
        qemu_11_1_bios_split V11_1 Bios Split,
        qemu_11_1_bios_packed V11_1 Bios Packed,
        qemu_11_1_bios_scsi V11_1 Bios Scsi,
        qemu_11_1_bios_lsi V11_1 Bios Lsi,
        qemu_11_1_uefi_split V11_1 Uefi Split,
        qemu_11_1_uefi_packed V11_1 Uefi Packed,
        qemu_11_1_uefi_scsi V11_1 Uefi Scsi,
    }
}

mod linux_6_12 {
    use super::*;

    cells! { V6_12:
        qemu_7_2_bios_split V7_2 Bios Split,
        qemu_7_2_bios_packed V7_2 Bios Packed,
        qemu_7_2_bios_scsi V7_2 Bios Scsi,
        qemu_7_2_uefi_split V7_2 Uefi Split,
        qemu_7_2_uefi_packed V7_2 Uefi Packed,
        qemu_7_2_uefi_scsi V7_2 Uefi Scsi,
        qemu_10_0_bios_split V10_0 Bios Split,
        qemu_10_0_bios_packed V10_0 Bios Packed,
        qemu_10_0_bios_scsi V10_0 Bios Scsi,
        qemu_10_0_uefi_split V10_0 Uefi Split,
        qemu_10_0_uefi_packed V10_0 Uefi Packed,
        qemu_10_0_uefi_scsi V10_0 Uefi Scsi,
        qemu_11_1_bios_split V11_1 Bios Split,
        qemu_11_1_bios_packed V11_1 Bios Packed,
        qemu_11_1_bios_scsi V11_1 Bios Scsi,
        qemu_11_1_bios_lsi V11_1 Bios Lsi,
        qemu_11_1_uefi_split V11_1 Uefi Split,
        qemu_11_1_uefi_scsi V11_1 Uefi Scsi,
    }
}
