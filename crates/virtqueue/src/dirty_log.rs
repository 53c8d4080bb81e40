//! Dirty log: the pages of the guest's memory that were written, for a front-end that copies them while the guest runs.
//!
//! A bit for each page of 4096 bytes, from guest address 0 on, in memory that the front-end shares. The device sets bits,
//! the front-end clears them and copies those pages. A page is marked after it was written and before the guest is notified: a
//! front-end that clears the bit finds the written data in the page, and one that copied the page too early finds the bit the next
//! time. `dirty_tracker.rs` decides which pages are marked.
//!
//! Bits are set without reading them first: one that looks set may be just being cleared by a front-end that has copied the page before the
//! device wrote it. Where the log has an aligned word, one store marks up to 64 pages.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::memory::GuestMemory;
use crate::store_hook::before_store;

/// Bytes that one bit is for (`VHOST_LOG_PAGE`), whatever the size of the guest's pages.
pub const LOG_PAGE_BYTES: u64 = 4096;

/// Pages of one byte of the log.
const PAGES_PER_BYTE: u64 = 8;

/// Bytes of the log that are written at once.
const WORD_BYTES: u64 = size_of::<u64>() as u64;

/// A front-end's log of dirty pages.
pub struct DirtyLog {
    host: NonNull<u8>,
    len_bytes: u64,
    /// The bytes that are aligned words, and always accessed as words. Those before and after them, if any, are accessed as bytes.
    words: Range<u64>,
    all_marked: Mutex<AllMarked>,
    _owner: Arc<dyn Any + Send + Sync>,
}

/// How often all memory was marked.
#[derive(Debug, Default)]
struct AllMarked {
    begun: u64,
    /// The last time, counted by `begun`, that is finished.
    finished: u64,
    /// The memory that was marked then.
    memory: Weak<GuestMemory>,
}

