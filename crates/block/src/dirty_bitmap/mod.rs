//! Dirty bitmaps: which parts of a node may have changed, for copies of what has changed since the last one.
//!
//! A node has a list of [named bitmaps](NodeBitmaps). Each route that leads through the node has a *recorder*, which sets bits
//! in those that record: when a request that changes data has ended, even if it failed, and before its source gets the
//! completion. A node without recording bitmaps has routes as if there were no bitmaps at all.
//!
//! [`switch`] changes any number of bitmaps at one moment: no recorder sets bits meanwhile. So a request is in the bitmaps
//! of before or in those of afterwards, and if a guest submits a write after it got the completion of another one,
//! the second is not in those of before unless the first is, whatever the disks.

mod bits;
mod memory;
mod recorder;
mod saved;
mod switch;
#[cfg(test)]
mod tests;

pub use bits::{BitmapBits, DirtyExtent, MAX_GRANULARITY, MIN_GRANULARITY};
pub use memory::BitmapMemory;
pub use recorder::{BitmapUse, NodeBitmaps};
pub use saved::{ImageStamp, SaveKind, SavedBitmapsError};
pub use switch::{BitmapAction, BitmapChange, SavedOfNode, preview_saved, switch, switch_with};

/// The granularity of a bitmap that is created without one, in bytes, unless the disk has clusters of another size.
pub const DEFAULT_GRANULARITY: u64 = 65_536;
/// The most bytes of a bitmap's name.
pub const MAX_NAME_BYTES: usize = 1023;

/// Why a bitmap cannot be used or changed. The texts are QEMU's, where it has one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BitmapError {
    /// There is no bitmap of this name.
    #[error("Dirty bitmap '{0}' not found")]
    NotFound(String),
    /// There is one already.
    #[error("Bitmap already exists: {0}")]
    Exists(String),
    /// A name without characters.
    #[error("Bitmap name cannot be empty")]
    EmptyName,
    /// A name of too many bytes.
    #[error("Bitmap name too long: {0}")]
    LongName(String),
    /// The granularity is not a power of two in the limits.
    #[error("Granularity must be power of 2 and at least 512")]
    Granularity,
    /// The bitmap would need too much memory.
    #[error(
        "a dirty bitmap of {size} bytes with granularity {granularity} has {bits} bits, which do not \
         fit into memory: use a larger granularity"
    )]
    TooLarge {
        /// Bytes of the disk.
        size: u64,
        /// Bytes of a granule.
        granularity: u64,
        /// Number of bits.
        bits: u64,
    },
    /// All that one command makes would need too much memory.
    #[error(
        "the dirty bitmaps of this command would have {0} bytes together, more than 1 GiB: use larger granularities, or \
         several commands"
    )]
    TooLargeTogether(u64),
    /// An export or a job uses it, or it is removed by the same transaction.
    #[error("Bitmap '{0}' is currently in use by another operation and cannot be used")]
    Busy(String),
    /// Changes were not recorded at some time.
    #[error("Bitmap '{0}' is inconsistent and cannot be used")]
    Inconsistent(String),
    /// Bitmaps of disks of different sizes.
    #[error(
        "Bitmaps are of different sizes (destination size is {target}, source size is {other}) and \
         can't be merged"
    )]
    Sizes {
        /// Bytes of the disk of the bitmap that is changed.
        target: u64,
        /// Bytes of the other one.
        other: u64,
    },
    /// The action `abort`.
    #[error("Transaction aborted using Abort action")]
    Aborted,
}

/// State of a bitmap, for queries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BitmapStatus {
    /// Its name.
    pub name: String,
    /// Bytes for which there is one bit.
    pub granularity: u64,
    /// Bytes that may have changed, in whole granules.
    pub dirty_bytes: u64,
    /// Whether changes are recorded.
    pub recording: bool,
    /// Whether an export or a job uses it.
    pub busy: bool,
    /// Whether it outlives the daemon.
    pub persistent: bool,
    /// Whether changes were not recorded at some time: it can only be removed.
    pub inconsistent: bool,
}
