//! The requests of a copy to its target, if that is an export of an NBD server: they are cancelled together.

use std::sync::Arc;

use nbd::client::{Cancellation, Disk, RequestGroup, STOP_WAIT};

use super::BlockCopy;

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
        Cancellation::begin(group, STOP_WAIT)
    }
}
