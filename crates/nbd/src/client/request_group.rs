//! The requests of one job to a disk: they are cancelled together, and the job learns whether the server may have lost some.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use super::disk::Disk;
use super::{nanoseconds, now_ns};

/// The requests of one job to a disk.
pub struct RequestGroup {
    disk: Weak<Disk>,
    /// The losses of the disk before the first request.
    losses_before: u64,
    /// When requests fail that wait for an answer (the loop's clock); `u64::MAX`: they are not cancelled.
    cancels_at_ns: AtomicU64,
}

impl RequestGroup {
    /// A group without requests.
    #[must_use]
    pub fn new(disk: &Arc<Disk>) -> Arc<Self> {
        disk.drop_broken_idle_connection();
        Arc::new(RequestGroup {
            disk: Arc::downgrade(disk),
            losses_before: disk.losses(),
            cancels_at_ns: AtomicU64::new(u64::MAX),
        })
    }

    /// Whether a connection to the disk has broken since the group exists. Then the server may have crashed, and have lost what it had
    /// answered and not flushed, so that a later flush says nothing about that.
    #[must_use]
    pub fn may_have_lost_writes(&self) -> bool {
        let disk = self.disk.upgrade();
        disk.is_none_or(|disk| disk.losses() != self.losses_before)
    }

    /// Whether its requests are cancelled.
    pub(super) fn is_cancelled(&self) -> bool {
        self.cancels_at_ns().is_some()
    }

    /// When its requests fail that were sent, if they are cancelled.
    pub(super) fn cancels_at_ns(&self) -> Option<u64> {
        let at_ns = self.cancels_at_ns.load(Ordering::Acquire);
        (at_ns != u64::MAX).then_some(at_ns)
    }
}

/// Cancels the requests of a group as long as it exists. They fail: at once if they were not sent, or while there is no connection; and
/// after a while if the server does not answer them.
pub struct Cancellation(Arc<Disk>);

impl Cancellation {
    /// Begins to cancel. Requests that were sent wait for an answer for the disk's `stop_timeout`. `None`: the disk is closed.
    #[must_use]
    pub fn begin(group: &RequestGroup) -> Option<Self> {
        let disk = group.disk.upgrade()?;
        let at_ns = now_ns().saturating_add(nanoseconds(disk.options().stop_timeout));
        group.cancels_at_ns.store(at_ns, Ordering::Release);
        disk.begin_cancellation();
        Some(Cancellation(disk))
    }
}

impl Drop for Cancellation {
    fn drop(&mut self) {
        self.0.end_cancellation();
    }
}
