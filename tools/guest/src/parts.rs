//! The kernel and the initramfs of guests, made once in a process.

use std::sync::{Arc, Mutex, PoisonError};

use crate::cache::Cache;
use crate::error::Result;
use crate::initramfs::{self, Initramfs};
use crate::kernel::{Kernel, KernelVersion, kernel};

/// What guests boot from.
pub(crate) struct Parts {
    pub(crate) kernel: Kernel,
    pub(crate) initramfs: Initramfs,
}

/// With the kernel of this machine's release, or of another. A failure is not kept: the next caller tries again and gets
/// the error itself.
pub(crate) fn parts(version: Option<KernelVersion>) -> Result<Arc<Parts>> {
    static PARTS: Mutex<Vec<(Option<KernelVersion>, Arc<Parts>)>> = Mutex::new(Vec::new());
    let mut made = PARTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, parts)) = made.iter().find(|(of, _)| *of == version) {
        return Ok(Arc::clone(parts));
    }
    let cache = Cache::lock()?;
    let kernel = kernel(&cache, version)?;
    let initramfs = initramfs::build(&cache, &kernel)?;
    let parts = Arc::new(Parts { kernel, initramfs });
    made.push((version, Arc::clone(&parts)));
    Ok(parts)
}
