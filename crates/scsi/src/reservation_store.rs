//! Persistent reservations that outlive the program (APTPL): who keeps them.

use std::fmt::Debug;

use engine::Errno;

/// Keeps a unit's reservations where a restart finds them.
pub trait ReservationStore: Debug + Send + Sync {
    /// Keeps this text instead of what was kept before, in a way that survives a crash at any moment. It may take its
    /// time: it is called by [`DiskCall::run`](block::DiskCall::run) alone, and for one change at a time.
    ///
    /// # Errors
    /// Why not; what was kept before still is.
    fn save(&self, text: &str) -> Result<(), Errno>;
}
