//! The bitmaps of a node, and the recorders of its routes, which set bits in those that record.
//!
//! Recorders do not share the list of bitmaps: each has a copy behind a lock of its own, which only its iothread takes except
//! for the moment of a switch. So queues on several iothreads do not wait for each other, nor do they write to the same memory
//! before they set a bit.

use std::ops::Range;
use std::sync::{Arc, Weak};

use super::{BitmapBits, BitmapError, BitmapStatus, DirtyExtent};
use crate::route::Route;
use crate::route::mark::{MarkReceiver, MarkedRoute};
use crate::sync::{Mutex, MutexGuard, PoisonError};

/// The bitmaps of a node. A node that is opened anew keeps them.
#[derive(Default)]
pub struct NodeBitmaps {
    state: Mutex<NodeBitmapsState>,
}

/// The bitmaps of a node, and the recorders that set their bits.
#[derive(Default)]
pub(super) struct NodeBitmapsState {
    /// The newest first.
    pub list: Vec<NamedBitmap>,
    /// New routes have a recorder.
    records: bool,
    /// One for each route with a recorder; those of routes that have ended are removed when the next one is made.
    recorders: Vec<Weak<Recorder>>,
}

/// A bitmap with its name.
#[derive(Clone)]
pub(super) struct NamedBitmap {
    pub name: String,
    pub bits: Arc<BitmapBits>,
    pub enabled: bool,
    pub persistent: bool,
    pub inconsistent: bool,
    /// While a job copies what is dirty: the changes since then, which are recorded in any case.
    pub successor: Option<Arc<BitmapBits>>,
    /// What was dirty when the job began.
    dirty_bytes_at_begin: u64,
    /// Shared with exports and jobs that use it.
    users: Arc<()>,
    /// The transaction that is being prepared removes it.
    pub removed: bool,
}

impl NamedBitmap {
    pub fn new(name: &str, bits: BitmapBits, enabled: bool, persistent: bool) -> Self {
        NamedBitmap {
            name: name.to_owned(),
            bits: Arc::new(bits),
            enabled,
            persistent,
            inconsistent: false,
            successor: None,
            dirty_bytes_at_begin: 0,
            users: Arc::default(),
            removed: false,
        }
    }

    pub fn records(&self) -> bool {
        self.enabled && !self.inconsistent
    }

    /// Notes what is dirty, when a successor begins: no bits are set meanwhile.
    pub fn note_dirty_bytes_at_begin(&mut self) {
        self.dirty_bytes_at_begin = self.bits.dirty_bytes();
    }

    /// Bytes that may have changed; while a job copies them, those with which it has begun.
    fn dirty_bytes(&self) -> u64 {
        match self.successor {
            Some(_) => self.dirty_bytes_at_begin,
            None => self.bits.dirty_bytes(),
        }
    }

    /// Whether its routes need recorders.
    fn needs_recorders(&self) -> bool {
        self.records() || self.successor.is_some()
    }

    /// Refuses a bitmap that is in use, or removed already.
    pub fn check_not_busy(&self, list_copies: usize) -> Result<(), BitmapError> {
        // One that the same transaction has added is not in the node's list yet: the count alone misses its user.
        let has_user = self.successor.is_some() || Arc::strong_count(&self.users) > list_copies;
        if self.removed || has_user {
            return Err(BitmapError::Busy(self.name.clone()));
        }
        Ok(())
    }

    /// Refuses a bitmap that has missed changes.
    pub fn check_consistent(&self) -> Result<(), BitmapError> {
        match self.inconsistent {
            true => Err(BitmapError::Inconsistent(self.name.clone())),
            false => Ok(()),
        }
    }
}

/// Sets bits for the changes of one route.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct Recorder {
    /// The bitmaps that record.
    bitmaps: Mutex<Vec<Arc<BitmapBits>>>,
}

impl MarkReceiver for Recorder {
    fn mark_range_as_changed(&self, bytes: Range<u64>) {
        for bits in lock(&self.bitmaps).iter() {
            bits.mark(bytes.clone());
        }
    }
}

/// Nothing that can panic runs under these locks: a poisoned one guards sound data.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The recorders of some nodes. While this is locked, no bit is set in any of their bitmaps.
pub(super) struct StoppedRecorders<'a>(Vec<MutexGuard<'a, Vec<Arc<BitmapBits>>>>);

impl NodeBitmapsState {
    /// The recorders of its routes.
    pub fn live_recorders(&self) -> Vec<Arc<Recorder>> {
        self.recorders.iter().filter_map(Weak::upgrade).collect()
    }

