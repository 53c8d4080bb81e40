//! The requests of a copy to its target, if that is an export of an NBD server: they are cancelled together, and the copy fails if the
//! server may have lost some.

use std::sync::Arc;

use engine::Errno;
use nbd::client::{Cancellation, Disk, RequestGroup};

use super::{BlockCopy, CopyFailure, CopySide};

impl BlockCopy {
    /// Makes the group of the requests to the target, which is this export, before the first one.
    pub(crate) fn group_requests_to(&self, target: &Arc<Disk>) {
        self.requests_to_target
            .get_or_init(|| RequestGroup::new(target));
    }

    /// The group of the requests to the target.
    pub(crate) fn requests_to_target(&self) -> Option<Arc<RequestGroup>> {
        self.requests_to_target.get().cloned()
    }

    /// Cancels the requests to the target as long as the result exists: neither the end of the copy nor guests wait for a server that is
    /// gone or silent.
    #[must_use]
    pub fn cancel_requests_to_target(&self) -> Option<Cancellation> {
        let group = self.requests_to_target.get()?;
        Cancellation::begin(group)
    }

    /// Whether the target may have lost what it has answered, and would flush without an error: a connection to its server broke.
    #[must_use]
    pub fn may_have_lost_writes(&self) -> bool {
        let group = self.requests_to_target.get();
        group.is_some_and(|group| group.may_have_lost_writes())
    }

    /// Checks that the target has lost nothing, as far as is known.
    ///
    /// # Errors
    /// `ECONNRESET` of the target: it [may have](Self::may_have_lost_writes).
    pub fn check_target(&self) -> Result<(), CopyFailure> {
        match self.may_have_lost_writes() {
            true => Err(CopySide::Target.failed(Errno::CONNRESET)),
            false => Ok(()),
        }
    }
}
