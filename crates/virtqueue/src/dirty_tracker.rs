//! Dirty tracker of a queue: marks the pages that the device writes while the guest is migrated to another host.
//!
//! The pages that the device may write for a chain are known when the chain is popped: those of its writable buffers. They are all
//! marked when the chain is pushed, after the data was written; those of the ring after it was written. Chains that were
//! popped before the log was set are read from the ring again, since their descriptors belong to the device until it pushes them. In a
//! packed ring used entries may have overwritten them: then all memory is marked, which costs little, as all is copied then anyway. So it
//! is if one head or buffer ID was used again so often, while a request with it stays in flight, that its buffers were forgotten.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::any_ring::AnyRing;
use crate::chain::{Chain, ChainId, MAX_SEGMENTS};
use crate::dirty_log::DirtyLog;
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
    /// Chains that have this name: a driver of packed queues may use one for several.
    chains: usize,
    /// Guest address and length of each: of the chains in flight, and of earlier ones of this name, which nothing distinguishes. At most
    /// `chains * MAX_SEGMENTS`.
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
        if self.ranges.len() > self.chains * MAX_SEGMENTS {
            (self.ranges, self.are_forgotten) = (Vec::new(), true);
        }
    }
}

/// Marks the pages that a queue writes.
#[derive(Debug)]
pub(crate) struct DirtyTracker {
    log: QueueDirtyLog,
    memory: Arc<GuestMemory>,
    /// Chains that were popped since the log was set, by name.
    popped: BTreeMap<u16, WritableBuffers>,
    /// Whether chains were pushed whose buffers are not known.
    has_unknown_buffers: bool,
    /// Scratch for chains that are read again.
    scratch: Chain,
}

impl DirtyTracker {
    /// A tracker that knows no chain in flight: those are read again when they are pushed.
    pub fn new(log: QueueDirtyLog, memory: Arc<GuestMemory>) -> Self {
        DirtyTracker {
            log,
            memory,
            popped: BTreeMap::new(),
            has_unknown_buffers: false,
            scratch: Chain::new(),
        }
    }

    /// Replaces the log; chains that were popped before stay known.
    pub fn set_dirty_log(&mut self, log: QueueDirtyLog) {
        self.log = log;
    }

    /// Replaces the memory of which all is marked if buffers are unknown, and in which chains are read again.
    pub fn set_memory(&mut self, memory: Arc<GuestMemory>) {
        self.memory = memory;
    }

    /// Records the buffers that the device may write for a chain.
    pub fn record_writable_buffers(&mut self, id: ChainId, memory: &GuestMemory, chain: &Chain) {
        self.popped.entry(id.id).or_default().add(memory, chain);
    }

    /// Marks the buffers of a chain, whose data was written.
    pub fn mark_and_forget_chain_buffers(&mut self, id: ChainId, ring: &mut AnyRing) {
        let log = &self.log.log;
        if let Some(buffers) = self.popped.get_mut(&id.id) {
            for (addr, len) in &buffers.ranges {
                log.mark(*addr, *len);
            }
            self.has_unknown_buffers |= buffers.are_forgotten;
            buffers.chains -= 1;
            if buffers.chains == 0 {
                self.popped.remove(&id.id);
            }
            return;
        }
        if ring.try_reread_popped_chain(&self.memory, id, &mut self.scratch) {
            for_each_writable_buffer(&self.memory, &self.scratch, |addr, len| log.mark(addr, len));
        } else {
            self.has_unknown_buffers = true;
        }
    }

    /// Marks all memory if chains were pushed whose buffers are not known.
    pub fn mark_all_if_buffers_unknown(&mut self) {
        if std::mem::take(&mut self.has_unknown_buffers) {
            self.log.log.mark_all(&self.memory);
        }
    }

    /// Marks the ring, which was written.
    pub fn mark_ring_if_logged(&self, ring: &AnyRing) {
        if let Some(used) = self.log.used {
            ring.for_each_device_written_ring_part(used, |addr, len| self.log.log.mark(addr, len));
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
