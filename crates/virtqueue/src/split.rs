//! The device's side of a split virtqueue (section 2.7): pop, push, publish, and whether to kick or signal.
//!
//! It keeps the positions in the two rings, and decides when the guest is signalled. A pop takes a
//! chain off the available ring; a push fills a used entry; the guest sees all of them at once,
//! when the batch is published. It never waits and makes no system call: the
//! caller owns the event descriptors and signals the guest.
//!
//! ```text
//! queue.disable_kicks();
//! loop {
//!     while let Some(head) = queue.pop(&memory, &mut chain)? { /* start the request */ }
//!     if !queue.enable_kicks_and_recheck() { break }      // true: a chain came in between, pop again
//!     queue.disable_kicks();
//! }
//! /* later, once per batch of completions */
//! queue.push(head, written_bytes);
//! if queue.publish() { /* signal the guest */ }
//! ```

mod ring;
mod unpop;
mod walk;

use std::sync::atomic::{Ordering, fence};

use crate::buffers::BufferTranslator;
use crate::chain::Chain;
use crate::error::RingError;
use crate::layout::{RingFeatures, RingLayout};
use crate::memory::GuestMemory;
use crate::store_hook::before_store;

use ring::{SplitView, used_len_bytes};
use walk::ChainReader;

/// `VIRTQ_AVAIL_F_NO_INTERRUPT`: the driver does not want to be signalled (section 2.7.6).
const AVAIL_F_NO_INTERRUPT: u16 = 1;
/// `VIRTQ_USED_F_NO_NOTIFY`: the device does not want to be kicked (section 2.7.8).
const USED_F_NO_NOTIFY: u16 = 1;

/// A started split virtqueue, owned by one thread. Keeps the memory of its rings mapped.
#[derive(Debug)]
pub struct SplitRing {
    rings: SplitView,
    layout: RingLayout,
    features: RingFeatures,
    /// The index of the available ring that is popped next.
    next_avail: u16,
    /// `avail.idx` when it was last read, checked. Entries before it are popped without another read of the
    /// cache line that the guest keeps writing.
    avail_idx: u16,
    /// The index of the used ring that is filled next.
    next_used: u16,
    /// `used.idx` as the guest sees it: entries from here to `next_used` are not yet published.
    published: u16,
    /// Whether nothing was published since the start: see `publish`.
    first_publish: bool,
    /// The region of guest memory that held the last buffer.
    region_hint: usize,
}

impl SplitRing {
    /// Starts a queue: `base` is the available index to pop next (`VHOST_USER_SET_VRING_BASE`),
    /// the used index is read from guest memory, as the front-end expects after a reconnection.
    ///
    /// The rings are not written. Kicks are enabled or disabled as the last user of the rings left them:
    /// call [`enable_kicks_and_recheck`](Self::enable_kicks_and_recheck) or [`disable_kicks`](Self::disable_kicks).
    ///
    /// # Errors
    /// [`RingError`] for a bad size, a misaligned ring, or one that is not inside one region.
    pub fn new(
        memory: &GuestMemory,
        layout: RingLayout,
        features: RingFeatures,
        base: u16,
    ) -> Result<Self, RingError> {
        let rings = SplitView::new(memory, layout, features)?;
        let used_idx = rings.used_idx();
        Ok(SplitRing {
            rings,
            layout,
            features,
            next_avail: base,
            avail_idx: base,
            next_used: used_idx,
            published: used_idx,
            first_publish: true,
            region_hint: 0,
        })
    }

    /// Looks up the rings again after the memory map has changed: same guest addresses, new host
    /// addresses. Indices, and entries pushed but not published, are kept. Chains popped before
    /// still point into the old memory, which the caller keeps alive.
    ///
    /// # Errors
    /// [`RingError`] when a ring is no longer inside one region. The queue then still uses (and
    /// keeps mapped) the old memory.
    pub fn remap(&mut self, memory: &GuestMemory) -> Result<(), RingError> {
        self.rings = SplitView::new(memory, self.layout, self.features)?;
        Ok(())
    }

    /// Whether the driver made a chain available that was not popped: cheap, for polling. Also true
    /// when the available index is invalid, so that [`pop`](Self::pop) reports it.
    #[inline]
    pub fn has_available(&self) -> bool {
        self.rings.avail_idx() != self.next_avail
    }

    /// Pops the next chain from the available ring into `chain` and returns its head, which identifies
    /// it in [`push`](Self::push). `Ok(None)` when the ring is empty.
    ///
    /// `memory` is what the segments point into: the caller keeps it until the request is over.
    ///
    /// # Errors
    /// [`RingError`] for everything a driver must not do. The queue is then broken: its position has not
    /// changed, and another call returns the same. The content of `chain` is then undefined.
    #[inline(always)]
    pub fn pop(
        &mut self,
        memory: &GuestMemory,
        chain: &mut Chain,
    ) -> Result<Option<u16>, RingError> {
        chain.clear();
        if self.avail_idx == self.next_avail && !self.refresh_avail_idx()? {
            return Ok(None);
        }
        let size = self.rings.size();
        let head = self.rings.avail_entry(self.next_avail);
        if head >= size {
            return Err(RingError::HeadOutOfRange { head, size });
        }
        let reader = ChainReader {
            rings: &self.rings,
            memory,
            buffers: BufferTranslator::new(memory, self.region_hint),
            indirect: self.features.indirect,
        };
        self.region_hint = reader.read_chain(head, chain)?;
        self.next_avail = self.next_avail.wrapping_add(1);
        Ok(Some(head))
    }

