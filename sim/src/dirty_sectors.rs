//! Dirty bitmaps of the disk, and what has to be in them: the sectors that have changed since the bitmap that records was begun.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use block::dirty_bitmap::{BitmapAction, BitmapBits, BitmapChange, BitmapUse, NodeBitmaps, switch};

use crate::model::SECTOR;

/// How bitmaps change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BitmapSwitch {
    /// The one that records is cleared.
    Clear,
    /// It is disabled and removed, and another one is added.
    Next,
}

/// The sectors that have changed while a bitmap records.
#[derive(Clone, Debug, Default)]
pub struct DirtySectors(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// Since the bitmap was begun.
    changed: BTreeSet<u64>,
    recording: Option<Recording>,
    /// How many bitmaps have begun to record, or were cleared.
    periods: u64,
}

/// The bitmap that records, and its number, which is its name.
struct Recording {
    bitmaps: Arc<NodeBitmaps>,
    number: u64,
    job: Option<UseByJob>,
}

/// The use of the bitmap by a job, with the sectors that have changed since its moment, or were not marked then.
struct UseByJob {
    bitmap: BitmapUse,
    changed: BTreeSet<u64>,
}

impl std::fmt::Debug for Recording {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "bitmap {}", self.number)
    }
}

impl State {
    fn job_mut(&mut self) -> Option<&mut UseByJob> {
        self.recording.as_mut()?.job.as_mut()
    }
}

impl Recording {
    fn is_dirty(&self, sector: u64) -> bool {
        let bits = match &self.job {
            Some(job) => job.bitmap.bits(),
            None => {
                let bitmap = self.bitmaps.begin_use(&self.number.to_string());
                bitmap.and_then(|bitmap| bitmap.bits())
            }
        };
        let bits = bits.expect("the bitmap that records is there");
        let start = sector * SECTOR as u64;
        bits.next_dirty(start, start + 1).is_some()
    }

    fn action(&self, number: u64, change: BitmapChange) -> BitmapAction {
        BitmapAction {
            node: self.bitmaps.clone(),
            bitmap: number.to_string(),
            change,
        }
    }

    fn add(&self, size: u64) -> BitmapAction {
        let change = BitmapChange::Add {
            size,
            granularity: SECTOR as u64,
            enabled: true,
            persistent: false,
        };
        self.action(self.number, change)
    }
}

impl DirtySectors {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The disk changes.
    pub fn changed(&self, bytes: Range<u64>) {
        let sector = SECTOR as u64;
        let sectors = bytes.start / sector..bytes.end.div_ceil(sector);
        let mut state = self.state();
        if let Some(job) = state.job_mut() {
            job.changed.extend(sectors.clone());
        }
        state.changed.extend(sectors);
    }

    /// A first bitmap records from now on, on a disk of this size, all of whose routes record.
    pub fn begin(&self, bitmaps: &Arc<NodeBitmaps>, size: u64) {
        let mut state = self.state();
        state.changed.clear();
        let recording = Recording {
            bitmaps: bitmaps.clone(),
            number: 0,
            job: None,
        };
        state.periods += 1;
        switch(&[recording.add(size)]).expect("the first bitmap");
        state.recording = Some(recording);
    }

    /// Another process records, which has taken over the bitmaps.
    pub fn handed_over(&self, bitmaps: &Arc<NodeBitmaps>) {
        if let Some(recording) = &mut self.state().recording {
            recording.bitmaps = bitmaps.clone();
        }
    }

    /// Bitmaps change. What is marked by now need not be in those that record from now on.
    pub fn switch(&self, how: BitmapSwitch, size: u64) {
        let mut state = self.state();
        let State {
            changed,
            recording,
            periods,
        } = &mut *state;
        let Some(recording) = recording.as_mut().filter(|one| one.job.is_none()) else {
            return;
        };
        *periods += 1;
        changed.retain(|sector| !recording.is_dirty(*sector));
        let old = recording.number;
        let actions = match how {
            BitmapSwitch::Clear => vec![recording.action(old, BitmapChange::Clear)],
            BitmapSwitch::Next => {
                recording.number += 1;
                vec![
                    recording.action(old, BitmapChange::Enable(false)),
                    recording.add(size),
                    recording.action(old, BitmapChange::Remove),
                ]
            }
        };
        switch(&actions).expect("changes that are possible");
    }

