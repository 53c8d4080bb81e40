//! Persistent reservations that outlive the program (APTPL): who keeps them, and what is handed over.

use std::fmt::Debug;
use std::sync::Arc;

use engine::Errno;

/// Keeps a unit's reservations where a restart finds them.
pub trait Keeper: Debug + Send + Sync {
    /// Keeps this text instead of what was kept before, in a way that survives a crash at any moment. It may take its
    /// time: it is called by [`Saving::run`] alone, and for one change at a time.
    ///
    /// # Errors
    /// Why not; what was kept before still is.
    fn keep(&self, text: &str) -> Result<(), Errno>;
}

/// Reservations on their way to a [`Keeper`].
#[derive(Debug)]
pub struct Saving {
    pub(crate) keeper: Arc<dyn Keeper>,
    pub(crate) text: String,
}

impl Saving {
    /// Saves them, on a thread that may wait.
    ///
    /// # Errors
    /// What the keeper says, for [`Task::completed`](crate::Task::completed).
    pub fn run(self) -> Result<(), Errno> {
        self.keeper.keep(&self.text)
    }
}
