//! The three rings of a split virtqueue as host pointers.
//!
//! The only code that reads and writes these rings' words. It keeps no index.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

use crate::descriptor::{DESCRIPTOR_LEN_BYTES, Descriptor, read_aligned_descriptor_words};
use crate::error::{RingError, RingPart};
use crate::layout::{MAX_QUEUE_SIZE, RingFeatures, RingLayout, find_ring_part};
use crate::memory::GuestMemory;

// Offsets of `struct virtq_avail` (section 2.7.6) and `struct virtq_used` (section 2.7.8). Both
// end in an event index after the last entry.
const FLAGS: usize = 0;
const IDX: usize = 2;
const ENTRIES: usize = 4;
const AVAIL_ENTRY_LEN_BYTES: usize = 2;
const USED_ENTRY_LEN_BYTES: usize = 8;
const EVENT_LEN_BYTES: usize = 2;

/// Checked host addresses of the three rings, and the owners that keep them mapped.
#[derive(Clone, Debug)]
pub(crate) struct SplitView {
    desc: NonNull<u8>,
    avail: NonNull<u8>,
    used: NonNull<u8>,
    /// `size - 1`: the position of an index is its low bits.
    mask: u16,
    _owners: [Arc<dyn Any + Send + Sync>; 3],
}

// SAFETY: the pointers are to memory shared with another process or machine, which is accessed with
// atomics only and stays mapped as long as `_owners`; no thread is special to it.
unsafe impl Send for SplitView {}

impl SplitView {
    /// Checks the layout and looks up the rings in `memory`.
    pub fn new(
        memory: &GuestMemory,
        layout: RingLayout,
        features: RingFeatures,
    ) -> Result<SplitView, RingError> {
        let size = layout.size;
        if !size.is_power_of_two() || size > MAX_QUEUE_SIZE {
            return Err(RingError::BadSize {
                size,
                max: MAX_QUEUE_SIZE,
            });
        }
        let entries = usize::from(size);
        // Without VIRTIO_F_EVENT_IDX the event index is not part of the rings.
        let event = if features.event_idx {
            EVENT_LEN_BYTES
        } else {
            0
        };
        let desc_len = usize::from(DESCRIPTOR_LEN_BYTES) * entries;
        let avail_len = ENTRIES + AVAIL_ENTRY_LEN_BYTES * entries + event;
        let used_len = used_len_bytes(size, features.event_idx);
        // Alignments: the table in section 2.7.
        let (desc, desc_owner) =
            find_ring_part(memory, RingPart::Descriptors, layout.desc, desc_len, 16)?;
        let (avail, avail_owner) =
            find_ring_part(memory, RingPart::Available, layout.avail, avail_len, 2)?;
        let (used, used_owner) = find_ring_part(memory, RingPart::Used, layout.used, used_len, 4)?;
        let _owners = [desc_owner, avail_owner, used_owner];
        Ok(SplitView {
            desc,
            avail,
            used,
            mask: size - 1,
            _owners,
        })
    }

    /// Number of entries of each ring.
    #[inline]
    pub fn size(&self) -> u16 {
        self.mask + 1
    }

    /// `avail.idx`. Acquire: reads after it see the entries and descriptors before it.
    #[inline]
    pub fn avail_idx(&self) -> u16 {
        u16::from_le(self.atomic_avail_word(IDX).load(Ordering::Acquire))
    }

    /// The head in the available ring's entry for `index`, unchecked.
    #[inline]
    pub fn avail_entry(&self, index: u16) -> u16 {
        let offset = ENTRIES + AVAIL_ENTRY_LEN_BYTES * usize::from(index & self.mask);
        u16::from_le(self.atomic_avail_word(offset).load(Ordering::Relaxed))
    }

    /// `avail.flags`.
    #[inline]
    pub fn avail_flags(&self) -> u16 {
        u16::from_le(self.atomic_avail_word(FLAGS).load(Ordering::Relaxed))
    }

