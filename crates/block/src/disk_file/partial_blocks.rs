//! Locks for writes of parts of a disk's blocks. Such a write reads the block, changes it and writes it back, which would undo other
//! writes to the block: while guests write parts of an image's blocks, every write to it takes the lock of its range.
//!
//! The lock is one for all openings of an image in this process: while a node is reopened some exports use the new opening, and some
//! still the old one.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

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
pub(crate) struct PartialBlockMode {
    /// Unset before its first guest.
    is_partial: OnceLock<bool>,
    image: Arc<OpenImage>,
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
        PartialBlockMode {
            is_partial: OnceLock::new(),
            image,
        }
    }

    /// Whether guests write parts of blocks, by this or another opening of the image.
    pub fn has_partial_blocks(&self) -> bool {
        self.image.partial_openings.load(Ordering::Acquire) > 0
    }

    /// Sets the mode of this opening. False: it was set to the other one before.
    pub fn try_set_partial(&self, is_partial: bool) -> bool {
        let decided = self.is_partial.get_or_init(|| {
            if is_partial {
                self.image.partial_openings.fetch_add(1, Ordering::AcqRel);
            }
            is_partial
        });
        *decided == is_partial
    }

    /// The lock of ranges.
    pub fn range_lock(&self) -> &RangeLock {
        &self.image.ranges
    }

    /// Bytes of the blocks that ranges are rounded to.
    pub fn block_bytes(&self) -> u64 {
        self.image.block_bytes.load(Ordering::Relaxed)
    }
}

impl Drop for PartialBlockMode {
    fn drop(&mut self) {
        if self.is_partial.get() == Some(&true) {
            self.image.partial_openings.fetch_sub(1, Ordering::AcqRel);
        }
    }
}
