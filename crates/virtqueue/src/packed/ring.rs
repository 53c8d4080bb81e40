//! The descriptor ring and the two event areas of a packed virtqueue as host pointers.
//!
//! The only code that reads and writes those words, as `split/ring.rs` is for a split queue. It keeps no position in the ring.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::position::{F_AVAIL, F_USED, PackedPosition};
use crate::descriptor::DESCRIPTOR_LEN_BYTES;
use crate::error::{RingError, RingPart};
use crate::layout::{MAX_QUEUE_SIZE, RingLayout, find_ring_part};
use crate::memory::GuestMemory;

/// `struct pvirtq_event_suppress` (section 2.8.14).
pub(super) const EVENT_LEN_BYTES: usize = 4;

/// A descriptor: `struct pvirtq_desc` (section 2.8.13) in host byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PackedDescriptor {
    pub addr: u64,
    pub len: u32,
    pub id: u16,
    pub flags: u16,
}

impl PackedDescriptor {
    /// Decodes the descriptor's two little-endian words.
    #[inline]
    pub fn from_words(words: [u64; 2]) -> PackedDescriptor {
        let rest = u64::from_le(words[1]);
        PackedDescriptor {
            addr: u64::from_le(words[0]),
            len: (rest & 0xffff_ffff) as u32,
            id: ((rest >> 32) & 0xffff) as u16,
            flags: (rest >> 48) as u16,
        }
    }
}

/// A used entry: the second word of a descriptor. The guest ignores the first.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct UsedEntry {
    pub len: u32,
    pub id: u16,
    pub flags: u16,
}

impl UsedEntry {
    /// The second word of a used descriptor, little-endian.
    #[inline]
    fn to_word(self) -> u64 {
        let word = u64::from(self.len) | u64::from(self.id) << 32 | u64::from(self.flags) << 48;
        word.to_le()
    }
}

/// Event suppression area: when one side wants to be notified by the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EventArea {
    /// A position, for [`FLAGS_DESC`](super::FLAGS_DESC).
    pub position: u16,
    /// `RING_EVENT_FLAGS_*`.
    pub flags: u16,
}

/// Checked host addresses, and the owners that keep them mapped.
#[derive(Clone, Debug)]
pub(crate) struct PackedView {
    desc: NonNull<u8>,
    driver: NonNull<u8>,
    device: NonNull<u8>,
    size: u16,
    _owners: [Arc<dyn Any + Send + Sync>; 3],
}

// SAFETY: the pointers are to memory shared with another process or machine, which is accessed with
// atomics only and stays mapped as long as `_owners`; no thread is special to it.
unsafe impl Send for PackedView {}

impl PackedView {
    /// Checks the layout and looks up the ring and the areas in `memory`.
    pub fn new(memory: &GuestMemory, layout: RingLayout) -> Result<PackedView, RingError> {
        let size = layout.size;
        if size == 0 || size > MAX_QUEUE_SIZE {
            return Err(RingError::BadPackedSize {
                size,
                max: MAX_QUEUE_SIZE,
            });
        }
        let desc_len = usize::from(DESCRIPTOR_LEN_BYTES) * usize::from(size);
        // Alignments: the table in section 2.8.10.1.
        let (desc, desc_owner) =
            find_ring_part(memory, RingPart::DescriptorRing, layout.desc, desc_len, 16)?;
        let (driver, driver_owner) = find_ring_part(
            memory,
            RingPart::DriverEvent,
            layout.avail,
            EVENT_LEN_BYTES,
            4,
        )?;
        let (device, device_owner) = find_ring_part(
            memory,
            RingPart::DeviceEvent,
            layout.used,
            EVENT_LEN_BYTES,
            4,
        )?;
        Ok(PackedView {
            desc,
            driver,
            device,
            size,
            _owners: [desc_owner, driver_owner, device_owner],
        })
    }

    /// Number of descriptors.
    #[inline]
    pub fn size(&self) -> u16 {
        self.size
    }

    /// The flags of descriptor `index`.
    #[inline]
    pub fn flags(&self, index: u16) -> u16 {
        let rest = self
            .atomic_descriptor_word(index, 1)
            .load(Ordering::Relaxed);
        (u64::from_le(rest) >> 48) as u16
    }

    /// Descriptor `index`, each of its bytes read once. Acquire on its flags: if they say that it is
    /// available, the rest of it and of its chain is seen as the driver made it.
    #[inline]
    pub fn descriptor(&self, index: u16) -> PackedDescriptor {
        let rest = self
            .atomic_descriptor_word(index, 1)
            .load(Ordering::Acquire);
        PackedDescriptor::from_words([
            self.atomic_descriptor_word(index, 0)
                .load(Ordering::Relaxed),
            rest,
        ])
    }

    /// Stores a used entry in descriptor `index`. Relaxed: for all but the first of a batch, beyond which the guest does not read
    /// before that one is used.
    #[inline]
    pub fn store_used_entry_after_first(&self, index: u16, entry: UsedEntry) {
        self.atomic_descriptor_word(index, 1)
            .store(entry.to_word(), Ordering::Relaxed);
    }

    /// Stores the used entry of the first chain of a batch. Release: the others, and all data, are visible with it.
    #[inline]
    pub fn store_first_used_of_batch(&self, index: u16, entry: UsedEntry) {
        self.atomic_descriptor_word(index, 1)
            .store(entry.to_word(), Ordering::Release);
    }

    /// Restores the AVAIL and USED flags that a descriptor had before a used entry overwrote it.
    pub fn restore_available_flags(&self, at: PackedPosition) {
        let word = self.atomic_descriptor_word(at.index, 1);
        let rest = u64::from_le(word.load(Ordering::Relaxed));
        let flags = (rest >> 48) as u16 & !(F_AVAIL | F_USED) | at.available_flags();
        let rest = rest & !(0xffff << 48) | u64::from(flags) << 48;
        word.store(rest.to_le(), Ordering::Release);
    }

    /// The driver's event suppression: when it wants to be signalled.
    #[inline]
    pub fn load_driver_event(&self) -> EventArea {
        // SAFETY: four bytes that `new` looked up, aligned to four, which stay mapped as long as
        // `self` and are accessed with atomics only, or from outside this program.
        let word = unsafe { AtomicU32::from_ptr(self.driver.cast().as_ptr()) };
        let word = u32::from_le(word.load(Ordering::Relaxed));
        EventArea {
            position: (word & 0xffff) as u16,
            flags: (word >> 16) as u16,
        }
    }

    /// Stores the device's event suppression: when it wants to be kicked.
    #[inline]
    pub fn store_device_event(&self, event: EventArea) {
        let word = u32::from(event.position) | u32::from(event.flags) << 16;
        // SAFETY: as for the driver's.
        let area = unsafe { AtomicU32::from_ptr(self.device.cast().as_ptr()) };
        area.store(word.to_le(), Ordering::Relaxed);
    }

    /// One of the two words of descriptor `index`, which is inside the ring.
    #[inline]
    fn atomic_descriptor_word(&self, index: u16, word: usize) -> &AtomicU64 {
        assert!(index < self.size, "a position is inside the ring");
        let offset = usize::from(DESCRIPTOR_LEN_BYTES) * usize::from(index) + 8 * word;
        // SAFETY: with the index below `size`, the eight bytes are within the `16 * size` that `new`
        // looked up; the ring is aligned to 16, and mapped and accessed as the event areas are.
        unsafe { AtomicU64::from_ptr(self.desc.add(offset).cast().as_ptr()) }
    }
}
