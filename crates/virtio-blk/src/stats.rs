//! What a queue has done.
//!
//! The figures belong to the export and outlive a queue: one that is stopped and started again goes on
//! counting where it was. Whoever runs the queue writes them, anybody reads them, and neither waits for the
//! other. They lie in pages that exist once they were written to: a queue that was never used costs nothing.
//!
//! Requests that were taken together and are finished together took the same time. So they are summed up first,
//! and each group is entered once; see [`Group`].

use std::sync::{Arc, Mutex};

use block::Op;
use counters::{Counter, Histogram};

use crate::histograms::{Chosen, Held, Histograms};
use crate::zero_pages::{ZeroPage, Zeroed};

/// Kinds of requests that are counted apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Reads.
    Read,
    /// Writes, and zeroes that are written.
    Write,
    /// Flushes.
    Flush,
    /// Discards.
    Unmap,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 4] = [Kind::Read, Kind::Write, Kind::Flush, Kind::Unmap];

    /// What it is called in figures that are read elsewhere: in metrics, and where a monitor tells latencies.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::Read => "read",
            Kind::Write => "write",
            Kind::Flush => "flush",
            Kind::Unmap => "unmap",
        }
    }

    /// What a request counts as.
    #[inline(always)]
    #[must_use]
    pub fn of(op: Op) -> Self {
        match op {
            Op::Read => Kind::Read,
            Op::Write | Op::WriteZeroes { .. } => Kind::Write,
            Op::Flush => Kind::Flush,
            Op::Discard => Kind::Unmap,
        }
    }
}

/// Requests of one kind.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct KindStats {
    /// Bytes of those that succeeded.
    pub bytes: Counter,
    /// How long these took together, in [ticks](counters::Clock), from when they were taken off the ring.
    pub ticks: Counter,
    /// Requests that were joined to another before they went to the disk.
    pub merged: Counter,
    /// Requests that the disk failed.
    pub failed: Counter,
    /// Requests that were refused without asking the disk.
    pub invalid: Counter,
    /// How long each took that succeeded: in sum, how many there were.
    pub latency: Histogram,
}

/// Of the queue, whatever the requests are.
#[derive(Debug)]
#[repr(C, align(64))]
struct OwnStats {
    size: Counter,
    in_flight: Counter,
    turns: Counter,
    notifications: Counter,
    highest_offset: Counter,
    last_ticks: Counter,
    /// Which choice of histograms is to be held. Here, since it is looked at whenever these change.
    choice: Counter,
}

/// In memory, one for each kind. The queue's own figures are in the first, with those of reads.
#[derive(Debug)]
#[repr(C, align(4096))]
struct Page {
    queue: OwnStats,
    kind: KindStats,
}

type Pages = [Page; Kind::ALL.len()];

const _: () = assert!(size_of::<Page>() == 4096);

// SAFETY: counters, which are zero when all their bytes are.
unsafe impl Zeroed for Pages {}

/// All figures of a queue. A clone is another handle of the same ones.
#[derive(Clone)]
pub struct QueueStats {
    pages: ZeroPage<Pages>,
    chosen: Arc<Mutex<Chosen>>,
}

impl QueueStats {
    /// Nothing done yet.
    #[must_use]
    pub fn new() -> Self {
        QueueStats {
            pages: ZeroPage::new(),
            chosen: Arc::default(),
        }
    }

    /// Entries of the ring; 0 when no queue runs.
    #[must_use]
    pub fn size(&self) -> &Counter {
        &self.pages[0].queue.size
    }

    /// Requests in flight, as of the last batch that was taken or finished.
    #[must_use]
    pub fn in_flight(&self) -> &Counter {
        &self.pages[0].queue.in_flight
    }

    /// How often it had its turn, with requests waiting.
    #[must_use]
    pub fn turns(&self) -> &Counter {
        &self.pages[0].queue.turns
    }

    /// It had its turn, and so many requests are in flight now.
    #[inline(always)]
    pub(crate) fn end_turn(&self, in_flight: u32) {
        let queue = &self.pages[0].queue;
        queue.turns.add(1);
        queue.in_flight.set(in_flight.into());
    }

    /// Signals to the guest.
    #[must_use]
    pub fn notifications(&self) -> &Counter {
        &self.pages[0].queue.notifications
    }

    /// Where the write that reached furthest ended, in bytes.
    #[must_use]
    pub fn highest_offset(&self) -> &Counter {
        &self.pages[0].queue.highest_offset
    }

    /// When requests last succeeded, in ticks; 0: never.
    #[must_use]
    pub fn last_ticks(&self) -> &Counter {
        &self.pages[0].queue.last_ticks
    }

