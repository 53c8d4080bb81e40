//! A mirror: a copy of a disk that follows the disk, until guests go over to the target, or the copy ends as of some moment.
//!
//! A cluster is *pending* again whenever it may differ from the target. The route of each source of requests has one of these filters
//! ([`MirrorMode`]):
//!
//! - *Marks* make pending what a write has changed, when it has ended and before its guest gets to know. A cluster stops to be pending
//!   before the copier reads it. So a write that ends afterwards makes it pending again.
//! - The *filter* writes to both disks, with the range locked as the copier does. What is pending is not written twice: the
//!   copier copies it later. So nothing becomes pending any more, unless a disk fails.
//!
//! The last step is one atomic change ([`BlockCopy::try_switch_over`], [`BlockCopy::try_end_in_sync`]), possible only with filters on
//! all routes and with nothing pending or being copied. Requests that begin later go to the target alone, or to the source alone. What
//! was in flight is written to both. So queues do not stop for it, and there is no moment at which some use one disk and some the other.

mod filter;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine::Errno;

use super::{BlockCopy, COPY_CLUSTER_BYTES, CopyFailure, CopySide};
use crate::dirty_bitmap::{BitmapBits, BitmapError};
use crate::route::Route;
use crate::route::mark::{MarkReceiver, MarkedRoute};

pub(crate) use filter::add_mirror_filter;

/// The part of routes to a disk that is mirrored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MirrorMode {
    /// Marks: guests do not wait for the target.
    Mark,
    /// The filter, for what changes data.
    Write,
    /// The filter for all requests, flushes of both disks included: the mirror may end or switch over.
    Finish,
}

/// What a mirror has beside other copies.
#[derive(Default)]
pub(super) struct MirrorState {
    /// Bytes that are being copied: they do not count as pending, and not as copied.
    transfers: Mutex<u64>,
    has_switched_over: AtomicBool,
    /// The clusters that were written to a target that had only zeroes.
    written: Option<BitmapBits>,
}

/// The disks that a request goes to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Both,
    Source,
    Target,
}

impl MirrorState {
    /// Nothing that can panic runs under the lock: a poisoned one guards sound data.
    fn lock_transfers(&self) -> MutexGuard<'_, u64> {
        self.transfers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Marks the changes of requests on `below` as pending.
pub(crate) fn add_mirror_marks(copy: Arc<BlockCopy>, below: Route) -> Route {
    MarkedRoute::mark_changes(copy, below)
}

impl MarkReceiver for BlockCopy {
    fn mark_range_as_changed(&self, bytes: Range<u64>) {
        // The other side of `begin_piece`: either the copier reads the new data, or this sees that the range counts as copied.
        fence(Ordering::SeqCst);
        self.done.clear(bytes);
    }
}

impl BlockCopy {
    /// A mirror of a disk of `size` bytes. `target_is_zero`: the target has only zeroes. `on_failed_flush` is called, on an iothread,
    /// if a guest's flush fails on the target alone; the mirror is over then.
    ///
    /// # Errors
    /// [`BitmapError::TooLarge`]: no memory.
    pub fn new_mirror(
        size: u64,
        target_is_zero: bool,
        on_failed_flush: impl Fn(CopyFailure) + Send + Sync + 'static,
    ) -> Result<Arc<Self>, BitmapError> {
        let mut copy = Self::new_of_all(size, COPY_CLUSTER_BYTES, on_failed_flush)?;
        let mut mirror = MirrorState::default();
        if target_is_zero {
            mirror.written = Some(BitmapBits::new(size, COPY_CLUSTER_BYTES)?);
        }
        copy.mirror = Some(mirror);
        Ok(Arc::new(copy))
    }

    /// Lets guests use the target alone from their next requests on, if nothing is pending. All routes have the mode
    /// [`MirrorMode::Finish`], and the target is flushed.
    #[must_use]
    pub fn try_switch_over(&self) -> bool {
        self.change_if_in_sync(|mirror| mirror.has_switched_over.store(true, Ordering::SeqCst))
    }

    /// Ends the mirror, if nothing is pending: the target is a copy as of this moment. The same holds for routes and target.
    #[must_use]
    pub fn try_end_in_sync(&self) -> bool {
        self.change_if_in_sync(|_| self.end())
    }

    fn change_if_in_sync(&self, change: impl FnOnce(&MirrorState)) -> bool {
        let Some(mirror) = &self.mirror else {
            return false;
        };
        let transfers = mirror.lock_transfers();
        let is_in_sync =
            *transfers == 0 && !self.is_over() && self.next_pending(0..self.size).is_none();
        if is_in_sync {
            change(mirror);
        }
        is_in_sync
    }

