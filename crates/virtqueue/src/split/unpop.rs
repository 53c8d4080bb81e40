//! Chains that go back: taken off the ring, and not done by the time that the queue stops.

use super::SplitQueue;

impl SplitQueue {
    /// Gives back what was taken last, if that is these chains, in whatever order: whoever goes on with the queue takes them
    /// again. False, and nothing has changed, if others were taken after the first of them.
    #[must_use]
    pub fn unpop_all(&mut self, heads: &[u16]) -> bool {
        let Some(count) = u16::try_from(heads.len())
            .ok()
            .filter(|count| *count <= self.rings.size())
        else {
            return false;
        };
        let mut expected = heads.to_vec();
        expected.sort_unstable();
        let first = self.next_avail.wrapping_sub(count);
        // The ring is the driver's: what it says now only decides whether this can be.
        let entries = (0..count).map(|index| self.rings.avail_entry(first.wrapping_add(index)));
        let mut last: Vec<u16> = entries.collect();
        last.sort_unstable();
        if last != expected {
            return false;
        }
        self.next_avail = first;
        true
    }
}