    /// Those of latencies with chosen boundaries.
    #[inline(always)]
    #[must_use]
    pub fn histograms(&self) -> Histograms<'_> {
        Histograms::new(&self.pages[0].queue.choice, &self.chosen)
    }

    /// Requests of a kind.
    #[inline(always)]
    #[must_use]
    pub fn of(&self, kind: Kind) -> &KindStats {
        &self.pages[kind as usize].kind
    }
}

impl Default for QueueStats {
    fn default() -> Self {
        QueueStats::new()
    }
}

/// When a request was taken, and its kind, in one number: what a group has in common. (The kind is where a
/// tick or two are lost.) A later admission of a queue never has an earlier one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub struct Stamp(u64);

impl Stamp {
    const KIND: u64 = 3;

    /// No request's.
    const NONE: Stamp = Stamp(0);

    /// Of requests that were taken at `ticks`.
    #[must_use]
    pub fn new(ticks: u64) -> Self {
        Stamp(ticks & !Self::KIND)
    }

    /// Later than this one, of whatever kind.
    #[must_use]
    pub fn next(self) -> Self {
        Stamp((self.0 | Self::KIND) + 1)
    }

    /// One of this kind among them.
    #[inline(always)]
    #[must_use]
    pub fn of(self, kind: Kind) -> Self {
        Stamp(self.0 | kind as u64)
    }

    /// What it was said to be [of](Self::of).
    #[inline(always)]
    #[must_use]
    pub fn kind(self) -> Kind {
        Kind::ALL[self.kind_index()]
    }

    #[inline(always)]
    fn kind_index(self) -> usize {
        (self.0 & Self::KIND) as usize
    }

    /// When that was.
    #[inline(always)]
    pub(crate) fn ticks(self) -> u64 {
        self.0 & !Self::KIND
    }

    /// How long ago it was. The clocks of two processors may differ by a little: never less than nothing.
    #[inline(always)]
    #[must_use]
    pub fn ticks_until(self, now: u64) -> u64 {
        now.saturating_sub(self.ticks())
    }
}

/// When requests are finished, and how many are in flight then.
#[derive(Clone, Copy)]
pub(crate) struct Moment {
    pub now: u64,
    pub in_flight: u32,
}

/// Successful requests of one stamp that are finished and not entered yet.
///
/// How many there are is not counted one by one: it is by how many those in flight have become fewer.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Group {
    /// Requests that were in flight before the first of them was finished.
    from: u32,
    /// [`Stamp::NONE`]: the group is empty, whatever else it says.
    stamp: Stamp,
    bytes: u64,
    /// When they are finished. A group has the completions of one phase.
    now: u64,
    held: Held,
}

impl Group {
    /// A request of so many bytes has just left its slot. If it has another stamp than those before, they are
    /// entered. What was merged into it leaves its slots after this.
    #[inline(always)]
    pub fn add(&mut self, stamp: Stamp, bytes: u64, at: Moment, stats: &QueueStats) {
        if stamp == self.stamp {
            self.bytes += bytes;
        } else {
            if self.stamp != Stamp::NONE {
                self.enter_others(at.in_flight + 1, stats);
            }
            (self.stamp, self.from, self.bytes) = (stamp, at.in_flight + 1, bytes);
            self.now = at.now;
        }
    }

    /// Nothing waits to be entered.
    pub fn is_empty(&self) -> bool {
        self.stamp == Stamp::NONE
    }

    /// A request that is finished without any other: it is a group for itself.
    #[inline(always)]
    pub fn enter_alone(&mut self, stamp: Stamp, bytes: u64, at: Moment, stats: &QueueStats) {
        const READ: usize = Kind::Read as usize;
        // Who reads has code of its own, which need not find the figures.
        if stamp.kind_index() == READ {
            enter(READ, (stamp, 1, bytes), at, stats, &mut self.held);
        } else {
            enter_other(stamp, bytes, at, stats, &mut self.held);
        }
    }

    /// Ends the group: what is in it counts, and so many requests are in flight.
    #[inline(always)]
    pub fn enter(&mut self, in_flight: u32, stats: &QueueStats) {
        if self.stamp != Stamp::NONE {
            let requests = self.from.wrapping_sub(in_flight);
            let sums = (self.stamp, requests.into(), self.bytes);
            let now = self.now;
            let at = Moment { now, in_flight };
            enter(self.stamp.kind_index(), sums, at, stats, &mut self.held);
            self.stamp = Stamp::NONE;
        }
    }

    /// Out of line, where it is seldom needed.
    #[inline(never)]
    fn enter_others(&mut self, in_flight: u32, stats: &QueueStats) {
        self.enter(in_flight, stats);
    }