    /// `avail.used_event`: only with `RingFeatures::event_idx`, which made it part of the ring.
    #[inline]
    pub fn used_event(&self) -> u16 {
        let offset = ENTRIES + AVAIL_ENTRY_LEN_BYTES * (usize::from(self.mask) + 1);
        u16::from_le(self.atomic_avail_word(offset).load(Ordering::Relaxed))
    }

    /// Descriptor `index` of the table. The caller checks the index: beyond the table it
    /// wraps, so that no index leads outside it.
    #[inline]
    pub fn descriptor(&self, index: u16) -> Descriptor {
        let offset = usize::from(DESCRIPTOR_LEN_BYTES) * usize::from(index & self.mask);
        // SAFETY: the offset is below `16 * size`, the length that `new` looked up; it and the table
        // are aligned to 16 bytes.
        Descriptor::from_words(unsafe { read_aligned_descriptor_words(self.desc.add(offset)) })
    }

    /// `used.idx`.
    #[inline]
    pub fn used_idx(&self) -> u16 {
        u16::from_le(self.atomic_used_word(IDX).load(Ordering::Relaxed))
    }

    /// Fills the used ring's entry for `index`. The guest does not read it before the index is stored.
    #[inline]
    pub fn store_used_entry(&self, index: u16, head: u16, written_bytes: u32) {
        let offset = ENTRIES + USED_ENTRY_LEN_BYTES * usize::from(index & self.mask);
        // SAFETY: the eight bytes are below `4 + 8 * size`, which `new` looked up, and aligned to
        // four since the ring is; guest memory is never borrowed.
        unsafe {
            let id = self.used.add(offset).cast::<u32>();
            AtomicU32::from_ptr(id.as_ptr()).store(u32::from(head).to_le(), Ordering::Relaxed);
            AtomicU32::from_ptr(id.add(1).as_ptr()).store(written_bytes.to_le(), Ordering::Relaxed);
        }
    }

    /// Stores `used.idx`. Release: the entries before it, and all data, are visible with it.
    #[inline]
    pub fn store_used_idx(&self, index: u16) {
        self.atomic_used_word(IDX)
            .store(index.to_le(), Ordering::Release);
    }

    /// Stores `used.flags`.
    #[inline]
    pub fn store_used_flags(&self, flags: u16) {
        self.atomic_used_word(FLAGS)
            .store(flags.to_le(), Ordering::Relaxed);
    }

    /// Stores `used.avail_event`: only with `RingFeatures::event_idx`, as for
    /// [`used_event`](Self::used_event).
    #[inline]
    pub fn store_avail_event(&self, index: u16) {
        let offset = ENTRIES + USED_ENTRY_LEN_BYTES * (usize::from(self.mask) + 1);
        self.atomic_used_word(offset)
            .store(index.to_le(), Ordering::Relaxed);
    }

    #[inline]
    fn atomic_avail_word(&self, offset: usize) -> &AtomicU16 {
        // SAFETY: the offsets used above are even and within the length that `new` looked up (the
        // event index only with the feature); the ring is aligned to two bytes, stays mapped as
        // long as `self`, and is accessed with atomics only, or from outside this program.
        unsafe { AtomicU16::from_ptr(self.avail.add(offset).cast().as_ptr()) }
    }

    #[inline]
    fn atomic_used_word(&self, offset: usize) -> &AtomicU16 {
        // SAFETY: as for `atomic_avail_word`.
        unsafe { AtomicU16::from_ptr(self.used.add(offset).cast().as_ptr()) }
    }
}

/// Bytes of a used ring, which the device writes (section 2.7.8), with the event index if there is one.
pub(crate) fn used_len_bytes(size: u16, event_idx: bool) -> usize {
    let event = if event_idx { EVENT_LEN_BYTES } else { 0 };
    ENTRIES + USED_ENTRY_LEN_BYTES * usize::from(size) + event
}
