//! A queue whose writes to the guest's memory are logged, while the guest is copied to another host.
//!
//! The queue itself is one of the others, and takes its place again when logging ends: nothing is looked at on the way of a
//! request while it is off. What the device writes for a chain is known when the chain is taken: its writable buffers. They are
//! marked when the chain is given back, all of them, when the data is there; and the ring when it was written. Chains that were
//! taken before logging began are found in the ring once more, as their descriptors are the device's until it gives them back. In a
//! packed ring used entries may lie over them: then all memory is marked, which is when everything is copied anyway.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::chain::Chain;
use crate::dirty_log::DirtyLog;
use crate::error::RingError;
use crate::memory::GuestMemory;
use crate::planted::{Mistake, is_planted};
use crate::queue::Queue;
use crate::virtqueue::{ChainId, Virtqueue};

/// Where the writes of a queue are logged.
#[derive(Clone, Debug)]
pub struct QueueLog {
    /// The log of all of the guest's memory.
    pub log: Arc<DirtyLog>,
    /// The guest address under which what is written to the used ring (packed: to the device event area) is logged; `None`: the
    /// ring is not.
    pub used: Option<u64>,
}

/// What is marked when a chain is given back.
#[derive(Debug, Default)]
struct Taken {
    /// Chains that have this name: a driver of packed queues may use one for several.
    chains: u32,
    /// Guest addresses and lengths.
    ranges: Vec<(u64, u64)>,
}

/// A virtqueue of any other form with a log of what is written for it.
// What is called for every batch is out of line, and told to be seldom, so that queues without a log have the registers.
#[derive(Debug)]
pub struct LoggedQueue {
    queue: Queue,
    log: QueueLog,
    memory: Arc<GuestMemory>,
    /// What was taken since logging began, by its name.
    taken: BTreeMap<u16, Taken>,
    /// Chains were given back of which nobody knows what was written.
    unknown: bool,
    /// Scratch.
    chain: Chain,
}

impl LoggedQueue {
    pub(crate) fn new(queue: Queue, log: QueueLog, memory: Arc<GuestMemory>) -> Self {
        let logged = LoggedQueue {
            queue,
            log,
            memory,
            taken: BTreeMap::new(),
            unknown: false,
            chain: Chain::new(),
        };
        logged.mark_ring();
        logged
    }

    pub(crate) fn queue(&self) -> &Queue {
        &self.queue
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn has_available(&self) -> bool {
        self.queue.has_available()
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn next_avail(&self) -> u16 {
        self.queue.next_avail()
    }

    pub(crate) fn set_log(&mut self, log: QueueLog) {
        self.log = log;
        self.mark_ring();
    }

    pub(crate) fn finish(&mut self) {
        self.queue.finish();
    }

    pub(crate) fn remap(&mut self, memory: &Arc<GuestMemory>) -> Result<(), RingError> {
        self.memory = memory.clone();
        self.queue.remap(memory)
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn publish(&mut self) -> bool {
        self.mark_unknown();
        self.written(Queue::publish)
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn disable_kicks(&mut self) {
        self.written(Queue::disable_kicks);
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn enable_kicks(&mut self) -> bool {
        self.written(Queue::enable_kicks)
    }

    /// What was read into the buffers of these before they failed is there, even if nobody will look at it.
    pub(crate) fn unpop_all(&mut self, chains: &[ChainId]) -> bool {
        let given_back = self.queue.unpop_all(chains);
        if given_back {
            for chain in chains {
                self.mark_chain(*chain);
            }
            self.mark_unknown();
        }
        given_back
    }

    /// Does what writes the ring, which is marked then.
    fn written<T>(&mut self, write: impl FnOnce(&mut Queue) -> T) -> T {
        if is_planted(Mistake::RingMarkedEarly) {
            self.mark_ring();
            return write(&mut self.queue);
        }
        let result = write(&mut self.queue);
        self.mark_ring();
        result
    }

    /// Of some nobody knows what was written.
    fn mark_unknown(&mut self) {
        if std::mem::take(&mut self.unknown) {
            self.log.log.mark_all(&self.memory);
        }
    }

    /// The ring was written.
    fn mark_ring(&self) {
        if is_planted(Mistake::UsedRingNotMarked) {
            return;
        }
        if let Some(used) = self.log.used {
            self.queue
                .written_ring(used, |addr, len| self.log.log.mark(addr, len));
        }
    }

    /// The data of a chain is there.
    fn mark_chain(&mut self, id: ChainId) {
        if let Some(taken) = self.taken.get_mut(&id.id) {
            for (addr, len) in &taken.ranges {
                self.log.log.mark(*addr, *len);
            }
            taken.chains -= 1;
            if taken.chains == 0 {
                self.taken.remove(&id.id);
            }
            return;
        }
        if is_planted(Mistake::TakenBeforeForgotten) {
            return;
        }
        let LoggedQueue { memory, chain, .. } = self;
        if self.queue.look_again(memory, id, chain) {
            let log = &self.log.log;
            written_ranges(memory, chain, |addr, len| log.mark(addr, len));
        } else {
            self.unknown = true;
        }
    }
}

impl Virtqueue for LoggedQueue {
    fn pop(
        &mut self,
        memory: &GuestMemory,
        chain: &mut Chain,
    ) -> Result<Option<ChainId>, RingError> {
        let popped = self.queue.pop(memory, chain)?;
        if let Some(id) = popped {
            let taken = self.taken.entry(id.id).or_default();
            taken.chains += 1;
            written_ranges(memory, chain, |addr, len| taken.ranges.push((addr, len)));
            if is_planted(Mistake::MarkedBeforeData) {
                for (addr, len) in std::mem::take(&mut taken.ranges) {
                    self.log.log.mark(addr, len);
                }
            }
        }
        Ok(popped)
    }

    fn push(&mut self, chain: ChainId, written_bytes: u32) {
        self.mark_chain(chain);
        self.queue.push(chain, written_bytes);
    }
}

/// Calls `range` with guest address and length of each buffer that the device may write.
fn written_ranges(memory: &GuestMemory, chain: &Chain, mut range: impl FnMut(u64, u64)) {
    for segment in chain.writable() {
        // It was found there.
        if let Some(addr) = memory.host_to_guest(segment.iov_base.cast_const().cast()) {
            range(addr, segment.iov_len as u64);
        }
    }
}