    /// Whether guests use the target alone.
    pub(crate) fn has_switched_over(&self) -> bool {
        let mirror = self.mirror.as_ref();
        mirror.is_some_and(|mirror| mirror.has_switched_over.load(Ordering::Acquire))
    }

    pub(super) fn bytes_in_transfer(&self) -> u64 {
        let mirror = self.mirror.as_ref();
        mirror.map_or(0, |mirror| *mirror.lock_transfers())
    }

    /// The copier is about to read a range, which is locked. In a mirror it stops to be pending before it is read.
    pub(super) fn begin_piece(&self, range: &Range<u64>) {
        let Some(mirror) = &self.mirror else {
            return;
        };
        let mut transfers = mirror.lock_transfers();
        *transfers += range.end - range.start;
        self.done.mark(range.clone());
        drop(transfers);
        // The other side of `mark_range_as_changed`.
        fence(Ordering::SeqCst);
    }

    /// The copier has copied a range, or failed to.
    pub(super) fn end_piece(&self, range: Range<u64>, is_copied: bool) {
        let Some(mirror) = &self.mirror else {
            // At the end of a job guests no longer wait: one may have written while the piece was read.
            if is_copied && !self.is_over() {
                self.mark_done(range);
            }
            return;
        };
        let len = range.end - range.start;
        let mut transfers = mirror.lock_transfers();
        *transfers -= len;
        match is_copied {
            true => _ = self.copied_bytes.fetch_add(len, Ordering::Relaxed),
            false => self.done.clear(range),
        }
    }

    /// Whether the target has zeroes in a range because nothing was written there.
    pub(super) fn target_has_zeroes(&self, range: &Range<u64>) -> bool {
        let mirror = self.mirror.as_ref();
        let written = mirror.and_then(|mirror| mirror.written.as_ref());
        written.is_some_and(|written| written.next_dirty(range.start, range.end).is_none())
    }

    /// A range of the target is about to be written.
    pub(super) fn note_write_to_target(&self, range: &Range<u64>) {
        let mirror = self.mirror.as_ref();
        if let Some(written) = mirror.and_then(|mirror| mirror.written.as_ref()) {
            written.mark(range.clone());
        }
    }

    /// The disks of a request that begins now.
    fn phase(&self) -> Phase {
        if self.has_switched_over() {
            Phase::Target
        } else if self.is_over.load(Ordering::Acquire) {
            Phase::Source
        } else {
            Phase::Both
        }
    }

    /// Whether requests that begin now write to the target, alone or as well.
    pub(crate) fn writes_to_target(&self) -> bool {
        self.phase() != Phase::Source
    }

    /// Whether all clusters of a range are pending, which is locked.
    fn is_pending(&self, range: &Range<u64>) -> bool {
        self.next_pending(range.clone()).as_ref() == Some(range)
    }

    /// A write to the source has failed, which may have changed some of it: its range is pending, and the error is the guest's. If
    /// guests use the target alone already, the write goes on with that.
    fn on_failed_source_write(&self, range: Range<u64>, errno: Errno) -> Result<(), Errno> {
        match self.unless_switched_over(|| self.done.clear(range)) {
            true => Err(errno),
            false => Ok(()),
        }
    }

    /// A write to the target has failed: its range is pending, and the guest gets no error. If guests use the target alone
    /// already, the error is the guest's.
    fn on_failed_target_write(&self, range: Range<u64>, errno: Errno) -> Result<(), Errno> {
        match self.unless_switched_over(|| self.done.clear(range)) {
            true => Ok(()),
            false => Err(errno),
        }
    }

    /// A guest's flush of the target has failed, so the mirror may have lost what was written there.
    fn on_failed_target_flush(&self, errno: Errno) -> Result<(), Errno> {
        let failure = CopySide::Target.failed(errno);
        let is_mirrors = self.unless_switched_over(|| {
            // Also if the mirror has just ended as a copy.
            let _ = self.failed_write_copy.set(failure);
            self.fail_write_copy(failure);
        });
        match is_mirrors {
            true => Ok(()),
            false => Err(errno),
        }
    }

    /// Acts while guests cannot go over to the target. False: they use it alone.
    fn unless_switched_over(&self, act: impl FnOnce()) -> bool {
        let transfers = self.mirror.as_ref().map(MirrorState::lock_transfers);
        let has_source = !self.has_switched_over();
        if has_source {
            act();
        }
        drop(transfers);
        has_source
    }
}