/// A moment, for [`DirtyLog::was_all_marked_since`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct AllMarkedTicket(u64);

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
        let begin = (host.as_ptr().align_offset(align_of::<u64>()) as u64).min(len_bytes);
        let end = begin + (len_bytes - begin) / WORD_BYTES * WORD_BYTES;
        DirtyLog {
            host,
            len_bytes,
            words: begin..end,
            all_marked: Mutex::default(),
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
            // What one store covers: an aligned word, or a byte before the first or behind the last word.
            let (unit_start, unit_bytes) = match self.words.contains(&byte) {
                true => (byte - (byte - self.words.start) % WORD_BYTES, WORD_BYTES),
                false => (byte, 1),
            };
            let (first_page, pages) = (unit_start * PAGES_PER_BYTE, unit_bytes * PAGES_PER_BYTE);
            let (low, high) = (page - first_page, (last - first_page).min(pages - 1));
            let bits = u64::MAX << low & u64::MAX >> (63 - high);
            match unit_bytes {
                1 => self.set_bits_of_byte(unit_start, bits.to_le_bytes()[0]),
                _ => self.set_bits_of_word(unit_start, bits),
            }
            page = first_page + pages;
        }
    }

    /// Marks all of `memory`.
    pub fn mark_all(&self, memory: &Arc<GuestMemory>) {
        let number = {
            let mut all_marked = self.lock_all_marked();
            all_marked.begun += 1;
            all_marked.begun
        };
        for region in memory.regions() {
            self.mark(region.guest_addr, region.len);
        }
        let mut all_marked = self.lock_all_marked();
        if all_marked.finished < number {
            (all_marked.finished, all_marked.memory) = (number, Arc::downgrade(memory));
        }
    }

    /// This moment.
    pub(crate) fn all_marked_ticket(&self) -> AllMarkedTicket {
        AllMarkedTicket(self.lock_all_marked().begun)
    }

    /// Whether all of `memory` has been marked from beginning to end since a moment, and so all pages that this thread has written
    /// before it.
    pub(crate) fn was_all_marked_since(
        &self,
        AllMarkedTicket(begun): AllMarkedTicket,
        memory: &Arc<GuestMemory>,
    ) -> bool {
        let all_marked = self.lock_all_marked();
        all_marked.finished > begun && all_marked.memory.as_ptr() == Arc::as_ptr(memory)
    }

    fn lock_all_marked(&self) -> MutexGuard<'_, AllMarked> {
        self.all_marked
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets bits of the aligned word whose first byte this is. Release: a front-end that reads them sees what was written to the pages
    /// before.
    fn set_bits_of_word(&self, byte: u64, bits: u64) {
        debug_assert!(self.words.contains(&byte));
        before_store();
        // SAFETY: an aligned word inside the log, which stays mapped as long as `self`; all accesses are atomic.
        let word = unsafe { AtomicU64::from_ptr(self.host_of_byte(byte).cast()) };
        if bits == u64::MAX {
            word.store(bits, Ordering::Release);
        } else {
            // The first byte has the bits of the lowest pages.
            word.fetch_or(bits.to_le(), Ordering::Release);
        }
    }

    /// Sets bits of a byte inside the log that is in no aligned word; otherwise as [`set_bits_of_word`](Self::set_bits_of_word).
    fn set_bits_of_byte(&self, byte: u64, bits: u8) {
        debug_assert!(byte < self.len_bytes && !self.words.contains(&byte));
        before_store();
        // SAFETY: inside the log, which stays mapped as long as `self`; all accesses are atomic.
        let byte = unsafe { AtomicU8::from_ptr(self.host_of_byte(byte)) };
        byte.fetch_or(bits, Ordering::Release);
    }

    /// The host address of a byte inside the log.
    fn host_of_byte(&self, byte: u64) -> *mut u8 {
        // Inside of what is mapped, and so fits.
        let offset = usize::try_from(byte).unwrap_or(usize::MAX);
        self.host.as_ptr().wrapping_add(offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = 48;

    /// The pages that are marked in a log of `len_bytes` at `begin` of zeroed memory, after one call. Bytes around it stay zero.
    fn pages_marked(begin: usize, len_bytes: u64, addr: u64, len: u64) -> Vec<u64> {
        let memory: Arc<[AtomicU64]> = (0..BYTES / 8).map(|_| AtomicU64::new(0)).collect();
        let first: NonNull<u8> = NonNull::from(&memory[0]).cast();
        // SAFETY: inside of the list.
        let host = unsafe { first.add(begin) };
        // SAFETY: inside of the list, all of it atomics, kept by the owner.
        let log = unsafe { DirtyLog::new(host, len_bytes, Arc::new(memory.clone())) };
        log.mark(addr, len);
        let bytes = memory
            .iter()
            .flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes());
        let bits = bytes.flat_map(|byte| (0..8).map(move |bit| byte >> bit & 1 != 0));
        let marked = bits.enumerate().filter(|(_, is_set)| *is_set);
        let pages = marked.map(|(bit, _)| bit.checked_sub(8 * begin).map(|page| page as u64));
        pages.collect::<Option<Vec<u64>>>().unwrap()
    }

    #[test]
    fn the_same_pages_are_marked_wherever_words_begin_and_end() {
        for begin in 0..8 {
            for len_bytes in [1, 7, 8, 9, 17, 40] {
                let log_pages = 8 * len_bytes;
                for first in (0..log_pages + 3).step_by(3) {
                    for count in [1, 2, 7, 8, 9, 63, 64, 65, 1000] {
                        let addr = first * LOG_PAGE_BYTES + 1;
                        let len = count * LOG_PAGE_BYTES - 1;
                        let expected = (first..first + count).filter(|page| *page < log_pages);
                        let marked = pages_marked(begin, len_bytes, addr, len);
                        assert!(
                            marked.into_iter().eq(expected),
                            "{count} from {first} in {len_bytes} at {begin}"
                        );
                    }
                }
            }
        }
    }
}
