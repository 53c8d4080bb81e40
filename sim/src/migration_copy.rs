//! A front-end that copies a guest's memory, page by page, while guest and device write it.
//!
//! It takes the bits of what was written out of the device's log, asks the hypervisor which pages the guest has written, and copies
//! them, some now, the others later. When nothing is written any more, all that is left is copied, and the copy has to be
//! what the memory is.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use virtqueue::testing::TestMemory;
use virtqueue::{DirtyLog, LOG_PAGE_BYTES};

use crate::shared_words::SharedWords;

/// A dirty log, as device and front-end access it.
struct SharedLog {
    words: Arc<SharedWords>,
    device: Arc<DirtyLog>,
}

/// A copy of guest memory in progress.
pub struct MigrationCopy {
    memory: TestMemory,
    /// First guest address, and bytes: there are no holes.
    start: u64,
    copy: Vec<u8>,
    /// The last one is what the device logs to; until it does it uses the one before.
    logs: Vec<SharedLog>,
    logged: bool,
    /// Numbers of the pages that have to be copied.
    left: BTreeSet<u64>,
}

impl Drop for MigrationCopy {
    fn drop(&mut self) {
        self.memory.watch_guest(false);
    }
}

impl MigrationCopy {
    /// Of this memory. Nothing is logged yet, and nothing copied.
    #[must_use]
    pub fn new(memory: TestMemory) -> Self {
        memory.watch_guest(true);
        let table = memory.guest_memory();
        let (first, last) = (&table.regions()[0], table.regions().last());
        let start = first.guest_addr;
        let end = last.map_or(start, |last| last.guest_addr + last.len);
        let len = usize::try_from(end - start).expect("small");
        MigrationCopy {
            memory,
            start,
            copy: vec![0; len],
            logs: Vec::new(),
            logged: false,
            left: BTreeSet::new(),
        }
    }

    fn pages(&self) -> std::ops::Range<u64> {
        let end = self.start + self.copy.len() as u64;
        self.start / LOG_PAGE_BYTES..end.div_ceil(LOG_PAGE_BYTES)
    }

    /// A log for the device, in the place of the one before.
    pub fn new_log(&mut self) -> Arc<DirtyLog> {
        let bytes = DirtyLog::needed_bytes(&self.memory.guest_memory());
        let words = usize::try_from(bytes.div_ceil(8)).expect("small");
        let words = Arc::new(SharedWords::new(words));
        let len = words.len_bytes() as u64;
        // SAFETY: so many bytes are allocated as long as their owner lives, and there are no references to them.
        let device = Arc::new(unsafe { DirtyLog::new(words.host(), len, words.clone()) });
        self.logs.push(SharedLog {
            words,
            device: device.clone(),
        });
        device
    }

    /// The log for queues that start.
    #[must_use]
    pub fn log(&self) -> Option<Arc<DirtyLog>> {
        self.logs.last().map(|log| log.device.clone())
    }

    /// The device logs all that it writes from now on.
    pub fn is_logged(&mut self) {
        if !std::mem::replace(&mut self.logged, true) {
            self.begin_again();
        }
    }

    /// All pages are to be copied once more.
    pub fn begin_again(&mut self) {
        self.left = self.pages().collect();
    }

    /// Takes the bits of pages that were written.
    fn look(&mut self) {
        self.left.append(&mut self.memory.take_written());
        for SharedLog { words, .. } in &self.logs {
            for byte in 0..words.len_bytes() {
                // SAFETY: inside of the log; everybody accesses it with atomics.
                let bits = unsafe { AtomicU8::from_ptr(words.host().add(byte).as_ptr()) };
                let bits = bits.swap(0, Ordering::AcqRel);
                let written = (0..8).filter(|bit| bits >> bit & 1 == 1);
                self.left.extend(written.map(|bit| 8 * byte as u64 + bit));
            }
        }
    }

    /// Looks what was written, and copies so many pages at most, from the `pick`th on.
    pub fn copy(&mut self, pages: usize, pick: usize) {
        if !self.logged {
            return;
        }
        self.look();
        let skipped = pick.checked_rem(self.left.len()).unwrap_or(0);
        let copied = self.left.iter().copied().skip(skipped).take(pages);
        for page in copied.collect::<Vec<_>>() {
            self.left.remove(&page);
            self.copy_page(page);
        }
    }

    fn copy_page(&mut self, page: u64) {
        let end = self.start + self.copy.len() as u64;
        let first = (page * LOG_PAGE_BYTES).max(self.start);
        let len = (page * LOG_PAGE_BYTES + LOG_PAGE_BYTES).min(end) - first;
        let at = usize::try_from(first - self.start).expect("small");
        let bytes = self
            .memory
            .read(first, usize::try_from(len).expect("small"));
        self.copy[at..at + bytes.len()].copy_from_slice(&bytes);
    }

    /// Guest and device do nothing any more. Copies what is left.
    ///
    /// # Errors
    /// The copy is not what the memory is: the first guest address where it is not, and may not be something else.
    pub fn finish(mut self, undefined: impl Fn(u64) -> bool) -> Result<(), u64> {
        self.copy(usize::MAX, 0);
        let memory = self.memory.read(self.start, self.copy.len());
        let bytes = (self.start..).zip(memory.iter().zip(&self.copy));
        let mut differing = bytes.filter(|(_, (is, copied))| is != copied);
        match differing.find(|(addr, _)| !undefined(*addr)) {
            Some((addr, _)) => Err(addr),
            None => Ok(()),
        }
    }
}
