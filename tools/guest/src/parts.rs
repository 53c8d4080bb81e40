//! The kernel and the initramfs of guests, made once in a process.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::cache::Cache;
use crate::error::Result;
use crate::initramfs::{self, ExtraPackage};
use crate::kernel::{Kernel, KernelVersion, kernel};

/// What guests boot from.
pub(crate) struct Parts {
    pub(crate) kernel: Kernel,
    pub(crate) initramfs: PathBuf,
}

/// With the kernel of this machine's release, or of another. A failure is not kept: the next caller tries again and gets
/// the error itself.
pub(crate) fn parts(version: Option<KernelVersion>) -> Result<&'static Parts> {
    static PARTS: [OnceLock<Parts>; 1 + KernelVersion::ALL.len()] =
        [const { OnceLock::new() }; 1 + KernelVersion::ALL.len()];
    let (index, name) = match version {
        None => (0, "initramfs.cpio".to_owned()),
        Some(version) => (
            1 + version as usize,
            format!("initramfs-{}.cpio", version.name()),
        ),
    };
    let slot = &PARTS[index];
    if let Some(parts) = slot.get() {
        return Ok(parts);
    }
    let cache = Cache::lock()?;
    // Another thread may have made them while we waited for the lock.
    if let Some(parts) = slot.get() {
        return Ok(parts);
    }
    let kernel = kernel(&cache, version)?;
    let initramfs = initramfs::build(&cache, &kernel, &name)?;
    Ok(slot.get_or_init(|| Parts { kernel, initramfs }))
}

/// The initramfs with the programs of a package besides; made once in a process, as [`parts`] are.
pub(crate) fn initramfs_with(parts: &Parts, extra: ExtraPackage) -> Result<&'static Path> {
    static MADE: [OnceLock<PathBuf>; ExtraPackage::ALL.len()] =
        [const { OnceLock::new() }; ExtraPackage::ALL.len()];
    let cache = Cache::lock()?;
    let slot = &MADE[extra as usize];
    if let Some(initramfs) = slot.get() {
        return Ok(initramfs);
    }
    let initramfs = initramfs::build_with(&cache, &parts.initramfs, extra)?;
    Ok(slot.get_or_init(|| initramfs))
}