    /// Replaces all bitmaps while no bits are set.
    pub fn replace_list(&mut self, list: Vec<NamedBitmap>) {
        let recorders = self.live_recorders();
        let mut stopped = StoppedRecorders::stop(&recorders);
        self.list = list;
        stopped.record_in_bitmaps_of(self);
    }

    /// The bits of the bitmaps that record.
    fn recording_bits(&self) -> Vec<Arc<BitmapBits>> {
        let recording = self.list.iter().filter(|bitmap| bitmap.records());
        let recording = recording.map(|bitmap| &bitmap.bits);
        let successors = self.list.iter().flat_map(|bitmap| &bitmap.successor);
        recording.chain(successors).cloned().collect()
    }
}

impl<'a> StoppedRecorders<'a> {
    /// Waits until none of them sets bits.
    pub fn stop(recorders: &'a [Arc<Recorder>]) -> Self {
        StoppedRecorders(
            recorders
                .iter()
                .map(|recorder| lock(&recorder.bitmaps))
                .collect(),
        )
    }

    /// Lets them record in the bitmaps of their node as they are now.
    pub fn record_in_bitmaps_of(&mut self, state: &NodeBitmapsState) {
        let bits = state.recording_bits();
        for recorder in &mut self.0 {
            recorder.clone_from(&bits);
        }
    }
}

impl NodeBitmaps {
    pub(super) fn lock_state(&self) -> MutexGuard<'_, NodeBitmapsState> {
        lock(&self.state)
    }

    /// The state of its bitmaps, the newest first.
    #[must_use]
    pub fn statuses(&self) -> Vec<BitmapStatus> {
        let state = self.lock_state();
        let statuses = state.list.iter().map(|bitmap| BitmapStatus {
            name: bitmap.name.clone(),
            granularity: bitmap.bits.granularity(),
            dirty_bytes: bitmap.dirty_bytes(),
            recording: bitmap.records(),
            busy: bitmap.check_not_busy(1).is_err(),
            persistent: bitmap.persistent,
            inconsistent: bitmap.inconsistent,
        });
        statuses.collect()
    }

    /// Whether one of its bitmaps records, or a job uses one.
    #[must_use]
    pub fn has_recording(&self) -> bool {
        let state = self.lock_state();
        state.list.iter().any(NamedBitmap::needs_recorders)
    }

    /// Whether routes that are made now have a recorder.
    #[must_use]
    pub fn new_routes_record(&self) -> bool {
        self.lock_state().records
    }

    /// Gives routes that are made from now on a recorder, or none. A bitmap may record only if all routes that requests use
    /// have one: replace those that exist, and wait for their requests.
    pub fn let_new_routes_record(&self, records: bool) {
        self.lock_state().records = records;
    }

    /// The route of a source to the node, which `below` is without bitmaps.
    pub(crate) fn add_recorder_to_route(&self, below: Route) -> Route {
        let mut state = self.lock_state();
        if !state.records {
            return below;
        }
        state
            .recorders
            .retain(|recorder| recorder.strong_count() > 0);
        let recorder = Arc::new(Recorder {
            bitmaps: Mutex::new(state.recording_bits()),
        });
        state.recorders.push(Arc::downgrade(&recorder));
        MarkedRoute::mark_changes(recorder, below)
    }

    /// Adapts the bitmaps to another size of the node, before requests use what is new. What is behind the former end is
    /// dirty. A bitmap for which there is no memory becomes inconsistent.
    pub fn resize(&self, size: u64) {
        let mut state = self.lock_state();
        let recorders = state.live_recorders();
        let mut stopped = StoppedRecorders::stop(&recorders);
        let resized = |bitmap: &&mut NamedBitmap| bitmap.bits.size() != size;
        for bitmap in state.list.iter_mut().filter(resized) {
            match bitmap.bits.resized(size) {
                Ok(bits) => bitmap.bits = Arc::new(bits),
                Err(error) => {
                    tracing::warn!(bitmap = bitmap.name, %error, "the bitmap is inconsistent from now on");
                    bitmap.inconsistent = true;
                }
            }
        }
        stopped.record_in_bitmaps_of(&state);
    }

    /// Makes all bitmaps inconsistent: another program may have changed the disk.
    pub fn mark_inconsistent(&self) {
        let mut state = self.lock_state();
        let recorders = state.live_recorders();
        let mut stopped = StoppedRecorders::stop(&recorders);
        for bitmap in &mut state.list {
            bitmap.inconsistent = true;
        }
        stopped.record_in_bitmaps_of(&state);
    }

    /// Begins to use a bitmap, which is busy until the result is dropped.
    ///
    /// # Errors
    /// It does not exist, is inconsistent, or in use already.
    pub fn begin_use(self: &Arc<Self>, name: &str) -> Result<BitmapUse, BitmapError> {
        let state = self.lock_state();
        let bitmap = find(&state.list, name)?;
        bitmap.check_not_busy(1)?;
        bitmap.check_consistent()?;
        Ok(BitmapUse::new(self, bitmap))
    }
}

