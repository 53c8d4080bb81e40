//! What a queue has done.
//!
//! The figures belong to the export and outlive a queue: one that is stopped and started again goes on
//! counting where it was. Whoever runs the queue writes them, anybody reads them, and neither waits for the
//! other. They lie in pages that exist once they were written to: a queue that was never used costs nothing.
//!
//! Requests that were taken together and are finished together took the same time. So they are summed up first,
//! and each group is entered once; see [`Group`].

use std::sync::Mutex;

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
    pub(crate) fn of(op: Op) -> Self {
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

/// In memory. The queue's own figures and those of reads fill a page.
#[derive(Debug)]
#[repr(C, align(4096))]
struct Pages {
    size: Counter,
    in_flight: Counter,
    turns: Counter,
    notifications: Counter,
    highest_offset: Counter,
    last_ticks: Counter,
    /// Which choice of histograms is to be held. Here, since it is looked at whenever these change.
    choice: Counter,
    kinds: [KindStats; 4],
}

const _: () = assert!(std::mem::offset_of!(Pages, kinds) + size_of::<KindStats>() == 4096);
const _: () = assert!(size_of::<Pages>() == 4 * 4096);

// SAFETY: counters, which are zero when all their bytes are.
unsafe impl Zeroed for Pages {}

/// All figures of a queue.
pub struct QueueStats {
    pages: ZeroPage<Pages>,
    /// In a place of its own: what changes behind a shared reference has to be read again and again.
    chosen: Box<Mutex<Chosen>>,
}

impl QueueStats {
    /// Nothing done yet.
    #[must_use]
    pub fn new() -> Self {
        QueueStats {
            pages: ZeroPage::new(),
            chosen: Box::default(),
        }
    }

    /// Entries of the ring; 0 when no queue runs.
    #[must_use]
    pub fn size(&self) -> &Counter {
        &self.pages.size
    }

    /// Requests in flight, as of the last batch that was taken or finished.
    #[must_use]
    pub fn in_flight(&self) -> &Counter {
        &self.pages.in_flight
    }

    /// How often it had its turn, with requests waiting.
    #[must_use]
    pub fn turns(&self) -> &Counter {
        &self.pages.turns
    }

    /// It had its turn, and so many requests are in flight now.
    #[inline(always)]
    pub(crate) fn end_turn(&self, in_flight: u32) {
        let pages: &Pages = &self.pages;
        pages.turns.add(1);
        pages.in_flight.set(in_flight.into());
    }

    /// Signals to the guest.
    #[must_use]
    pub fn notifications(&self) -> &Counter {
        &self.pages.notifications
    }

    /// Where the write that reached furthest ended, in bytes.
    #[must_use]
    pub fn highest_offset(&self) -> &Counter {
        &self.pages.highest_offset
    }

    /// When requests last succeeded, in ticks; 0: never.
    #[must_use]
    pub fn last_ticks(&self) -> &Counter {
        &self.pages.last_ticks
    }

    /// Those of latencies with chosen boundaries.
    #[inline(always)]
    #[must_use]
    pub fn histograms(&self) -> Histograms<'_> {
        Histograms::new(&self.pages.choice, &self.chosen)
    }

    /// Requests of a kind.
    #[inline(always)]
    #[must_use]
    pub fn of(&self, kind: Kind) -> &KindStats {
        &self.pages.kinds[kind as usize]
    }
}

impl Default for QueueStats {
    fn default() -> Self {
        QueueStats::new()
    }
}

/// When a request was taken, and its kind, in one number: what a group has in common. (The kind is where a
/// tick or two are lost.)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Stamp(u64);

impl Stamp {
    const KIND: u64 = 3;

    /// Of requests that were taken at `ticks`.
    pub fn new(ticks: u64) -> Self {
        Stamp(ticks & !Self::KIND)
    }

    /// One of this kind among them.
    #[inline(always)]
    pub fn of(self, kind: Kind) -> Self {
        Stamp(self.0 | kind as u64)
    }

