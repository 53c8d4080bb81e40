//! The state of a copy of a disk while guests write to it: the *copier* copies one part after the other. A [mirror] follows the disk.
//! Any other copy is of the disk as it was at one moment: a [filter in front of the disk](before_write) reads what a guest is about
//! to change, before that, and copies it.
//!
//! - *The moment* ([`CopyMoment`]) is one atomic flag, which the copies of several disks may share. A write that takes its
//!   range before it has come is in the copy, and any later one is not.
//! - *Ranges* are locked, in whole clusters, by copies and by writes of before the moment until they have ended. So a copy sees a
//!   write of before the moment as a whole, and none of after it.
//! - *Done* only grows, but for a mirror: a write to clusters that are copied needs no lock.
//!
//! A write never fails because of its copy: if the copy fails, it is over, and the write goes on.

mod before_write;
mod clone;
mod mirror;
mod piece;
mod target;
#[cfg(test)]
mod tests;

use std::future::poll_fn;
use std::ops::Range;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use engine::Errno;
use nbd::client::RequestGroup;

use crate::dirty_bitmap::{BitmapBits, BitmapError};
use crate::range_lock::{RangeLock, RangeLockTicket};
use mirror::MirrorState;

pub(crate) use before_write::add_copy_before_write;
pub(crate) use clone::clone_pending;
pub use mirror::MirrorMode;
pub(crate) use mirror::{add_mirror_filter, add_mirror_marks};
pub(crate) use piece::{CopyRoutes, copy_pending, zero_pending};

/// Bytes of a cluster, the largest unit in which a copy remembers what is done. The simulator's disks are small.
pub const COPY_CLUSTER_BYTES: u64 = if cfg!(feature = "simulation") {
    2048
} else {
    64 << 10
};
/// The smallest unit: the page of most guests, of which most of their writes are made.
const MIN_CLUSTER_BYTES: u64 = if cfg!(feature = "simulation") {
    1024
} else {
    4 << 10
};
/// The units are doubled until a disk has no more of them, which take 32 MiB.
const MAX_CLUSTERS: u64 = 1 << 28;
/// The most bytes that are read and written at once.
pub const MAX_COPY_PIECE_BYTES: u64 = if cfg!(feature = "simulation") {
    4096
} else {
    1 << 20
};
/// Bytes of a disk in which the end of a part is searched.
const SEARCH_BYTES: u64 = 64 << 20;

/// The moment as of which disks are copied; copies that share it are of the same moment.
#[derive(Default)]
pub struct CopyMoment(AtomicBool);

impl CopyMoment {
    /// Lets the moment come. All queues of the disks have routes with the filter.
    pub fn begin(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn has_come(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// The part of a disk that is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyExtent {
    /// All of it.
    All,
    /// The clusters of [`BlockCopy::limit_to_dirty`].
    Dirty,
    /// What guests change, whenever they do. Others may read the target beside the disk, so it has the old data before the disk is
    /// overwritten.
    Changes,
}

/// One of the two disks of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopySide {
    /// The disk that is read.
    Source,
    /// The disk that is written.
    Target,
}

/// Why a part could not be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyFailure {
    /// The disk that failed.
    pub side: CopySide,
    /// Its error.
    pub errno: Errno,
}

/// The beginning of a range, of which all or nothing is copied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeadingPart {
    pub is_copied: bool,
    pub end: u64,
}

/// The state of a copy.
pub struct BlockCopy {
    size: u64,
    moment: Arc<CopyMoment>,
    ranges: RangeLock,
    mirror: Option<MirrorState>,
    /// The clusters to copy, if not all of them; without bits until [`Self::limit_to_dirty`].
    wanted: Option<BitmapBits>,
    is_limited: AtomicBool,
    /// It is a copy of what guests change.
    is_of_changes: bool,
    /// Locked while the copy is limited, and while a piece begins.
    limiting: Mutex<()>,
    done: BitmapBits,
    copied_bytes: AtomicU64,
    /// Nothing is copied any more.
    is_over: AtomicBool,
    failed_write_copy: OnceLock<CopyFailure>,
    on_failed_write_copy: Box<dyn Fn(CopyFailure) + Send + Sync>,
    guest_waits: AtomicU64,
    copying_writes: AtomicU64,
    copying_ticks: AtomicU64,
    may_clone: AtomicBool,
    clone_work_ns: Arc<AtomicU64>,
    /// The disks that failed, by the first byte of the copier's request.
    failed_sides: Mutex<Vec<(u64, CopySide)>>,
    /// The requests to the target, if that is an export of an NBD server.
    requests_to_target: OnceLock<Arc<RequestGroup>>,
}

