//! The device's side of a packed virtqueue (section 2.8): pop, push, publish, and whether to kick or signal.
//!
//! One ring of descriptors serves both ways: the driver marks a descriptor as available, and the
//! device overwrites the next one in turn with a used entry. Bits that change with every lap distinguish the two.
//! The interface and its use are those of [`split`](crate::split): pop, push,
//! publish, kicks; the first used entry of a batch is stored last, so that the guest sees all of the
//! batch or nothing.
//!
//! Buffer IDs are the driver's: any 16 bits, returned as they came, and not necessarily distinct. No lookup uses them; the length of a
//! chain, which the ring's next used entry needs, is part of its [`ChainId`].

use std::sync::atomic::{Ordering, fence};

mod position;
mod ring;
mod unpop;
mod walk;

pub(crate) use position::PackedPosition;
pub(crate) use ring::{PackedDescriptor, PackedView};

use ring::{EventArea, UsedEntry};
use walk::ChainReader;

use crate::buffers::BufferTranslator;
use crate::chain::{Chain, ChainId};
use crate::descriptor::{DESCRIPTOR_LEN_BYTES, F_WRITE};
use crate::error::RingError;
use crate::layout::{RingFeatures, RingLayout};
use crate::memory::GuestMemory;
use crate::store_hook::before_store;

/// `RING_EVENT_FLAGS_ENABLE`: notify always (section 2.8.10).
const FLAGS_ENABLE: u16 = 0;
/// `RING_EVENT_FLAGS_DISABLE`: never.
const FLAGS_DISABLE: u16 = 1;
/// `RING_EVENT_FLAGS_DESC`: when a certain descriptor is passed; only with `VIRTIO_F_EVENT_IDX`.
const FLAGS_DESC: u16 = 2;

/// A started packed virtqueue, owned by one thread. Keeps the memory of its ring mapped.
#[derive(Debug)]
pub struct PackedRing {
    ring: PackedView,
    layout: RingLayout,
    features: RingFeatures,
    /// The position of the next chain to pop.
    next_avail: PackedPosition,
    /// The position of the next used entry.
    next_used: PackedPosition,
    /// The position of the guest's next used entry: entries from here on are not published.
    published: PackedPosition,
    /// The entry for `published`, which is stored when the batch is published.
    first_used: UsedEntry,
    /// Descriptors from `published` to `next_used`.
    unpublished: u16,
    /// Descriptors from `published` to `next_avail`, which the driver cannot reuse yet.
    taken: u16,
    /// Whether nothing was published since the start: see `publish`.
    first_publish: bool,
    /// The region of guest memory that held the last buffer.
    region_hint: usize,
}

impl PackedRing {
    /// Starts a queue at `base`, the lower half of `VHOST_USER_SET_VRING_BASE` of a packed
    /// queue: index in bits 0 to 14, wrap counter in bit 15. The upper half, the same for used
    /// entries, is always equal, since a queue starts and ends with nothing in flight.
    ///
    /// Front-ends that know split queues only pass a base of 0 for a new queue, where it
    /// should be `0x8000`. The ring shows which is meant: only one that has seen a whole lap has
    /// descriptors with the USED flag.
    ///
    /// The ring is not written. Kicks are enabled or disabled as the last user left them: call
    /// [`enable_kicks_and_recheck`](Self::enable_kicks_and_recheck) or [`disable_kicks`](Self::disable_kicks).
    ///
    /// # Errors
    /// [`RingError`] for a bad size or base, a misaligned area, or one that is not inside one region.
    pub fn new(
        memory: &GuestMemory,
        layout: RingLayout,
        features: RingFeatures,
        base: u16,
    ) -> Result<Self, RingError> {
        let ring = PackedView::new(memory, layout)?;
        let size = layout.size;
        let mut start = PackedPosition::from_bits(base);
        if start.index >= size {
            return Err(RingError::BadBase { base, size });
        }
        let used = |index| ring.flags(index) & position::F_USED != 0;
        if base == 0 && !(0..size).any(used) {
            start = PackedPosition::START;
        }
        Ok(PackedRing {
            ring,
            layout,
            features,
            next_avail: start,
            next_used: start,
            published: start,
            first_used: UsedEntry::default(),
            unpublished: 0,
            taken: 0,
            first_publish: true,
            region_hint: 0,
        })
    }

