//! Dirty tracker of a queue: marks the pages that the device writes while the guest is migrated to another host.
//!
//! The pages that the device may write for a chain are known when the chain is popped: those of its writable buffers. They are all
//! marked when the chain is pushed, after the data was written; those of the ring after it was written. Chains that were
//! popped before the log was set are read from the ring again, since their descriptors belong to the device until it pushes them. In a
//! packed ring used entries may have overwritten them: then all memory is marked, which costs little, as all is copied then anyway.
//!
//! A guest may use a head or buffer ID again while a request with it is in flight, and nothing tells which of them is pushed. All
//! memory is marked if such a name has had more buffers than a chain has, or if one of its chains was popped before the log was set.
//!
//! A guest may also let each of its buffers be all of its memory. Once the buffers that were pushed since the last publish have more pages
//! than the memory has, they overlap: then all memory is marked, once, when they are published, and none of them singly.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use crate::any_ring::AnyRing;
use crate::chain::{Chain, ChainId, MAX_SEGMENTS};
use crate::dirty_log::{DirtyLog, LOG_PAGE_BYTES};
use crate::memory::GuestMemory;

/// The dirty log that a queue marks, and the address under which its ring is marked there.
#[derive(Clone, Debug)]
pub struct QueueDirtyLog {
    /// The log of all of the guest's memory.
    pub log: Arc<DirtyLog>,
    /// The guest address under which what is written to the used ring (packed: to the device event area) is logged; `None`: the
    /// ring is not.
    pub used: Option<u64>,
}

/// The pages to mark when a chain is pushed.
#[derive(Debug, Default)]
struct WritableBuffers {
    /// Chains in flight that have this name: a driver of packed queues may use one for several.
    chains: usize,
    /// Guest address and length of each: of the chains in flight, and of earlier ones of this name, which nothing distinguishes. At most
    /// [`MAX_SEGMENTS`].
    ranges: Vec<(u64, u64)>,
    /// There were more, and they were forgotten: all memory is marked when one of these chains is pushed.
    are_forgotten: bool,
}

impl WritableBuffers {
    /// Adds those of a chain.
    fn add(&mut self, memory: &GuestMemory, chain: &Chain) {
        self.chains += 1;
        if self.are_forgotten {
            return;
        }
        for_each_writable_buffer(memory, chain, |addr, len| self.ranges.push((addr, len)));
        if self.ranges.len() > MAX_SEGMENTS {
            (self.ranges, self.are_forgotten) = (Vec::new(), true);
        }
    }
}

/// Marks pages in the log: those of buffers singly, or all memory where that is less work.
#[derive(Debug)]
struct PageMarker {
    log: QueueDirtyLog,
    memory: Arc<GuestMemory>,
    memory_pages: u64,
    /// Pages of the buffers since the last publish. Those that a buffer has in part are left out: small buffers may share them.
    buffer_pages: u64,
    /// All memory is to be marked before the next publish.
    must_mark_all: bool,
}

impl PageMarker {
    fn new(log: QueueDirtyLog, memory: Arc<GuestMemory>) -> Self {
        PageMarker {
            log,
            memory_pages: page_count(&memory),
            memory,
            buffer_pages: 0,
            must_mark_all: false,
        }
    }

    fn set_memory(&mut self, memory: Arc<GuestMemory>) {
        self.memory_pages = page_count(&memory);
        self.memory = memory;
    }

    /// Marks a buffer that was written, or sees to it that all memory is marked.
    fn mark_buffer(&mut self, addr: u64, len: u64) {
        self.buffer_pages = self.buffer_pages.saturating_add(len / LOG_PAGE_BYTES);
        if self.buffer_pages > self.memory_pages {
            self.must_mark_all = true;
        } else {
            self.log.log.mark(addr, len);
        }
    }

    /// Marks all memory if that is to be done, before what was pushed is published.
    fn mark_all_if_required(&mut self) {
        self.buffer_pages = 0;
        if std::mem::take(&mut self.must_mark_all) {
            self.log.log.mark_all(&self.memory);
        }
    }
}