impl BlockCopy {
    /// A copy of a disk of `size` bytes, in clusters of [so many](backup_cluster_bytes). `on_failed_write_copy` is called, on an iothread,
    /// if what a guest changes cannot be copied before; the copy is over then.
    ///
    /// # Errors
    /// [`BitmapError::TooLarge`]: no memory.
    pub fn new(
        size: u64,
        cluster_bytes: u64,
        moment: Arc<CopyMoment>,
        extent: CopyExtent,
        on_failed_write_copy: impl Fn(CopyFailure) + Send + Sync + 'static,
    ) -> Result<Arc<Self>, BitmapError> {
        let mut copy = Self::new_of_all(size, cluster_bytes, on_failed_write_copy)?;
        copy.moment = moment;
        copy.is_of_changes = extent == CopyExtent::Changes;
        if extent == CopyExtent::Dirty {
            copy.wanted = Some(BitmapBits::new(size, cluster_bytes)?);
        }
        Ok(Arc::new(copy))
    }

    /// A copy of a whole disk, with a moment of its own.
    fn new_of_all(
        size: u64,
        cluster_bytes: u64,
        on_failed_write_copy: impl Fn(CopyFailure) + Send + Sync + 'static,
    ) -> Result<Self, BitmapError> {
        Ok(BlockCopy {
            size,
            moment: Arc::default(),
            ranges: RangeLock::default(),
            mirror: None,
            wanted: None,
            is_limited: AtomicBool::new(false),
            is_of_changes: false,
            limiting: Mutex::default(),
            done: BitmapBits::new(size, cluster_bytes)?,
            copied_bytes: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            failed_write_copy: OnceLock::new(),
            on_failed_write_copy: Box::new(on_failed_write_copy),
            guest_waits: AtomicU64::new(0),
            copying_writes: AtomicU64::new(0),
            copying_ticks: AtomicU64::new(0),
            may_clone: AtomicBool::new(false),
            clone_work_ns: Arc::default(),
            failed_sides: Mutex::default(),
            requests_to_target: OnceLock::new(),
        })
    }

    /// Limits a copy of [dirty](CopyExtent::Dirty) clusters to those that `merge_dirty` marks. What the filter has copied before stays
    /// copied, and what it is copying is pending until then.
    pub fn limit_to_dirty(&self, merge_dirty: impl FnOnce(&BitmapBits)) {
        if let Some(wanted) = &self.wanted {
            // No request reads them yet.
            merge_dirty(wanted);
            let _no_piece_begins = self.lock_limiting();
            self.is_limited.store(true, Ordering::Release);
        }
    }

    fn lock_limiting(&self) -> MutexGuard<'_, ()> {
        self.limiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to copy the first piece, of at most so many bytes, that is pending in a range, which is locked. Writes wait for it until it
    /// is copied, also if it is clean and the copy is [limited](Self::limit_to_dirty) meanwhile: they would change what is being read.
    pub(crate) fn begin_next_piece(&self, range: Range<u64>, most: u64) -> Option<Range<u64>> {
        let not_being_limited = self.wanted.as_ref().map(|_| self.lock_limiting());
        let pending = self.next_pending(range)?;
        let piece = pending.start..pending.end.min(pending.start.saturating_add(most));
        if let Some(wanted) = &self.wanted {
            wanted.mark(piece.clone());
        }
        drop(not_being_limited);
        self.begin_piece(&piece);
        Some(piece)
    }

    /// Bytes of the disk.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Bytes that were copied.
    #[must_use]
    pub fn copied_bytes(&self) -> u64 {
        self.copied_bytes.load(Ordering::Relaxed)
    }

    /// Bytes that are still to be copied.
    #[must_use]
    pub fn pending_bytes(&self) -> u64 {
        let ranges = self.pending_ranges();
        let pending: u64 = ranges.map(|range| range.end - range.start).sum();
        pending + self.bytes_in_transfer()
    }

    /// Whether nothing is pending in a copy of a whole disk, by a count that other threads may be about to change.
    #[must_use]
    pub fn seems_done(&self) -> bool {
        self.wanted.is_none() && self.done.dirty_bytes() >= self.size
    }

    /// All ranges that are still to be copied.
    pub fn pending_ranges(&self) -> impl Iterator<Item = Range<u64>> {
        let mut from = 0;
        std::iter::from_fn(move || {
            let range = self.next_pending(from..self.size)?;
            from = range.end;
            Some(range)
        })
    }

    /// The first part of a range, in whole clusters, that is still to be copied, or a beginning of this part: what follows is not
    /// searched far, since the next call would search it again.
    #[must_use]
    pub fn next_pending(&self, range: Range<u64>) -> Option<Range<u64>> {
        let mut from = range.start;
        while from < range.end {
            let window = from..range.end.min(from + SEARCH_BYTES);
            let wanted = match &self.wanted {
                Some(wanted) if self.is_limited.load(Ordering::Acquire) => {
                    wanted.next_dirty(window.start, window.end)
                }
                _ => Some(window.clone()),
            };
            let Some(wanted) = wanted else {
                from = window.end;
                continue;
            };
            match self.done.next_dirty(wanted.start, wanted.end) {
                None => return Some(wanted),
                Some(done) if done.start > wanted.start => return Some(wanted.start..done.start),
                Some(done) => from = done.end,
            }
        }
        None
    }