    /// A number for the time in which the bitmap that records has recorded without a gap, if one does.
    #[must_use]
    pub fn period(&self) -> Option<u64> {
        let state = self.state();
        state.recording.as_ref().map(|_| state.periods)
    }

    /// A job begins to use the bitmap that records. What is marked by now need not be in what follows it.
    pub fn begin_job(&self) {
        let mut state = self.state();
        let State {
            changed, recording, ..
        } = &mut *state;
        let recording = recording.as_mut().expect("a bitmap records");
        let begin = recording.action(recording.number, BitmapChange::BeginSuccessor);
        let unmarked = changed
            .iter()
            .copied()
            .filter(|sector| !recording.is_dirty(*sector));
        let changed = unmarked.collect();
        let bitmap = switch(&[begin]).expect("a change that is possible").pop();
        let bitmap = bitmap.expect("a use of the bitmap");
        recording.job = Some(UseByJob { bitmap, changed });
    }

    /// Marks what is dirty for the job.
    pub fn mark_what_job_copies(&self, wanted: &BitmapBits) {
        let mut state = self.state();
        let job = state.job_mut().expect("a job uses the bitmap");
        let marked = job.bitmap.mark_with_successor(wanted);
        marked.expect("the bitmap is there");
    }

    /// The job ends. What it has copied becomes clean, if these ranges are all that it has not copied.
    ///
    /// # Errors
    /// A sector that has become clean, and was not copied.
    pub fn end_job(&self, not_copied: Option<Vec<Range<u64>>>) -> Result<(), String> {
        let mut state = self.state();
        let State {
            changed, recording, ..
        } = &mut *state;
        let Some(recording) = recording.as_mut() else {
            return Ok(());
        };
        let Some(not_copied) = not_copied else {
            recording.job = None;
            return Ok(());
        };
        let is_not_copied = |sector: &u64| {
            let start = sector * SECTOR as u64;
            not_copied.iter().any(|range| range.contains(&start))
        };
        let left = changed.iter().copied().filter(is_not_copied);
        let left: BTreeSet<u64> = left.filter(|sector| recording.is_dirty(*sector)).collect();
        if let Some(job) = recording.job.take() {
            job.bitmap.end_successor(not_copied.into_iter());
            *changed = &job.changed | &left;
        }
        match left.iter().find(|sector| !recording.is_dirty(**sector)) {
            Some(sector) => Err(format!("sector {sector} is clean, and was not copied")),
            None => Ok(()),
        }
    }

    /// The disk has another size. What was behind the end of a smaller one is gone.
    pub fn resized(&self, size: u64) {
        let is_there = |sector: &u64| sector * (SECTOR as u64) < size;
        self.state().changed.retain(is_there);
    }

    /// No bitmap records any more.
    pub fn end(&self) {
        if let Some(recording) = self.state().recording.take() {
            let remove = recording.action(recording.number, BitmapChange::Remove);
            switch(&[remove]).expect("the bitmap that records is there");
        }
    }

    /// The process with the bitmaps is gone.
    pub fn lost(&self) {
        self.state().recording = None;
    }

    /// Whether a bitmap records.
    #[must_use]
    pub fn is_recording(&self) -> bool {
        self.state().recording.is_some()
    }

    /// Whether this sector has changed, and is not in the bitmap that records.
    #[must_use]
    pub fn lacks(&self, sector: u64) -> bool {
        let state = self.state();
        let recording = state.recording.as_ref();
        let lacks = |recording: &Recording| !recording.is_dirty(sector);
        state.changed.contains(&sector) && recording.is_some_and(lacks)
    }
}
