//! Trait for the storage of persistent reservations that survive a restart (APTPL), which the daemon implements.

use std::fmt::Debug;

use engine::Errno;

/// Stores a unit's reservations.
pub trait ReservationStore: Debug + Send + Sync {
    /// Replaces the stored text, atomically even in a crash. It may block: it is
    /// called by [`DiskCall::run`](block::DiskCall::run) only, for one change at a time.
    ///
    /// # Errors
    /// Of the storage; the previous text is still stored.
    fn save(&self, text: &str) -> Result<(), Errno>;
}
