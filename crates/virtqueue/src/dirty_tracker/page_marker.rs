//! Page marker of a queue: marks the buffers of its chains one by one, or all memory where that is less work.
//!
//! A guest may let each of its buffers be all of its memory, in each of its queues. Once the buffers that a queue has pushed since its last
//! publish have more pages than its share of the memory, or than 64 MiB if that is more, all memory is marked, once, when they are
//! published, and no more of them singly. What another queue has marked since then counts: all queues of an iothread push before the first
//! of them publishes.

use std::sync::Arc;

use super::QueueDirtyLog;
use crate::dirty_log::{AllMarkedTicket, LOG_PAGE_BYTES};
use crate::memory::GuestMemory;

/// Pages that each queue may mark singly per publish in any case: 64 MiB, which are 256 words of a log.
const MIN_SHARE_PAGES: u64 = 16_384;

/// Marks pages in the log.
#[derive(Debug)]
pub(super) struct PageMarker {
    log: QueueDirtyLog,
    memory: Arc<GuestMemory>,
    memory_pages: u64,
    /// Pages of the buffers since the last publish. Those that a buffer has in part are left out: small buffers may share them.
    buffer_pages: u64,
    /// All memory is to be marked before the next publish, after this moment.
    must_mark_all: Option<AllMarkedTicket>,
}

impl PageMarker {
    pub fn new(log: QueueDirtyLog, memory: Arc<GuestMemory>) -> Self {
        PageMarker {
            log,
            memory_pages: page_count(&memory),
            memory,
            buffer_pages: 0,
            must_mark_all: None,
        }
    }

    pub fn log(&self) -> &QueueDirtyLog {
        &self.log
    }

    pub fn set_log(&mut self, log: QueueDirtyLog) {
        self.log = log;
        if self.must_mark_all.is_some() {
            self.require_all();
        }
    }

    pub fn memory(&self) -> &Arc<GuestMemory> {
        &self.memory
    }

    pub fn set_memory(&mut self, memory: Arc<GuestMemory>) {
        self.memory_pages = page_count(&memory);
        self.memory = memory;
    }

    /// Marks a buffer that was written, or sees to it that all memory is marked.
    pub fn mark_buffer(&mut self, addr: u64, len: u64) {
        self.buffer_pages = self.buffer_pages.saturating_add(len / LOG_PAGE_BYTES);
        // Each running queue has a reference to the log, and so does the connection: the share is rather too small.
        let queues = Arc::strong_count(&self.log.log) as u64;
        if self.buffer_pages > share_pages(self.memory_pages, queues) {
            self.require_all();
        } else {
            self.log.log.mark(addr, len);
        }
    }

    /// Sees to it that all memory is marked before what has been pushed is published.
    pub fn require_all(&mut self) {
        self.must_mark_all = Some(self.log.log.all_marked_ticket());
    }

    /// Marks all memory if that is required and no queue has done so since.
    pub fn mark_all_if_required(&mut self) {
        self.buffer_pages = 0;
        let log = &self.log.log;
        if let Some(ticket) = self.must_mark_all.take()
            && !log.was_all_marked_since(ticket, &self.memory)
        {
            log.mark_all(&self.memory);
        }
    }
}

/// Pages that each of several queues may mark singly per publish.
fn share_pages(memory_pages: u64, queues: u64) -> u64 {
    (memory_pages / queues).max(MIN_SHARE_PAGES)
}

/// The pages of memory, and parts of pages.
fn page_count(memory: &GuestMemory) -> u64 {
    let regions = memory.regions().iter();
    regions
        .map(|region| region.len.div_ceil(LOG_PAGE_BYTES))
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_of_a_queue_is_64_mib_at_least() {
        assert_eq!(share_pages(1 << 20, 4), 1 << 18);
        assert_eq!(share_pages(16_384, 4), 16_384);
    }
}
