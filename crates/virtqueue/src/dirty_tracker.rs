//! Dirty tracker of a queue: marks the pages that the device writes while the guest is migrated to another host.
//!
//! The pages that the device may write for a chain are known when the chain is popped: those of its writable buffers. They are all
//! marked when the chain is pushed, after the data was written; those of the ring after it was written. Chains that were
//! popped before the log was set are read from the ring again, since their descriptors belong to the device until it pushes them. In a
//! packed ring used entries may have overwritten them: then all memory is marked, which costs little, as all is copied then anyway.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::any_ring::AnyRing;
use crate::chain::{Chain, ChainId};
use crate::dirty_log::DirtyLog;
use crate::memory::GuestMemory;

/// The dirty log of a queue.
#[derive(Clone, Debug)]
pub struct QueueLog {
    /// The log of all of the guest's memory.
    pub log: Arc<DirtyLog>,
    /// The guest address under which what is written to the used ring (packed: to the device event area) is logged; `None`: the
    /// ring is not.
    pub used: Option<u64>,
}

/// The pages to mark when a chain is pushed.
#[derive(Debug, Default)]
struct Writable {
    /// Chains that have this name: a driver of packed queues may use one for several.
    chains: u32,
    /// Guest addresses and lengths.
    ranges: Vec<(u64, u64)>,
}

/// Marks the pages that a queue writes.
#[derive(Debug)]
pub(crate) struct DirtyTracker {
    log: QueueLog,
    memory: Arc<GuestMemory>,
    /// Chains that were popped since the log was set, by name.
    popped: BTreeMap<u16, Writable>,
    /// Whether chains were pushed whose buffers are not known.
    unknown: bool,
    /// Scratch.
    chain: Chain,
}

impl DirtyTracker {
    pub fn new(log: QueueLog, memory: Arc<GuestMemory>) -> Self {
        DirtyTracker {
            log,
            memory,
            popped: BTreeMap::new(),
            unknown: false,
            chain: Chain::new(),
        }
    }

    pub fn set_log(&mut self, log: QueueLog) {
        self.log = log;
    }

    pub fn set_memory(&mut self, memory: Arc<GuestMemory>) {
        self.memory = memory;
    }

    /// Records the buffers that the device may write for a chain.
    pub fn popped(&mut self, id: ChainId, memory: &GuestMemory, chain: &Chain) {
        let writable = self.popped.entry(id.id).or_default();
        writable.chains += 1;
        for_writable(memory, chain, |addr, len| writable.ranges.push((addr, len)));
    }

    /// Marks the buffers of a chain, whose data was written.
    pub fn mark_chain(&mut self, id: ChainId, ring: &mut AnyRing) {
        let log = &self.log.log;
        if let Some(writable) = self.popped.get_mut(&id.id) {
            for (addr, len) in &writable.ranges {
                log.mark(*addr, *len);
            }
            writable.chains -= 1;
            if writable.chains == 0 {
                self.popped.remove(&id.id);
            }
            return;
        }
        if ring.read_again(&self.memory, id, &mut self.chain) {
            for_writable(&self.memory, &self.chain, |addr, len| log.mark(addr, len));
        } else {
            self.unknown = true;
        }
    }

    /// Marks all memory if chains were pushed whose buffers are not known.
    pub fn mark_unknown(&mut self) {
        if std::mem::take(&mut self.unknown) {
            self.log.log.mark_all(&self.memory);
        }
    }

    /// Marks the ring, which was written.
    pub fn mark_ring(&self, ring: &AnyRing) {
        if let Some(used) = self.log.used {
            ring.written_ring(used, |addr, len| self.log.log.mark(addr, len));
        }
    }
}

/// Calls `range` with guest address and length of each buffer that the device may write.
fn for_writable(memory: &GuestMemory, chain: &Chain, mut range: impl FnMut(u64, u64)) {
    for segment in chain.writable() {
        // The segment was translated in this memory.
        if let Some(addr) = memory.host_to_guest(segment.iov_base.cast_const().cast()) {
            range(addr, segment.iov_len as u64);
        }
    }
}