    /// Reads a chain from the descriptor table that was popped before, by this process or an earlier one, and moves no index. `head`
    /// is below the queue size.
    pub(crate) fn read_chain_again(
        &mut self,
        memory: &GuestMemory,
        head: u16,
        chain: &mut Chain,
    ) -> Result<(), RingError> {
        chain.clear();
        let reader = ChainReader {
            rings: &self.rings,
            memory,
            buffers: BufferTranslator::new(memory, self.region_hint),
            indirect: self.features.indirect,
        };
        self.region_hint = reader.read_chain(head, chain)?;
        Ok(())
    }

    /// Continues where an earlier process has stopped, which had `taken` chains in flight.
    pub(crate) fn resume_behind_in_flight(&mut self, taken: u16) {
        self.next_avail = self.published.wrapping_add(taken);
        self.avail_idx = self.next_avail;
    }

    /// `used.idx` as the guest sees it.
    #[inline]
    pub(crate) fn published_used(&self) -> u16 {
        self.published
    }

    /// `used.idx` once all pushed entries are published.
    #[inline]
    pub(crate) fn next_used(&self) -> u16 {
        self.next_used
    }

    /// Reads the available index anew from guest memory, and checks it. True when there are chains to pop before it.
    #[inline]
    fn refresh_avail_idx(&mut self) -> Result<bool, RingError> {
        let (avail_idx, next_avail, size) =
            (self.rings.avail_idx(), self.next_avail, self.rings.size());
        let ahead = avail_idx.wrapping_sub(next_avail);
        if ahead > size {
            return Err(RingError::AvailIndexTooFarAhead {
                avail_idx,
                next_avail,
                ahead,
                size,
            });
        }
        self.avail_idx = avail_idx;
        Ok(ahead != 0)
    }

    /// Pushes a used entry: the chain that began at `head` is done, and `written_bytes` were written
    /// to the beginning of its writable segments. The guest does not see it yet.
    #[inline]
    pub fn push(&mut self, head: u16, written_bytes: u32) {
        before_store();
        self.rings
            .store_used_entry(self.next_used, head, written_bytes);
        self.next_used = self.next_used.wrapping_add(1);
    }

    /// Publishes all entries pushed since the last time, and returns whether the guest is to be
    /// signalled for them (sections 2.7.7 and 2.7.10). False when there were none.
    ///
    /// With `VIRTIO_F_EVENT_IDX` the first batch after the start is always signalled: the guest may not
    /// have been signalled for entries of an earlier process.
    #[inline]
    pub fn publish(&mut self) -> bool {
        let (old, new) = (self.published, self.next_used);
        if old == new {
            return false;
        }
        before_store();
        self.rings.store_used_idx(new);
        self.published = new;
        // The driver first stores the event that it waits for and then reads the index once more; we first
        // store the index and then read the event. The fence keeps our two in order, so
        // that at least one of the sides sees the other.
        fence(Ordering::SeqCst);
        if !self.features.event_idx {
            return self.rings.avail_flags() & AVAIL_F_NO_INTERRUPT == 0;
        }
        if self.first_publish {
            self.first_publish = false;
            return true;
        }
        event_passed(self.rings.used_event(), old, new)
    }

    /// Disables kicks while the ring is polled. A kick may still come.
    ///
    /// With `VIRTIO_F_EVENT_IDX` nothing is written: once the index at which the guest was to kick is
    /// passed, it does not come again for 65536 chains.
    #[inline]
    pub fn disable_kicks(&mut self) {
        if !self.features.event_idx {
            self.rings.store_used_flags(USED_F_NO_NOTIFY);
        }
    }

    /// Enables kicks, and checks the ring once more: true means that there is a chain already, for which no kick may come.
    #[inline]
    pub fn enable_kicks_and_recheck(&mut self) -> bool {
        before_store();
        if self.features.event_idx {
            self.rings.store_avail_event(self.next_avail);
        } else {
            self.rings.store_used_flags(0);
        }
        // As in `publish`, with the sides exchanged.
        fence(Ordering::SeqCst);
        self.has_available()
    }

    /// Bytes of the used ring, which the device writes.
    pub(crate) fn used_len_bytes(&self) -> usize {
        used_len_bytes(self.layout.size, self.features.event_idx)
    }

    /// The available index that is popped next (`VHOST_USER_GET_VRING_BASE`).
    #[inline]
    pub fn next_avail(&self) -> u16 {
        self.next_avail
    }

    /// Number of entries.
    #[inline]
    pub fn size(&self) -> u16 {
        self.rings.size()
    }
}

/// Whether an index that moved from `old` to `new` has passed `event`: the other side waits for the
/// entry at `event`, and it is among those added. Indices are modulo 2^16 (section 2.7.7.2).
#[inline]
fn event_passed(event: u16, old: u16, new: u16) -> bool {
    // The entries added are those at distances 0..new - old from `old`.
    event.wrapping_sub(old) < new.wrapping_sub(old)
}

#[cfg(test)]
mod tests {
    use super::event_passed;

    #[test]
    fn an_event_is_passed_if_it_is_among_the_added_entries() {
        // Every event against every batch length up to a full queue, around the wrap.
        for old in [0u16, 1, 0x7fff, 0xfc00, 0xfff8, 0xffff] {
            for batch in [0u16, 1, 2, 7, 1024] {
                let new = old.wrapping_add(batch);
                let mut among = vec![false; 1 << 16];
                for added in 0..batch {
                    among[usize::from(old.wrapping_add(added))] = true;
                }
                for event in 0..=0xffff {
                    assert_eq!(event_passed(event, old, new), among[usize::from(event)]);
                }
            }
        }
    }
}