    #[inline(always)]
    pub fn kind(self) -> Kind {
        Kind::ALL[self.kind_index()]
    }

    #[inline(always)]
    fn kind_index(self) -> usize {
        (self.0 & Self::KIND) as usize
    }

    /// How long ago it was. The clocks of two processors may differ by a little: never less than nothing.
    #[inline(always)]
    pub fn ticks_until(self, now: u64) -> u64 {
        now.saturating_sub(self.0 & !Self::KIND)
    }
}

/// Successful requests of one stamp that are finished and not entered yet.
///
/// Its sums are apart: two additions are less than one of vectors that have to be put together.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Group {
    pub requests: u64,
    stamp: Stamp,
    pub bytes: u64,
    held: Held,
}

impl Group {
    /// Requests of this stamp are finished `now`, and to be added. Those of another stamp are entered first.
    #[inline(always)]
    pub fn begin(&mut self, stamp: Stamp, now: u64, stats: &QueueStats) {
        if stamp != self.stamp {
            self.enter(now, stats);
            self.stamp = stamp;
        }
    }

    /// Ends the group: what is in it counts.
    #[inline(always)]
    pub fn enter(&mut self, now: u64, stats: &QueueStats) {
        if self.requests > 0 {
            self.enter_some(now, stats);
        }
    }

    #[inline(never)]
    fn enter_some(&mut self, now: u64, stats: &QueueStats) {
        let (requests, ticks) = (self.requests, self.stamp.ticks_until(now));
        let kind = &stats.pages.kinds[self.stamp.kind_index()];
        kind.bytes.add(self.bytes);
        kind.ticks.add(ticks.wrapping_mul(requests));
        kind.latency.add(ticks, requests);
        stats.last_ticks().set(now);
        (self.requests, self.bytes) = (0, 0);
        if stats.histograms().wanted() {
            self.enter_chosen(requests, now, stats);
        }
    }

    /// The same in histograms that somebody chose. It comes last and finds out anew what is known before, so that
    /// nothing has to be kept for it where there are none.
    #[cold]
    #[inline(never)]
    fn enter_chosen(&mut self, requests: u64, now: u64, stats: &QueueStats) {
        let (kind, ticks) = (self.stamp.kind(), self.stamp.ticks_until(now));
        self.held.add(stats.histograms(), kind, ticks, requests);
    }

    /// A request has asked for nothing, which took no time.
    pub fn enter_nothing(&mut self, kind: Kind, stats: &QueueStats) {
        stats.of(kind).latency.add(0, 1);
        if stats.histograms().wanted() {
            self.held.add(stats.histograms(), kind, 0, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_counts_once_and_by_its_kind() {
        let stats = QueueStats::new();
        let mut group = Group::default();
        let mut add = |kind, requests, bytes, now| {
            group.begin(Stamp::new(1000).of(kind), now, &stats);
            group.requests += requests;
            group.bytes += bytes;
        };
        add(Kind::Write, 3, 12_288, 3000);
        add(Kind::Write, 1, 512, 3000);
        assert_eq!(stats.of(Kind::Write).bytes.get(), 0, "not yet");
        add(Kind::Read, 1, 4096, 5000);
        group.enter(5000, &stats);
        group.enter(9000, &stats);
        let figures = |kind| {
            let kind = stats.of(kind);
            (kind.latency.total(), kind.bytes.get(), kind.ticks.get())
        };
        assert_eq!(figures(Kind::Write), (4, 12_800, 16_000));
        assert_eq!(figures(Kind::Read), (1, 4096, 4000));
        assert_eq!(figures(Kind::Flush), (0, 0, 0));
        assert_eq!(stats.last_ticks().get(), 5000);
    }

    #[test]
    fn a_clock_that_was_behind_is_no_eternity() {
        let stamp = Stamp::new(1007).of(Kind::Unmap);
        assert_eq!(stamp.kind(), Kind::Unmap);
        assert_eq!(stamp.ticks_until(1000), 0);
        assert_eq!(stamp.ticks_until(2004), 1000);
    }
}