    /// The copied or pending bytes that a range begins with.
    pub(crate) fn leading_part(&self, range: Range<u64>) -> LeadingPart {
        let (is_copied, end) = match self.next_pending(range.clone()) {
            None => (true, range.end),
            Some(pending) if pending.start > range.start => (true, pending.start),
            Some(pending) => (false, pending.end),
        };
        LeadingPart { is_copied, end }
    }

    /// Whether it is a copy of [what guests change](CopyExtent::Changes).
    #[must_use]
    pub fn is_of_changes(&self) -> bool {
        self.is_of_changes
    }

    /// How often a guest's write has waited for a copy that was under way.
    #[must_use]
    pub fn guest_waits(&self) -> u64 {
        self.guest_waits.load(Ordering::Relaxed)
    }

    /// The writes of guests that had to copy before, and the sum of their latencies, in ticks.
    #[must_use]
    pub fn copying_writes(&self) -> (u64, u64) {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (load(&self.copying_writes), load(&self.copying_ticks))
    }

    /// Counts a write that had to copy before, and took so long.
    fn count_copying_write(&self, ticks: u64) {
        self.copying_writes.fetch_add(1, Ordering::Relaxed);
        self.copying_ticks.fetch_add(ticks, Ordering::Relaxed);
    }

    /// Ends the copy: nothing is copied any more.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::Release);
    }

    /// Whether the copy has been ended, a write could not be copied, or guests use the target.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire) || self.has_switched_over()
    }

    /// Why a guest's write could not be copied before, which has ended the copy.
    #[must_use]
    pub fn failed_write_copy(&self) -> Option<CopyFailure> {
        self.failed_write_copy.get().copied()
    }

    /// The disk that failed in the request of the copier that begins at this byte.
    #[must_use]
    pub fn take_failed_side(&self, offset: u64) -> Option<CopySide> {
        let mut failed = self.lock_failed_sides();
        let index = failed.iter().position(|(start, _)| *start == offset)?;
        Some(failed.swap_remove(index).1)
    }

    /// Notes the disk that failed in a request of the copier.
    pub(crate) fn record_failed_side(&self, offset: u64, side: CopySide) {
        self.lock_failed_sides().push((offset, side));
    }

    fn lock_failed_sides(&self) -> MutexGuard<'_, Vec<(u64, CopySide)>> {
        let failed = self.failed_sides.lock();
        failed.unwrap_or_else(PoisonError::into_inner)
    }

    /// The clusters that these bytes touch.
    pub(crate) fn clusters_of(&self, offset: u64, len: u64) -> Range<u64> {
        let cluster_bytes = self.done.granularity();
        let start = offset / cluster_bytes * cluster_bytes;
        let end = (offset + len).next_multiple_of(cluster_bytes);
        start..end.min(self.size)
    }

    /// Whether a write to this range has to copy something before. Once it has not, it never will: nothing becomes pending again.
    fn must_copy_before_write(&self, range: &Range<u64>) -> bool {
        !self.is_over() && self.next_pending(range.clone()).is_some()
    }

    /// Locks a range for the copier.
    pub(crate) async fn lock_range(&self, range: Range<u64>) -> RangeLockTicket<'_> {
        self.ranges.lock_async(range).await
    }

    /// Locks a range for a guest's write, which is counted if it has to wait: the copier copies less at once then.
    async fn lock_range_counting_waits(&self, range: Range<u64>) -> RangeLockTicket<'_> {
        let mut lock = pin!(self.ranges.lock_async(range));
        let mut has_waited = false;
        let locked = poll_fn(|cx| {
            let polled = lock.as_mut().poll(cx);
            has_waited |= polled.is_pending();
            polled
        });
        let locked = locked.await;
        if has_waited {
            self.guest_waits.fetch_add(1, Ordering::Relaxed);
        }
        locked
    }

    /// Counts what is pending in a range, which is locked, as copied: the target has the same data already.
    pub(crate) fn skip_pending(&self, range: Range<u64>) {
        while let Some(pending) = self.next_pending(range.clone()) {
            self.mark_done(pending);
        }
    }

    /// Notes that whole clusters are copied. Their range is locked.
    fn mark_done(&self, range: Range<u64>) {
        self.copied_bytes
            .fetch_add(range.end - range.start, Ordering::Relaxed);
        self.done.mark(range);
    }

    /// Ends the copy, since what a guest changes could not be copied.
    fn fail_write_copy(&self, failure: CopyFailure) {
        if !self.is_over.swap(true, Ordering::AcqRel) {
            let _ = self.failed_write_copy.set(failure);
            (self.on_failed_write_copy)(failure);
        }
    }
}

/// Bytes of a cluster in a backup of a disk of `size` bytes: the smaller it is, the less guests' writes have to copy before. But a part of
/// a block cannot be copied; `block_bytes` is the larger one of both disks.
#[must_use]
pub fn backup_cluster_bytes(size: u64, block_bytes: u64) -> u64 {
    let smallest = size.div_ceil(MAX_CLUSTERS).next_power_of_two();
    smallest
        .max(block_bytes)
        .clamp(MIN_CLUSTER_BYTES, COPY_CLUSTER_BYTES)
}