/// The bitmap of this name.
pub(super) fn find<'a>(
    list: &'a [NamedBitmap],
    name: &str,
) -> Result<&'a NamedBitmap, BitmapError> {
    let found = list.iter().find(|bitmap| bitmap.name == name);
    found.ok_or_else(|| BitmapError::NotFound(name.to_owned()))
}

/// The use of a bitmap by an export or a job. Meanwhile no command changes the bitmap; it records as before. The
/// [successor](super::BitmapChange::BeginSuccessor) of a job's bitmap ends with it: what was dirty stays dirty, unless
/// [`end_successor`](Self::end_successor) says what is clean.
pub struct BitmapUse {
    node: Arc<NodeBitmaps>,
    name: String,
    _user: Arc<()>,
}

impl BitmapUse {
    pub(super) fn new(node: &Arc<NodeBitmaps>, bitmap: &NamedBitmap) -> Self {
        BitmapUse {
            node: node.clone(),
            name: bitmap.name.clone(),
            _user: bitmap.users.clone(),
        }
    }

    /// Whether it is the use of this bitmap of the node.
    pub(super) fn is_of(&self, node: &Arc<NodeBitmaps>, name: &str) -> bool {
        Arc::ptr_eq(&self.node, node) && self.name == name
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its bits. They are others after the node was resized.
    ///
    /// # Errors
    /// [`BitmapError::NotFound`] after the node was closed, [`BitmapError::Inconsistent`] if it has missed changes since.
    pub fn bits(&self) -> Result<Arc<BitmapBits>, BitmapError> {
        let state = self.node.lock_state();
        let bitmap = find(&state.list, &self.name)?;
        bitmap.check_consistent()?;
        Ok(bitmap.bits.clone())
    }

    /// Marks what is dirty for a job: in the bitmap, or in its [successor](super::BitmapChange::BeginSuccessor) so far.
    ///
    /// # Errors
    /// [`BitmapError::NotFound`] after the node was closed.
    pub fn mark_with_successor(&self, dirty: &BitmapBits) -> Result<(), BitmapError> {
        let state = self.node.lock_state();
        let bitmap = find(&state.list, &self.name)?;
        for bits in std::iter::once(&bitmap.bits).chain(&bitmap.successor) {
            dirty.merge(bits);
        }
        Ok(())
    }

    /// Ends the use by a job whose copy makes the bitmap clean: it has the changes since the moment of its
    /// [successor](super::BitmapChange::BeginSuccessor), and these ranges.
    pub fn end_successor(self, still_dirty: impl Iterator<Item = Range<u64>>) {
        let mut state = self.node.lock_state();
        let recorders = state.live_recorders();
        let mut bitmaps = state.list.iter_mut();
        let bitmap = bitmaps.find(|bitmap| bitmap.name == self.name);
        // Without memory it keeps its bits, which are dirty as well as needed.
        if let Some(bitmap) = bitmap
            && let Some(successor) = &bitmap.successor
            && let Ok(bits) = BitmapBits::new(successor.size(), successor.granularity())
        {
            still_dirty.for_each(|range| bits.mark(range));
            let mut stopped = StoppedRecorders::stop(&recorders);
            if bitmap.records() {
                bits.merge(successor);
            }
            bitmap.bits = Arc::new(bits);
            stopped.record_in_bitmaps_of(&state);
        }
    }

    /// The dirty and clean parts of a range, in at most `most` pieces, which may be less than all. Any thread may call this.
    ///
    /// # Errors
    /// As for [`bits`](Self::bits).
    pub fn extents(&self, range: Range<u64>, most: usize) -> Result<Vec<DirtyExtent>, BitmapError> {
        Ok(self.bits()?.extents(range, most))
    }
}

impl Drop for BitmapUse {
    fn drop(&mut self) {
        let mut state = self.node.lock_state();
        let recorders = state.live_recorders();
        let mut bitmaps = state.list.iter_mut();
        if let Some(bitmap) = bitmaps.find(|bitmap| bitmap.name == self.name)
            && bitmap.successor.take().is_some()
        {
            StoppedRecorders::stop(&recorders).record_in_bitmaps_of(&state);
        }
    }
}