    /// A request has asked for nothing, which took no time.
    pub fn enter_nothing(&mut self, kind: Kind, stats: &QueueStats) {
        stats.of(kind).latency.add(0, 1);
        if stats.histograms().wanted() {
            self.held.add(stats.histograms(), kind, 0, 1);
        }
    }
}

/// What was in a group counts. Its kind is that of its stamp, and has this `index`.
#[inline(always)]
fn enter(index: usize, sums: (Stamp, u64, u64), at: Moment, stats: &QueueStats, held: &mut Held) {
    let ((stamp, requests, bytes), now) = (sums, at.now);
    let pages: &Pages = &stats.pages;
    let kind = &pages[index].kind;
    kind.bytes.add(bytes);
    pages[0].queue.last_ticks.set(now);
    pages[0].queue.in_flight.set(at.in_flight.into());
    // The bits of its kind are taken off together with the time.
    let ticks = now.wrapping_add(index as u64).wrapping_sub(stamp.0);
    if let Some(bucket) = kind.latency.usual(ticks, stats.histograms().beyond()) {
        bucket.add(requests);
        kind.ticks.add(ticks.wrapping_mul(requests));
    } else {
        enter_unusual(stamp, requests, now, stats, held);
    }
}

/// The same for a request of another kind. Out of line, so that reads have the registers.
#[inline(never)]
fn enter_other(stamp: Stamp, bytes: u64, at: Moment, stats: &QueueStats, held: &mut Held) {
    enter(stamp.kind_index(), (stamp, 1, bytes), at, stats, held);
}

/// The same for very short and very long times, and where histograms were chosen that are to have them as well. A clock that
/// is behind another gives rise to a time that is both short and long. What is known before is found out anew,
/// so that nothing has to be kept for this.
#[cold]
#[inline(never)]
fn enter_unusual(stamp: Stamp, requests: u64, now: u64, stats: &QueueStats, held: &mut Held) {
    let (kind, ticks) = (stamp.kind(), stamp.ticks_until(now));
    stats.of(kind).latency.add(ticks, requests);
    stats.of(kind).ticks.add(ticks.wrapping_mul(requests));
    if stats.histograms().wanted() {
        held.add(stats.histograms(), kind, ticks, requests);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(now: u64) -> Moment {
        Moment { now, in_flight: 0 }
    }

    #[test]
    fn a_group_counts_once_and_by_its_kind() {
        let stats = QueueStats::new();
        let mut group = Group::default();
        let mut in_flight = 7;
        let mut add = |kind, merged, bytes, now| {
            in_flight -= 1;
            let at = Moment { now, in_flight };
            group.add(Stamp::new(1000).of(kind), bytes, at, &stats);
            in_flight -= merged;
        };
        add(Kind::Write, 2, 12_288, 3000);
        add(Kind::Write, 0, 512, 3000);
        assert_eq!(stats.of(Kind::Write).bytes.get(), 0, "not yet");
        add(Kind::Read, 0, 4096, 5000);
        group.enter(2, &stats);
        group.enter(2, &stats);
        let figures = |kind| {
            let kind = stats.of(kind);
            (kind.latency.total(), kind.bytes.get(), kind.ticks.get())
        };
        assert_eq!(figures(Kind::Write), (4, 12_800, 8000));
        assert_eq!(figures(Kind::Read), (1, 4096, 4000));
        assert_eq!(figures(Kind::Flush), (0, 0, 0));
        assert_eq!(stats.last_ticks().get(), 5000);
    }

    #[test]
    fn times_of_any_length_count() {
        let stats = QueueStats::new();
        let mut group = Group::default();
        let long = 1 << 45;
        for (taken, now) in [(long, 4000), (4000, 4100), (4000, 4000 + long)] {
            let stamp = Stamp::new(taken).of(Kind::Unmap);
            group.enter_alone(stamp, 1, at(now), &stats);
        }
        let unmap = stats.of(Kind::Unmap);
        assert_eq!((unmap.bytes.get(), unmap.ticks.get()), (3, 100 + long));
        let counts: Vec<_> = unmap.latency.counts().collect();
        assert_eq!(counts, [(16, 1), (112, 1), (1 << 38, 1)]);
    }

    #[test]
    fn a_clock_that_was_behind_is_no_eternity() {
        let stamp = Stamp::new(1007).of(Kind::Unmap);
        assert_eq!(stamp.kind(), Kind::Unmap);
        assert_eq!(stamp.ticks_until(1000), 0);
        assert_eq!(stamp.ticks_until(2004), 1000);
    }
}
