//! Writers of parts of a disk's blocks. Such a write reads the block, changes it and writes it back, which would undo other writes to the
//! block: while an image has such writers every write to it takes the lock of its range.
//!
//! The lock is one for all openings of an image in this process: while a node is reopened some exports use the new opening, and some
//! still the old one.

use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::disk_file::locked_images::ImageId;
use crate::range_lock::RangeLock;

/// The images that are open.
static IMAGES: Mutex<Vec<(ImageId, Weak<ImageBlocks>)>> = Mutex::new(Vec::new());

/// What the openings of an image share.
#[derive(Default)]
struct ImageBlocks {
    /// Openings whose guests write parts of blocks.
    partial_openings: AtomicUsize,
    /// The largest block of all openings, in bytes.
    block_bytes: AtomicU64,
    ranges: RangeLock,
}

/// Whether the guests of an opening write parts of the blocks of direct I/O, and what it shares with other openings.
pub(crate) struct PartialBlockMode {
    mode: AtomicU8,
    image: Arc<ImageBlocks>,
}

const UNDECIDED: u8 = 0;
const WHOLE_BLOCKS: u8 = 1;
const PARTIAL_BLOCKS: u8 = 2;

impl PartialBlockMode {
    /// Of an opening of this image, whose I/O has blocks of so many bytes.
    pub fn of_image(id: ImageId, block_bytes: u32) -> Self {
        let mut images = IMAGES.lock().unwrap_or_else(PoisonError::into_inner);
        images.retain(|(_, image)| image.strong_count() > 0);
        let known = images.iter().find(|(known, _)| *known == id);
        let image = known.and_then(|(_, image)| image.upgrade());
        let image = image.unwrap_or_else(|| {
            let image = Arc::default();
            images.push((id, Arc::downgrade(&image)));
            image
        });
        Self::of_blocks(image, block_bytes)
    }

    /// Of a disk without a file, which is opened once.
    #[cfg(feature = "simulation")]
    pub fn alone(block_bytes: u32) -> Self {
        Self::of_blocks(Arc::default(), block_bytes)
    }

    fn of_blocks(image: Arc<ImageBlocks>, block_bytes: u32) -> Self {
        let bytes = block_bytes.into();
        image.block_bytes.fetch_max(bytes, Ordering::Relaxed);
        PartialBlockMode {
            mode: AtomicU8::new(UNDECIDED),
            image,
        }
    }

    /// Whether guests write parts of blocks, by this or another opening of the image.
    pub fn has_partial_blocks(&self) -> bool {
        self.image.partial_openings.load(Ordering::Acquire) > 0
    }

    /// Sets the mode of this opening. False: it was set to the other one before.
    pub fn try_set_partial(&self, partial: bool) -> bool {
        let wanted = if partial {
            PARTIAL_BLOCKS
        } else {
            WHOLE_BLOCKS
        };
        let set =
            self.mode
                .compare_exchange(UNDECIDED, wanted, Ordering::Relaxed, Ordering::Relaxed);
        if set.is_ok() && partial {
            self.image.partial_openings.fetch_add(1, Ordering::AcqRel);
        }
        set.map_or_else(|decided| decided == wanted, |_| true)
    }

    /// The lock of ranges, which are rounded to blocks of so many bytes.
    pub fn ranges_and_block_bytes(&self) -> (&RangeLock, u64) {
        let bytes = self.image.block_bytes.load(Ordering::Relaxed);
        (&self.image.ranges, bytes)
    }
}

impl Drop for PartialBlockMode {
    fn drop(&mut self) {
        if *self.mode.get_mut() == PARTIAL_BLOCKS {
            self.image.partial_openings.fetch_sub(1, Ordering::AcqRel);
        }
    }
}
