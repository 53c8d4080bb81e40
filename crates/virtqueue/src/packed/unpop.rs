//! Chains that go back: taken off the ring, and not done by the time that the queue stops.
//!
//! Used entries are only written before the place where the guest looks for its next one. So the descriptors of what was taken
//! last are as the driver has left them, if all else is published. Not so after a crash: a queue with a record knows which chains
//! another one had taken before it, and gives none of those back.

use super::PackedRing;
use crate::chain::ChainId;
use crate::descriptor::F_NEXT;

impl PackedRing {
    /// Gives back what was taken last, if that is these chains, in whatever order, and all others are published: whoever goes on
    /// with the queue takes them again, in the order in which they are returned. `None`, and nothing has changed, if others were taken
    /// after the first of them. They are compared by their names, which a driver uses for one chain at a time.
    #[must_use]
    pub fn unpop_all(&mut self, chains: &[ChainId]) -> Option<Vec<ChainId>> {
        let by_name = |chain: &ChainId| (chain.id, chain.descriptors);
        let mut expected: Vec<_> = chains.iter().map(by_name).collect();
        let in_order = self.taken_last();
        let mut last: Vec<_> = in_order.iter().map(by_name).collect();
        expected.sort_unstable();
        last.sort_unstable();
        if last != expected || self.unpublished != 0 {
            return None;
        }
        self.next_avail = self.published;
        self.taken = 0;
        Some(in_order)
    }

    /// The chains from the place on where the guest looks for its next used entry. The ring is the driver's: what it says now only
    /// decides whether they can be given back.
    fn taken_last(&self) -> Vec<ChainId> {
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