    /// Looks up the ring again after the memory map has changed, as
    /// [`SplitRing::remap`](crate::SplitRing::remap).
    ///
    /// # Errors
    /// [`RingError`] when the ring is no longer inside one region. The queue then still uses (and
    /// keeps mapped) the old memory.
    pub fn remap(&mut self, memory: &GuestMemory) -> Result<(), RingError> {
        self.ring = PackedView::new(memory, self.layout)?;
        Ok(())
    }

    /// Whether the driver made a chain available that was not popped: cheap, for polling.
    #[inline]
    pub fn has_available(&self) -> bool {
        let flags = self.ring.flags(self.next_avail.index);
        self.next_avail.is_available(flags)
    }

    /// Pops the next chain into `chain` and returns its identifier for [`push`](Self::push).
    /// `Ok(None)` when there is none.
    ///
    /// `memory` is what the segments point into: the caller keeps it until the request is over.
    ///
    /// # Errors
    /// [`RingError`] for everything a driver must not do. The queue is then broken: its position has not
    /// changed, and another call returns the same. The content of `chain` is then undefined.
    pub fn pop(
        &mut self,
        memory: &GuestMemory,
        chain: &mut Chain,
    ) -> Result<Option<ChainId>, RingError> {
        chain.clear();
        let first = self.ring.descriptor(self.next_avail.index);
        if !self.next_avail.is_available(first.flags) {
            return Ok(None);
        }
        let mut reader = ChainReader {
            ring: &self.ring,
            memory,
            buffers: BufferTranslator::new(memory, self.region_hint),
            indirect: self.features.indirect,
            taken: self.taken,
        };
        let (id, descriptors) = reader.read_chain(self.next_avail, first, chain)?;
        self.region_hint = reader.buffers.finish_chain(chain)?;
        self.next_avail = self.next_avail.advance(descriptors, self.ring.size());
        self.taken += descriptors;
        Ok(Some(ChainId { id, descriptors }))
    }

    /// Reads a chain that an earlier process had popped, from a copy of its descriptors, and moves no position.
    pub(crate) fn read_chain_from_descriptor_copies(
        &mut self,
        memory: &GuestMemory,
        descriptors: &[PackedDescriptor],
        chain: &mut Chain,
    ) -> Result<(), RingError> {
        chain.clear();
        let mut reader = ChainReader {
            ring: &self.ring,
            memory,
            buffers: BufferTranslator::new(memory, self.region_hint),
            indirect: self.features.indirect,
            taken: 0,
        };
        reader.read_chain_from_descriptor_copies(descriptors, chain)?;
        self.region_hint = reader.buffers.finish_chain(chain)?;
        Ok(())
    }

    /// Continues where an earlier process has stopped: the guest's next used entry is at `used`, and the `taken` descriptors from
    /// there on were popped. Used entries among them, which the guest does not see yet, are removed.
    pub(crate) fn restore_position_and_flags(&mut self, used: PackedPosition, taken: u16) {
        (self.next_used, self.published) = (used, used);
        self.taken = taken;
        let mut at = used;
        for _ in 0..taken {
            before_store();
            self.ring.restore_available_flags(at);
            at = at.advance(1, self.ring.size());
        }
        self.next_avail = at;
    }

    /// Its view of guest memory.
    #[inline]
    pub(crate) fn view(&self) -> &PackedView {
        &self.ring
    }

    /// The position of the guest's next used entry once all pushed entries are published.
    #[inline]
    pub(crate) fn next_used_position(&self) -> PackedPosition {
        self.next_used
    }

