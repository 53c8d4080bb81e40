//! Chains that go back: taken off the ring, and not done by the time that the queue stops.

use super::SplitRing;

impl SplitRing {
    /// Gives back what was taken last, if that is these chains, in whatever order: whoever goes on with the queue takes them
    /// again, in the order in which they are returned. `None`, and nothing has changed, if others were taken after the first of them.
    #[must_use]
    pub fn unpop_all(&mut self, heads: &[u16]) -> Option<Vec<u16>> {
        let count = u16::try_from(heads.len()).ok();
        let count = count.filter(|count| *count <= self.rings.size())?;
        let first = self.next_avail.wrapping_sub(count);
        // The ring is the driver's: what it says now only decides whether this can be.
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
