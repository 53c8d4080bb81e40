//! Locks for writes of parts of a disk's blocks. Such a write reads the block, changes it and writes it back, which would undo other
//! writes to the block: while guests write parts of an image's blocks, every write to it takes the lock of its range.
//!
//! The lock is one for all openings of an image in this process: while a node is reopened some exports use the new opening, and some
//! still the old one.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::disk_file::image_id::ImageId;
use crate::range_lock::RangeLock;

static OPEN_IMAGES: Mutex<Vec<(ImageId, Weak<OpenImage>)>> = Mutex::new(Vec::new());

/// What the openings of an image share.
#[derive(Default)]
struct OpenImage {
    /// Openings whose guests write parts of blocks.
    partial_openings: AtomicUsize,
    /// The largest block of all openings, in bytes.
    block_bytes: AtomicU64,
    ranges: RangeLock,
}

/// Whether the guests of an opening write parts of the blocks of direct I/O, and what it shares with other openings.
pub(crate) struct PartialBlockMode(Arc<Opening>);

struct Opening {
    /// Unset before its first guest.
    decision: Mutex<Option<Decision>>,
    image: Arc<OpenImage>,
}

#[derive(Clone, Copy)]
struct Decision {
    is_partial: bool,
    /// Guests that have come, or are to come. It is taken back when none of them has.
    guests: usize,
}

impl PartialBlockMode {
    /// Of an opening of this image, whose I/O has blocks of so many bytes.
    pub fn for_image(id: ImageId, block_bytes: u32) -> Self {
        let mut images = OPEN_IMAGES.lock().unwrap_or_else(PoisonError::into_inner);
        images.retain(|(_, image)| image.strong_count() > 0);
        let known = images.iter().find(|(known, _)| *known == id);
        let image = known.and_then(|(_, image)| image.upgrade());
        let image = image.unwrap_or_else(|| {
            let image = Arc::default();
            images.push((id, Arc::downgrade(&image)));
            image
        });
        Self::for_opening(image, block_bytes)
    }

    /// Of a simulated disk, which is opened once.
    #[cfg(feature = "simulation")]
    pub fn for_simulated_disk(block_bytes: u32) -> Self {
        Self::for_opening(Arc::default(), block_bytes)
    }

    fn for_opening(image: Arc<OpenImage>, block_bytes: u32) -> Self {
        let bytes = block_bytes.into();
        image.block_bytes.fetch_max(bytes, Ordering::Relaxed);
        PartialBlockMode(Arc::new(Opening {
            decision: Mutex::default(),
            image,
        }))
    }

    /// Whether guests write parts of blocks, by this or another opening of the image.
    pub fn has_partial_blocks(&self) -> bool {
        self.0.image.partial_openings.load(Ordering::Acquire) > 0
    }

    /// Sets the mode of this opening for a guest that is to come. `None`: it is the other one.
    pub fn try_set_partial(&self, is_partial: bool) -> Option<GuestBlockMode> {
        let mut decision = self.0.lock_decision();
        let decided = decision.get_or_insert_with(|| {
            if is_partial {
                self.0.image.partial_openings.fetch_add(1, Ordering::AcqRel);
            }
            Decision {
                is_partial,
                guests: 0,
            }
        });
        if decided.is_partial != is_partial {
            return None;
        }
        decided.guests += 1;
        Some(GuestBlockMode(Some(self.0.clone())))
    }

    /// The lock of ranges.
    pub fn range_lock(&self) -> &RangeLock {
        &self.0.image.ranges
    }

    /// Bytes of the blocks that ranges are rounded to.
    pub fn block_bytes(&self) -> u64 {
        self.0.image.block_bytes.load(Ordering::Relaxed)
    }
}

impl Opening {
    fn lock_decision(&self) -> MutexGuard<'_, Option<Decision>> {
        self.decision.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_back(&self, decision: &mut Option<Decision>) {
        if decision.take().is_some_and(|decided| decided.is_partial) {
            self.image.partial_openings.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        self.take_back(&mut self.lock_decision());
    }
}

/// The mode of an opening, set for a guest that is to come. If that fails, it is dropped, and the mode is that of the other guests; it
/// is free if there are none.
#[must_use = "the mode is taken back if it is dropped"]
pub struct GuestBlockMode(Option<Arc<Opening>>);

impl GuestBlockMode {
    /// Of a guest that goes with any mode.
    pub fn of_any_guest() -> Self {
        GuestBlockMode(None)
    }

    /// The guest has come: the mode stays until the disk is closed.
    pub fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for GuestBlockMode {
    fn drop(&mut self) {
        let Some(opening) = &self.0 else { return };
        let mut decision = opening.lock_decision();
        if let Some(decided) = &mut *decision {
            decided.guests -= 1;
            if decided.guests == 0 {
                opening.take_back(&mut decision);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guest_that_does_not_come_decides_no_mode() {
        let opening = PartialBlockMode::for_opening(Arc::default(), 4096);
        for is_partial in [true, false, true] {
            let mode = opening.try_set_partial(is_partial).unwrap();
            assert_eq!(opening.has_partial_blocks(), is_partial);
            assert!(opening.try_set_partial(!is_partial).is_none());
            drop(mode);
            assert!(!opening.has_partial_blocks());
        }
    }

    #[test]
    fn guest_that_does_not_come_leaves_the_mode_of_those_that_have() {
        let image = Arc::<OpenImage>::default();
        let opening = PartialBlockMode::for_opening(image.clone(), 4096);
        let first = opening.try_set_partial(true).unwrap();
        opening.try_set_partial(true).unwrap().keep();
        drop(first);
        drop(opening.try_set_partial(true).unwrap());
        assert!(opening.try_set_partial(false).is_none());
        assert!(opening.has_partial_blocks());
        drop(opening);
        assert_eq!(image.partial_openings.load(Ordering::Relaxed), 0);
    }
}
