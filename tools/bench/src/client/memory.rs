//! The guest's memory: a memfd that both sides have mapped.
//!
//! The server reads and writes it at any time, so bytes are only accessed as atomics. Memory that is passed
//! to the kernel directly is named by pointer.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::error::{Error, Result};

/// Shared memory, of which every page is there; guest address 0 is its first byte.
#[derive(Debug)]
pub struct SharedMemory {
    fd: OwnedFd,
    base: NonNull<u8>,
    /// In bytes.
    pub len: usize,
}

// SAFETY: a mapping is not tied to a thread, and it is only accessed by atomics.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// `len` bytes of zeroes.
    ///
    /// # Errors
    /// [`Error::Io`] when memory or descriptors have run out.
    pub fn new(len: usize) -> Result<Self> {
        let doing = || format!("share {len} bytes of memory");
        let fd = memfd_create("bench", MemfdFlags::CLOEXEC).map_err(Error::io(doing()))?;
        ftruncate(&fd, len as u64).map_err(Error::io(doing()))?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping, which replaces nothing, of a file that only we can shrink.
        let base = unsafe { mmap(std::ptr::null_mut(), len, access, flags, &fd, 0) };
        let base = NonNull::new(base.map_err(Error::io(doing()))?.cast());
        let base = base.ok_or_else(|| Error::Unsuitable("mapped at address 0".to_owned()))?;
        Ok(SharedMemory { fd, base, len })
    }

    /// To share with the server.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Where `bytes` from `guest_addr` on are in this process: for the kernel, and what vhost-user calls a user address.
    ///
    /// # Panics
    /// When they are not all inside, as in all of the following.
    #[must_use]
    pub fn host_pointer(&self, guest_addr: usize, bytes: usize) -> *mut u8 {
        let end = guest_addr.checked_add(bytes);
        let is_inside = end.is_some_and(|end| end <= self.len);
        assert!(is_inside, "{bytes} bytes at {guest_addr:#x} are inside");
        self.base.as_ptr().wrapping_add(guest_addr)
    }

    /// `count` bytes from `guest_addr` on.
    #[must_use]
    pub fn u8s(&self, guest_addr: usize, count: usize) -> &[AtomicU8] {
        self.cells(guest_addr, count)
    }

    /// `count` 16-bit words from `guest_addr` on, which is aligned to them.
    #[must_use]
    pub fn u16s(&self, guest_addr: usize, count: usize) -> &[AtomicU16] {
        self.cells(guest_addr, count)
    }

    /// `count` 32-bit words.
    #[must_use]
    pub fn u32s(&self, guest_addr: usize, count: usize) -> &[AtomicU32] {
        self.cells(guest_addr, count)
    }

    /// `count` 64-bit words.
    #[must_use]
    pub fn u64s(&self, guest_addr: usize, count: usize) -> &[AtomicU64] {
        self.cells(guest_addr, count)
    }

    fn cells<T: Atomic>(&self, guest_addr: usize, count: usize) -> &[T] {
        let first = self.host_pointer(guest_addr, size_of::<T>() * count);
        assert!(guest_addr.is_multiple_of(align_of::<T>()), "aligned");
        // SAFETY: inside of the mapping, which lives as long as `self`, and aligned, since a mapping starts at a page. Any
        // bits are a value of an atomic integer, and the server's accesses are to it what another thread's are.
        unsafe { std::slice::from_raw_parts(first.cast(), count) }
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and all references into it borrowed `self`.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

/// The integers that `SharedMemory` lends out: any bits are a value of each.
trait Atomic {}
impl Atomic for AtomicU8 {}
impl Atomic for AtomicU16 {}
impl Atomic for AtomicU32 {}
impl Atomic for AtomicU64 {}
