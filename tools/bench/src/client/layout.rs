//! Layout of queues and their buffers in the guest's memory.

/// The largest alignment that matters: a page for buffers that bypass the host's page cache.
const PAGE_BYTES: usize = 4096;
/// Each ring begins on a cache line of its own: one side writes it, the other reads.
const LINE_BYTES: usize = 64;

/// Where the rings of one queue are, as guest addresses. Virtio specification 1.2, section 2.7.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePlace {
    /// Entries; a power of two.
    pub size: u16,
    /// The descriptor table.
    pub desc: usize,
    /// The available ring, with `used_event` at its end.
    pub avail: usize,
    /// The used ring, with `avail_event` at its end.
    pub used: usize,
}

/// Hands out addresses, from 0 on.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    end: usize,
}

impl Layout {
    /// The rings of a queue of at least so many entries; they begin on a page.
    pub fn queue(&mut self, entries: u16) -> QueuePlace {
        let size = entries.next_power_of_two();
        let entries = usize::from(size);
        QueuePlace {
            size,
            desc: self.take(16 * entries, PAGE_BYTES),
            avail: self.take(2 + 2 + 2 * entries + 2, LINE_BYTES),
            used: self.take(2 + 2 + 8 * entries + 2, LINE_BYTES),
        }
    }

    /// Whole pages.
    pub fn pages(&mut self, bytes: usize) -> usize {
        self.take(bytes, PAGE_BYTES)
    }

    /// `bytes` rounded up to whole pages.
    #[must_use]
    pub fn whole_pages(bytes: usize) -> usize {
        bytes.next_multiple_of(PAGE_BYTES)
    }

    /// Memory that is needed for all that was handed out.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        Self::whole_pages(self.end)
    }

    fn take(&mut self, bytes: usize, align: usize) -> usize {
        let start = self.end.next_multiple_of(align);
        self.end = start + bytes;
        start
    }
}
