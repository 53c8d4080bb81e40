//! A disk that a PC boots by itself, by BIOS or by UEFI: GRUB, the guest's kernel and its initramfs, and room for the guest.
//!
//! The partition table is that of an MBR, as both firmwares read it. A BIOS runs the boot sector, which loads the rest of
//! GRUB from the gap before the first partition; UEFI runs `/EFI/BOOT/BOOTX64.EFI` of the EFI system partition, which is the
//! first. Either GRUB then reads the kernel from that partition by the firmware's driver for the disk.
//! It is no example of how to install GRUB.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use crate::cache::Cache;
use crate::error::{Error, Result, find_program, run};
use crate::grub;
use crate::initramfs::pattern;
use crate::kernel::KernelVersion;
use crate::parts::parts;
use crate::qemu::KERNEL_PARAMETERS;

const SECTOR: u64 = 512;
/// The EFI system partition: behind GRUB for a BIOS, at 1 MiB as usual.
const SYSTEM: Partition = Partition {
    kind: 0xef,
    first: 2048,
    sectors: (64 << 20) / SECTOR,
};
/// The bytes that a guest writes pieces of, as they are: Linux reads them faster than the firmware.
const PATTERN: Partition = Partition {
    kind: LINUX,
    first: SYSTEM.first + SYSTEM.sectors,
    sectors: (16 << 20) / SECTOR,
};
/// The partition at the end, for writes without a file system; before it is one for a file system.
const RAW_SECTORS: u64 = (32 << 20) / SECTOR;
/// The type of a partition of Linux.
const LINUX: u8 = 0x83;
/// Where the partition table is in the first sector; before it is code.
const TABLE_OFFSET: usize = 446;

struct Partition {
    kind: u8,
    first: u64,
    sectors: u64,
}

/// Makes a disk of `size_bytes` that boots into the scenarios, with the kernel of this machine's release or another's.
///
/// # Errors
/// Without GRUB or mtools, and whatever keeps the kernel from being had.
pub fn boot_disk(
    path: &Path,
    size_bytes: u64,
    scenarios: &str,
    kernel: Option<KernelVersion>,
) -> Result<()> {
    let parts = parts(kernel)?;
    let cache = Cache::lock()?;
    let scratch = cache.scratch()?;
    let disk = File::create(path).map_err(Error::io(format!("create {}", path.display())))?;
    let writing = || Error::io(format!("write {}", path.display()));
    disk.set_len(size_bytes).map_err(writing())?;

    let commands = format!(
        "echo GRUB loads the kernel\n\
         linux (hd0,msdos1)/vmlinuz {KERNEL_PARAMETERS} bp.scenarios={scenarios}\n\
         echo GRUB loads the initramfs\n\
         initrd (hd0,msdos1)/initramfs\n\
         echo GRUB starts the kernel\n\
         boot\n",
    );
    let bios = grub::bios(scratch.path(), &commands)?;
    let partitions = partitions(size_bytes / SECTOR);
    let sector = first_sector(&bios.boot_sector, &partitions);
    disk.write_all_at(&sector, 0)
        // The sector that the first one loads unless an installer tells it another.
        .and_then(|()| disk.write_all_at(&bios.core, SECTOR))
        .and_then(|()| disk.write_all_at(&pattern(), PATTERN.first * SECTOR))
        .map_err(writing())?;
    drop(disk);

    let uefi = grub::uefi(scratch.path(), &commands)?;
    make_file_system(path)?;
    for folder in ["::/EFI", "::/EFI/BOOT"] {
        run(mtool("mmd", path)?.arg(folder))?;
    }
    for (from, to) in [
        (&uefi, "::/EFI/BOOT/BOOTX64.EFI"),
        (&parts.kernel.vmlinuz(), "::/vmlinuz"),
        (&parts.initramfs.small, "::/initramfs"),
    ] {
        run(mtool("mcopy", path)?.arg(from).arg(to))?;
    }
    Ok(())
}

fn partitions(disk_sectors: u64) -> [Partition; 4] {
    let end = PATTERN.first + PATTERN.sectors;
    let raw = disk_sectors.saturating_sub(RAW_SECTORS);
    [
        SYSTEM,
        Partition {
            kind: LINUX,
            first: end,
            sectors: raw.saturating_sub(end),
        },
        Partition {
            kind: LINUX,
            first: raw,
            sectors: RAW_SECTORS,
        },
        PATTERN,
    ]
}

/// GRUB's boot sector with a partition table.
fn first_sector(code: &[u8], partitions: &[Partition]) -> Vec<u8> {
    let mut sector: Vec<u8> = code.iter().copied().take(TABLE_OFFSET).collect();
    sector.resize(TABLE_OFFSET, 0);
    for partition in partitions {
        // Cylinders, heads and sectors are not said: all is found by sector numbers.
        sector.extend([0, 0xfe, 0xff, 0xff, partition.kind, 0xfe, 0xff, 0xff]);
        for number in [partition.first, partition.sectors] {
            let number = u32::try_from(number).unwrap_or(u32::MAX);
            sector.extend(number.to_le_bytes());
        }
    }
    sector.resize(510, 0);
    sector.extend([0x55, 0xaa]);
    sector
}

/// An empty FAT16 in the first partition: clusters of 8 KiB.
fn make_file_system(disk: &Path) -> Result<()> {
    run(mtool("mformat", disk)?.args([
        "-v",
        "BLOCKPLANE",
        "-T",
        &SYSTEM.sectors.to_string(),
        "-H",
        &SYSTEM.first.to_string(),
        "-h",
        "16",
        "-s",
        "63",
        "-c",
        "16",
        "::",
    ]))?;
    Ok(())
}

/// A program of mtools for the disk's first partition.
fn mtool(name: &str, disk: &Path) -> Result<Command> {
    let mut command = Command::new(find_program(name, "mtools")?);
    let offset = SYSTEM.first * SECTOR;
    command
        .arg("-i")
        .arg(format!("{}@@{offset}", disk.display()));
    Ok(command)
}
