//! The sequence of a queue's requests.

use super::pattern::Walk;
use crate::client::{Commands, Kind};
use crate::error::Result;

/// Decides what a free slot does next, and looks at what it has done.
pub trait Plan {
    /// The block that `slot` is for now, and what to do with it; its data is ready for a write.
    /// `None` if there is nothing to do for it any more.
    fn next(&mut self, slot: usize, requests: &impl Commands) -> Option<(u64, Kind)>;

    /// `slot` has completed well.
    ///
    /// # Errors
    /// When what was read is not what it should be.
    fn done(&mut self, slot: usize, requests: &impl Commands) -> Result<()>;

    /// Whether it has nothing to do for any slot any more.
    fn is_done(&self) -> bool;
}

/// Load for its own sake: the data does not matter.
impl Plan for Walk {
    #[inline]
    fn next(&mut self, _slot: usize, _requests: &impl Commands) -> Option<(u64, Kind)> {
        Some(self.step())
    }

    #[inline]
    fn done(&mut self, _slot: usize, _requests: &impl Commands) -> Result<()> {
        Ok(())
    }

    fn is_done(&self) -> bool {
        false
    }
}