    /// Pushes a used entry: the chain is done, and `written_bytes` were written to the beginning of
    /// its writable segments. The guest does not see it yet.
    #[inline]
    pub fn push(&mut self, chain: ChainId, written_bytes: u32) {
        let ChainId { id, descriptors } = chain;
        debug_assert!(descriptors <= self.taken - self.unpublished);
        // The length counts only with the WRITE flag.
        let wrote = if written_bytes == 0 { 0 } else { F_WRITE };
        let entry = UsedEntry {
            len: written_bytes,
            id,
            flags: self.next_used.used_flags() | wrote,
        };
        if self.unpublished == 0 {
            self.first_used = entry;
        } else {
            before_store();
            self.ring
                .store_used_entry_after_first(self.next_used.index, entry);
        }
        self.unpublished += descriptors;
        self.next_used = self.next_used.advance(descriptors, self.ring.size());
    }

    /// Publishes all entries pushed since the last time, and returns whether the guest is to be
    /// signalled for them (section 2.8.10). False when there were none.
    ///
    /// When the driver waits for a certain descriptor, the first batch after the start is signalled
    /// in any case: the guest may not have been signalled for entries of an earlier process.
    #[inline]
    pub fn publish(&mut self) -> bool {
        if self.unpublished == 0 {
            return false;
        }
        let (old, new) = (self.published, self.next_used);
        before_store();
        self.ring
            .store_first_used_of_batch(old.index, self.first_used);
        self.published = new;
        self.taken -= self.unpublished;
        let passed = std::mem::take(&mut self.unpublished);
        let first_publish = std::mem::take(&mut self.first_publish);
        // The driver first stores the event that it waits for and then reads the ring once more; we first
        // store to the ring and then read the event. The fence keeps our two in order,
        // so that at least one of the sides sees the other.
        fence(Ordering::SeqCst);
        let event = self.ring.load_driver_event();
        match event.flags {
            FLAGS_DISABLE => false,
            FLAGS_DESC if self.features.event_idx => {
                let awaited = PackedPosition::from_bits(event.position);
                first_publish || old.distance(awaited, self.ring.size()) < passed
            }
            // Also for reserved values: a signal too many is harmless.
            _ => true,
        }
    }

    /// Disables kicks while the ring is polled. A kick may still come.
    #[inline]
    pub fn disable_kicks(&mut self) {
        self.ring.store_device_event(EventArea {
            position: 0,
            flags: FLAGS_DISABLE,
        });
    }

    /// Enables kicks, and checks the ring once more: true means that there is a chain already, for which no kick may come.
    #[inline]
    pub fn enable_kicks_and_recheck(&mut self) -> bool {
        before_store();
        let flags = if self.features.event_idx {
            FLAGS_DESC
        } else {
            FLAGS_ENABLE
        };
        let position = self.next_avail.to_bits();
        self.ring.store_device_event(EventArea { position, flags });
        // As in `publish`, with the sides exchanged.
        fence(Ordering::SeqCst);
        self.has_available()
    }

    /// Calls `range` with guest address and length of each part of the ring that the device writes: the ring with its used
    /// entries, and its event area, which the front-end calls `used`.
    pub(crate) fn for_each_device_written_ring_part(
        &self,
        used: u64,
        mut range: impl FnMut(u64, u64),
    ) {
        let entries = u64::from(self.layout.size);
        range(self.layout.desc, entries * u64::from(DESCRIPTOR_LEN_BYTES));
        range(used, ring::EVENT_LEN_BYTES as u64);
    }

    /// The position of the next chain, in the format of [`new`](Self::new).
    #[inline]
    pub fn next_avail(&self) -> u16 {
        self.next_avail.to_bits()
    }

    /// The position of the guest's next used entry once all pushed entries are published, in the same format.
    #[inline]
    pub(crate) fn next_used(&self) -> u16 {
        self.next_used.to_bits()
    }

    /// The position of the guest's next used entry, in the same format.
    #[inline]
    pub fn published_used(&self) -> u16 {
        self.published.to_bits()
    }
}
