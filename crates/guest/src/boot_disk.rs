//! A disk that a PC's firmware boots: GRUB, the guest's kernel and its initramfs, without a file system.
//!
//! GRUB's boot sector is the disk's first and loads the sectors behind it, which hold the rest of GRUB with the
//! commands below; these name the kernel and the initramfs by where they are on the disk. So everything comes through the
//! firmware's driver for the disk. The disk has no partitions and is no example of how to install GRUB.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use crate::cache::Cache;
use crate::error::{Error, Result, find_program, run};
use crate::qemu::KERNEL_PARAMETERS;
use crate::scenario::{Scenario, parts};

const SECTOR: u64 = 512;
/// Where the kernel is: far behind GRUB.
const KERNEL_SECTOR: u64 = 2048;
/// GRUB for a BIOS, as Debian's grub-pc-bin has it.
const GRUB: &str = "/usr/lib/grub/i386-pc";
/// What reads disks, and what boots Linux.
const GRUB_MODULES: [&str; 2] = ["biosdisk", "linux"];

/// Makes a disk of `size_bytes` that boots into `scenario`.
///
/// # Errors
/// [`Error::MissingProgram`] without GRUB, and whatever keeps the kernel from being had.
pub fn boot_disk(path: &Path, size_bytes: u64, scenario: Scenario) -> Result<()> {
    let parts = parts()?;
    let disk = File::create(path).map_err(Error::io(format!("create {}", path.display())))?;
    let writing = || Error::io(format!("write {}", path.display()));
    disk.set_len(size_bytes).map_err(writing())?;

    let kernel = read(&parts.kernel.vmlinuz)?;
    let initramfs = read(&parts.initramfs)?;
    let initramfs_sector = KERNEL_SECTOR + sectors(&kernel);
    disk.write_all_at(&kernel, KERNEL_SECTOR * SECTOR)
        .and_then(|()| disk.write_all_at(&initramfs, initramfs_sector * SECTOR))
        .map_err(writing())?;

    let commands = format!(
        "linux (hd0){KERNEL_SECTOR}+{} {KERNEL_PARAMETERS} bp.scenario={}\n\
         initrd (hd0){initramfs_sector}+{}\n\
         boot\n",
        sectors(&kernel),
        scenario.script(),
        sectors(&initramfs),
    );
    let core = core_image(&commands)?;
    disk.write_all_at(&read(&Path::new(GRUB).join("boot.img"))?, 0)
        // The sector that the first one loads unless an installer tells it another.
        .and_then(|()| disk.write_all_at(&core, SECTOR))
        .map_err(writing())
}

/// GRUB without its first sector, which carries out `commands`.
fn core_image(commands: &str) -> Result<Vec<u8>> {
    let package = "grub-pc-bin grub-common";
    let program = find_program("grub-mkimage", package)?;
    if !Path::new(GRUB).join("boot.img").is_file() {
        return Err(Error::MissingProgram {
            program: format!("{GRUB}/boot.img"),
            package,
        });
    }
    let cache = Cache::lock()?;
    let scratch = cache.scratch()?;
    let config = scratch.path().join("commands");
    std::fs::write(&config, commands).map_err(Error::io(format!("write {}", config.display())))?;
    let core = scratch.path().join("core.img");
    run(Command::new(program)
        .args([
            "--format",
            "i386-pc",
            "--prefix",
            "(hd0)/",
            "--directory",
            GRUB,
        ])
        .arg("--config")
        .arg(&config)
        .arg("--output")
        .arg(&core)
        .args(GRUB_MODULES))?;
    read(&core)
}

fn sectors(content: &[u8]) -> u64 {
    (content.len() as u64).div_ceil(SECTOR)
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(Error::io(format!("read {}", path.display())))
}
