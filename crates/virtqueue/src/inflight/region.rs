//! In-flight region of one queue: reads and writes its fields, as vhost-user lays them out in shared memory.
//!
//! Layouts: `QueueRegionSplit` and `QueueRegionPacked` of the vhost-user specification, little-endian. Only back-ends on the same
//! host read them.

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, Ordering};

use crate::error::InflightError;
use crate::store_hook::before_store;

/// Regions begin at cache lines: two queues' iothreads do not share one.
const ALIGN_BYTES: usize = 64;

const VERSION_OFFSET: usize = 8;
/// The only version. 0: nothing was recorded yet.
const VERSION_1: u16 = 1;

/// Bytes of a region's header, and of an entry: of split queues, and of packed ones.
pub(super) const SPLIT_ENTRY_BYTES: usize = 16;
pub(super) const PACKED_ENTRY_BYTES: usize = 32;

/// Memory with the record of chains in flight of one queue.
#[derive(Clone)]
pub struct InflightRegion {
    host: NonNull<u8>,
    packed: bool,
    entries: u16,
    _owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the pointer is to memory shared with another process, which is accessed with atomics only
// and stays mapped as long as `_owner`; no thread is special to it.
unsafe impl Send for InflightRegion {}
// SAFETY: as above.
unsafe impl Sync for InflightRegion {}

impl fmt::Debug for InflightRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let InflightRegion {
            packed, entries, ..
        } = self;
        write!(
            f,
            "InflightRegion {{ packed: {packed}, entries: {entries} }}"
        )
    }
}

impl InflightRegion {
    /// Offset of `desc_num` in the header of either format, in bytes.
    pub const DESC_NUM_OFFSET: usize = 10;

    /// Bytes of the region of a queue of either format with `entries` descriptors: where the next one
    /// begins.
    #[must_use]
    pub fn len_bytes(packed: bool, entries: u16) -> usize {
        let bytes = if packed {
            PACKED_ENTRY_BYTES
        } else {
            SPLIT_ENTRY_BYTES
        };
        (bytes * (1 + usize::from(entries))).next_multiple_of(ALIGN_BYTES)
    }

    /// The region at `host`, which is aligned to eight bytes. Zeroes are a new one.
    ///
    /// # Panics
    /// If it is not aligned.
    ///
    /// # Safety
    /// [`len_bytes`](Self::len_bytes) bytes at `host` stay mapped, readable and writable, as long as
    /// `owner` lives, and no code in this process holds a Rust reference to them.
    #[must_use]
    pub unsafe fn new(
        host: NonNull<u8>,
        packed: bool,
        entries: u16,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        assert!(host.cast::<u64>().is_aligned(), "a region is made of words");
        InflightRegion {
            host,
            packed,
            entries,
            _owner: owner,
        }
    }

    /// Clears the record if nothing is in flight: the next start uses the front-end's base.
    pub fn clear_if_idle(&self) {
        let in_flight = |index| {
            self.is_in_flight(match self.packed {
                true => self.entry_offset::<PACKED_ENTRY_BYTES>(index),
                false => self.entry_offset::<SPLIT_ENTRY_BYTES>(index),
            })
        };
        if !(0..self.entries).any(in_flight) {
            self.clear();
        }
    }

    /// Clears the record whatever is in flight: the next start uses the front-end's base, and recovers nothing.
    pub fn clear(&self) {
        self.store_u16(VERSION_OFFSET, 0);
    }

    /// The number of descriptors in the header; 0: none was written.
    #[must_use]
    pub fn desc_num(&self) -> u16 {
        self.load_u16(Self::DESC_NUM_OFFSET)
    }

    /// Whether there is a record, valid or not.
    pub(crate) fn has_record(&self) -> bool {
        self.load_u16(VERSION_OFFSET) != 0
    }

    /// Number of entries.
    pub(super) fn entry_count(&self) -> u16 {
        self.entries
    }

    /// Whether it belongs to a packed queue.
    pub(crate) fn is_packed(&self) -> bool {
        self.packed
    }

    /// Whether there is a valid record for a queue of this size.
    pub(super) fn has_valid_record(&self, size: u16) -> Result<bool, InflightError> {
        let (version, found, entries) = (
            self.load_u16(VERSION_OFFSET),
            self.load_u16(Self::DESC_NUM_OFFSET),
            self.entries,
        );
        if size > entries {
            return Err(InflightError::TooFew { entries, size });
        }
        match version {
            0 => Ok(false),
            VERSION_1 if found == entries => Ok(true),
            VERSION_1 => Err(InflightError::Entries {
                found,
                expected: entries,
            }),
            _ => Err(InflightError::Version { version }),
        }
    }