/// The pages of memory, and parts of pages.
fn page_count(memory: &GuestMemory) -> u64 {
    let regions = memory.regions().iter();
    regions
        .map(|region| region.len.div_ceil(LOG_PAGE_BYTES))
        .sum()
}

/// Marks the pages that a queue writes.
#[derive(Debug)]
pub(crate) struct DirtyTracker {
    marker: PageMarker,
    /// Chains that were popped since the log was set, by name. A name of a split ring stays when its last chain was pushed.
    popped: BTreeMap<u16, WritableBuffers>,
    /// Scratch for chains that are read again.
    scratch: Chain,
}

impl DirtyTracker {
    /// A tracker that knows no chain in flight: those are read again when they are pushed.
    pub fn new(log: QueueDirtyLog, memory: Arc<GuestMemory>) -> Self {
        DirtyTracker {
            marker: PageMarker::new(log, memory),
            popped: BTreeMap::new(),
            scratch: Chain::new(),
        }
    }

    /// Replaces the log; chains that were popped before stay known.
    pub fn set_dirty_log(&mut self, log: QueueDirtyLog) {
        self.marker.log = log;
    }

    /// Replaces the memory of which all is marked if buffers are unknown, and in which chains are read again.
    pub fn set_memory(&mut self, memory: Arc<GuestMemory>) {
        self.marker.set_memory(memory);
    }

    /// Records the buffers that the device may write for a chain.
    pub fn record_writable_buffers(&mut self, id: ChainId, memory: &GuestMemory, chain: &Chain) {
        self.popped.entry(id.id).or_default().add(memory, chain);
    }

    /// Marks the buffers of a chain, whose data was written.
    pub fn mark_and_forget_chain_buffers(&mut self, id: ChainId, ring: &mut AnyRing) {
        let DirtyTracker {
            marker,
            popped,
            scratch,
        } = self;
        match popped.entry(id.id) {
            Entry::Occupied(mut known) if known.get().chains > 0 => {
                let buffers = known.get_mut();
                for (addr, len) in &buffers.ranges {
                    marker.mark_buffer(*addr, *len);
                }
                marker.must_mark_all |= buffers.are_forgotten;
                buffers.chains -= 1;
                if buffers.chains == 0 {
                    *buffers = WritableBuffers::default();
                    if !ring.keeps_descriptors_of_popped_chains() {
                        known.remove();
                    }
                }
            }
            // Popped before the log was set, as another one of this name since then, whose descriptors the ring has now.
            Entry::Occupied(_) => marker.must_mark_all = true,
            Entry::Vacant(_) => {
                if ring.try_reread_popped_chain(&marker.memory, id, scratch) {
                    let memory = marker.memory.clone();
                    for_each_writable_buffer(&memory, scratch, |addr, len| {
                        marker.mark_buffer(addr, len);
                    });
                } else {
                    marker.must_mark_all = true;
                }
            }
        }
    }

    /// Marks all memory if the buffers of chains that were pushed are not known, or too many pages.
    pub fn mark_all_if_required(&mut self) {
        self.marker.mark_all_if_required();
    }

    /// Marks the ring, which was written.
    pub fn mark_ring_if_logged(&self, ring: &AnyRing) {
        let QueueDirtyLog { log, used } = &self.marker.log;
        if let Some(used) = *used {
            ring.for_each_device_written_ring_part(used, |addr, len| log.mark(addr, len));
        }
    }
}

/// Calls `range` with guest address and length of each buffer that the device may write.
fn for_each_writable_buffer(memory: &GuestMemory, chain: &Chain, mut range: impl FnMut(u64, u64)) {
    for segment in chain.writable() {
        // The segment was translated in this memory.
        if let Some(addr) = memory.host_to_guest(segment.iov_base.cast_const().cast()) {
            range(addr, segment.iov_len as u64);
        }
    }
}
