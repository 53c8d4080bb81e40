//! Dirty log: the pages of the guest's memory that were written, for a front-end that copies them while the guest runs.
//!
//! A bit for each page of 4096 bytes, from guest address 0 on, in memory that the front-end shares. The device sets bits,
//! the front-end clears them and copies those pages. A page is marked after it was written and before the guest is notified: a
//! front-end that clears the bit finds the written data in the page, and one that copied the page too early finds the bit the next
//! time. `dirty_tracker.rs` decides which pages are marked.

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::memory::GuestMemory;
use crate::store_hook::before_store;

/// Bytes that one bit is for (`VHOST_LOG_PAGE`), whatever the size of the guest's pages.
pub const LOG_PAGE_BYTES: u64 = 4096;

/// Pages of one byte of the log.
const PAGES_PER_BYTE: u64 = 8;

/// A front-end's log of dirty pages.
pub struct DirtyLog {
    host: NonNull<u8>,
    len_bytes: u64,
    _owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the log is memory shared with another process, which is accessed with atomics only and stays mapped as long
// as `_owner`; no thread is special to it.
unsafe impl Send for DirtyLog {}
// SAFETY: as for `Send`.
unsafe impl Sync for DirtyLog {}

impl fmt::Debug for DirtyLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DirtyLog")
            .field("host", &self.host)
            .field("len_bytes", &self.len_bytes)
            .finish_non_exhaustive()
    }
}

impl DirtyLog {
    /// A log of `len_bytes` at `host`.
    ///
    /// # Safety
    /// So many bytes stay mapped there, readable and writable, as long as `owner` lives, and no code in this process holds a Rust
    /// reference to them.
    pub unsafe fn new(
        host: NonNull<u8>,
        len_bytes: u64,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> DirtyLog {
        DirtyLog {
            host,
            len_bytes,
            _owner: owner,
        }
    }

    /// Bytes of a log for all pages of `memory`.
    pub fn needed_bytes(memory: &GuestMemory) -> u64 {
        let last = memory.regions().last();
        last.map_or(0, |region| {
            let last_page = (region.guest_addr + (region.len - 1)) / LOG_PAGE_BYTES;
            last_page / PAGES_PER_BYTE + 1
        })
    }

    /// Its length in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Marks the pages of `len` bytes at `guest_addr`. Pages beyond the log are ignored.
    pub fn mark(&self, guest_addr: u64, len: u64) {
        let Some(last_addr) = len.checked_sub(1) else {
            return;
        };
        let last = guest_addr.saturating_add(last_addr) / LOG_PAGE_BYTES;
        let mut page = guest_addr / LOG_PAGE_BYTES;
        while page <= last && page / PAGES_PER_BYTE < self.len_bytes {
            let byte = page / PAGES_PER_BYTE;
            let (low, high) = (page % PAGES_PER_BYTE, (last - byte * PAGES_PER_BYTE).min(7));
            self.set_bits_of_byte(byte, 0xff << low & 0xff >> (7 - high));
            page = (byte + 1) * PAGES_PER_BYTE;
        }
    }

    /// Marks all of `memory`.
    pub fn mark_all(&self, memory: &GuestMemory) {
        for region in memory.regions() {
            self.mark(region.guest_addr, region.len);
        }
    }

    /// Sets bits of a byte inside the log. Release: a front-end that reads them sees what was written to the pages before.
    fn set_bits_of_byte(&self, byte: u64, bits: u8) {
        debug_assert!(byte < self.len_bytes);
        before_store();
        // Inside of what is mapped, and so fits.
        let offset = usize::try_from(byte).unwrap_or(usize::MAX);
        let at = self.host.as_ptr().wrapping_add(offset);
        // SAFETY: inside the log, which stays mapped as long as `self`; all accesses are atomic.
        let byte = unsafe { AtomicU8::from_ptr(at) };
        if bits == 0xff {
            byte.store(bits, Ordering::Release);
        } else {
            byte.fetch_or(bits, Ordering::Release);
        }
    }
}