    /// Makes the record valid, as the last step of a new record.
    pub(super) fn mark_valid(&self) {
        self.store_u16(Self::DESC_NUM_OFFSET, self.entries);
        self.store_u16(VERSION_OFFSET, VERSION_1);
    }

    /// Version and number of entries as the lower half of their word.
    pub(super) fn version_and_entries_to_store(&self) -> u64 {
        u64::from(VERSION_1) | u64::from(self.entries) << 16
    }

    /// Offset of an entry, in a format whose entries (and header) have `BYTES`.
    #[inline(always)]
    pub(super) fn entry_offset<const BYTES: usize>(&self, index: u16) -> usize {
        assert!(
            index < self.entries,
            "entries are checked when they are read"
        );
        BYTES * (1 + usize::from(index))
    }

    // The offsets below are not checked: each is that of a field of the header, or of a field of an entry whose offset
    // `entry_offset` has returned.

    /// Whether the entry at `offset` is the head of a chain that is in flight.
    pub(super) fn is_in_flight(&self, offset: usize) -> bool {
        // SAFETY: the offset is that of an entry, see above.
        unsafe { self.atomic_u8_unchecked(offset) }.load(Ordering::Acquire) == 1
    }

    /// Sets whether the chain whose head has the entry at `offset` is in flight.
    #[inline]
    pub(super) fn set_in_flight(&self, offset: usize, in_flight: bool) {
        before_store();
        // SAFETY: the offset is that of an entry, see above.
        unsafe { self.atomic_u8_unchecked(offset) }.store(u8::from(in_flight), Ordering::Release);
    }

    #[inline]
    pub(super) fn load_u16(&self, offset: usize) -> u16 {
        // SAFETY: the offset is that of a 16-bit field, see above.
        u16::from_le(unsafe { self.atomic_u16_unchecked(offset) }.load(Ordering::Acquire))
    }

    #[inline]
    pub(super) fn load_u64(&self, offset: usize) -> u64 {
        // SAFETY: the offset is that of a 64-bit word, see above.
        u64::from_le(unsafe { self.atomic_u64_unchecked(offset) }.load(Ordering::Acquire))
    }

    // Release keeps a store after all stores before it in the program, those to the rings included: that order is
    // what recovery relies on.

    #[inline]
    pub(super) fn store_u16(&self, offset: usize, value: u16) {
        before_store();
        // SAFETY: the offset is that of a 16-bit field, see above.
        unsafe { self.atomic_u16_unchecked(offset) }.store(value.to_le(), Ordering::Release);
    }

    #[inline]
    pub(super) fn store_u64(&self, offset: usize, value: u64) {
        before_store();
        // SAFETY: the offset is that of a 64-bit word, see above.
        unsafe { self.atomic_u64_unchecked(offset) }.store(value.to_le(), Ordering::Release);
    }

    /// The byte at `offset`, as an atomic.
    ///
    /// # Safety
    /// The byte lies within the header or an entry below `entries`.
    #[inline]
    unsafe fn atomic_u8_unchecked(&self, offset: usize) -> &AtomicU8 {
        // SAFETY: within the region, as the caller promises, which stays mapped as long as `self`, and is accessed with
        // atomics only.
        unsafe { AtomicU8::from_ptr(self.host.add(offset).as_ptr()) }
    }

    /// The 16-bit field at `offset`, as an atomic.
    ///
    /// # Safety
    /// Its bytes lie within the header or an entry below `entries`, and `offset` is a multiple of its size.
    #[inline]
    unsafe fn atomic_u16_unchecked(&self, offset: usize) -> &AtomicU16 {
        // SAFETY: as in `atomic_u8_unchecked`; aligned, since the region is to eight bytes.
        unsafe { AtomicU16::from_ptr(self.host.add(offset).cast().as_ptr()) }
    }

    /// The 64-bit word at `offset`, as an atomic.
    ///
    /// # Safety
    /// As of [`InflightRegion::atomic_u16_unchecked`].
    #[inline]
    unsafe fn atomic_u64_unchecked(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: as in `atomic_u16_unchecked`.
        unsafe { AtomicU64::from_ptr(self.host.add(offset).cast().as_ptr()) }
    }
}
