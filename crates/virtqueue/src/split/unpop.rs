//! Unpop for split queues: returns popped chains to the ring, when a queue stops before they are done.

use super::SplitRing;

impl SplitRing {
    /// Reverts the pop of these chains, in any order, if they were popped last. Returns them in the order of the ring, in which they
    /// are popped again. `None`, and nothing has changed, if others were popped after the first of them.
    #[must_use]
    pub fn try_unpop_chains(&mut self, heads: &[u16]) -> Option<Vec<u16>> {
        let count = u16::try_from(heads.len()).ok();
        let count = count.filter(|count| *count <= self.rings.size())?;
        let first = self.next_avail.wrapping_sub(count);
        // The driver may change the ring: its content only decides whether the chains can be returned.
        let entries = (0..count).map(|index| self.rings.avail_entry(first.wrapping_add(index)));
        let in_order: Vec<u16> = entries.collect();
        let (mut expected, mut last) = (heads.to_vec(), in_order.clone());
        expected.sort_unstable();
        last.sort_unstable();
        if last != expected {
            return None;
        }
        self.next_avail = first;
        Some(in_order)
    }
}
