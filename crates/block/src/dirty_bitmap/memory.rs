//! The memory that bitmaps of one command may have together.

use super::BitmapError;

/// The most bytes of one bitmap, and of all that a command makes.
pub(super) const MAX_BYTES: u64 = 1 << 30;

/// The memory that bitmaps of one command have so far. It is counted before it is allocated.
#[derive(Default)]
pub struct BitmapMemory(u64);

impl BitmapMemory {
    /// Counts a bitmap for a disk of `size` bytes.
    ///
    /// # Errors
    /// [`BitmapError::TooLargeTogether`].
    pub fn count(&mut self, size: u64, granularity: u64) -> Result<(), BitmapError> {
        let bytes = size.div_ceil(granularity.max(1)).div_ceil(8);
        self.0 = self.0.saturating_add(bytes);
        match self.0 > MAX_BYTES {
            true => Err(BitmapError::TooLargeTogether(self.0)),
            false => Ok(()),
        }
    }
}
