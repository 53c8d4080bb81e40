//! Dirty tracker of a queue: marks the pages that the device writes while the guest is migrated to another host.
//!
//! The pages that the device may write for a chain are known when the chain is popped: those of its writable buffers. They are all
//! marked when the chain is pushed, after the data was written; those of the ring after it was written. Chains that were
//! popped before the log was set are read from the ring again, since their descriptors belong to the device until it pushes them. In a
//! packed ring used entries may have overwritten them: then all memory is marked, which costs little, as all is copied then anyway.
//!
//! A guest may use a head or buffer ID (a *name* below) again while a request with it is in flight, and nothing tells then which of these
//! requests is pushed. All memory is marked if the requests of one name have more buffers than one chain can have, or if one of them was
//! popped before the log was set.

mod page_marker;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use crate::any_ring::AnyRing;
use crate::chain::{Chain, ChainId, MAX_SEGMENTS};
use crate::dirty_log::DirtyLog;
use crate::memory::GuestMemory;
use page_marker::PageMarker;

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

/// Marks the pages that a queue writes.
#[derive(Debug)]
pub(crate) struct DirtyTracker {
    marker: PageMarker,
    /// Chains that were popped since the log was set, by name. The entry of a split ring's name stays without chains: it shows that
    /// the descriptors of a chain that was popped before the log was set may have been overwritten by a later one of that name.
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
        self.marker.set_log(log);
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
                if buffers.are_forgotten {
                    marker.require_all();
                }
                buffers.chains -= 1;
                if buffers.chains == 0 {
                    *buffers = WritableBuffers::default();
                    if !ring.keeps_descriptors_of_popped_chains() {
                        known.remove();
                    }
                }
            }
            // This chain was popped before the log was set, and another one of its name since: the ring has that one's descriptors.
            Entry::Occupied(_) => marker.require_all(),
            Entry::Vacant(_) => {
                let memory = marker.memory().clone();
                if ring.try_reread_popped_chain(&memory, id, scratch) {
                    for_each_writable_buffer(&memory, scratch, |addr, len| {
                        marker.mark_buffer(addr, len);
                    });
                } else {
                    marker.require_all();
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
        let QueueDirtyLog { log, used } = self.marker.log();
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
