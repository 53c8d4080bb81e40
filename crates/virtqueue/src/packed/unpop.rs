//! Unpop for packed queues: returns popped chains to the ring, when a queue stops before they are done.
//!
//! Used entries are only written before the position of the guest's next one. So the descriptors of the chains that were popped
//! last are as the driver has left them, if all others are published. Not so after a crash: a recorder knows which chains an earlier
//! process had popped, and returns none of those.

use super::PackedRing;
use crate::chain::ChainId;
use crate::descriptor::F_NEXT;

impl PackedRing {
    /// Reverts the pop of these chains, in any order, if they were popped last and all others are published. Returns them in the
    /// order of the ring, in which they are popped again. `None`, and nothing has changed, if others were popped after the first of
    /// them. They are compared by buffer ID, which a driver uses for one chain at a time.
    #[must_use]
    pub fn try_unpop_chains(&mut self, chains: &[ChainId]) -> Option<Vec<ChainId>> {
        let id_and_length = |chain: &ChainId| (chain.id, chain.descriptors);
        let mut expected: Vec<_> = chains.iter().map(id_and_length).collect();
        let in_order = self.read_popped_chains();
        let mut last: Vec<_> = in_order.iter().map(id_and_length).collect();
        expected.sort_unstable();
        last.sort_unstable();
        if last != expected || self.unpublished != 0 {
            return None;
        }
        self.next_avail = self.published;
        self.taken = 0;
        Some(in_order)
    }

    /// Reads the chains from the position of the guest's next used entry up to the next one to pop: all that were popped, if nothing
    /// is pushed and unpublished. The driver may change the ring: its content only decides
    /// whether the chains can be returned.
    fn read_popped_chains(&self) -> Vec<ChainId> {
        let mut chains = Vec::new();
        let (mut at, mut descriptors) = (self.published, 0);
        for _ in 0..self.taken {
            let descriptor = self.ring.descriptor(at.index);
            at = at.advance(1, self.ring.size());
            descriptors += 1;
            if descriptor.flags & F_NEXT == 0 {
                let id = descriptor.id;
                chains.push(ChainId { id, descriptors });
                descriptors = 0;
            }
        }
        chains
    }
}
