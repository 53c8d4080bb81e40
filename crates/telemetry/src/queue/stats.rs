//! Statistics of a queue.
//!
//! They belong to the export and outlive a queue: one that is stopped and started again continues
//! counting. The queue's iothread writes them, any thread reads them, and neither waits for the
//! other. They lie in pages that exist once they were written to: a queue that was never used costs nothing.

use std::sync::{Arc, Mutex};

use crate::counters::{Counter, Histogram};
use crate::queue::histograms::{Chosen, Histograms};
use crate::queue::zero_pages::{ZeroPage, Zeroed};

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

    /// Its name in figures that are read elsewhere: in metrics, and in latencies from a monitor.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::Read => "read",
            Kind::Write => "write",
            Kind::Flush => "flush",
            Kind::Unmap => "unmap",
        }
    }
}

/// Requests of one kind.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct KindStats {
    /// Bytes of those that succeeded.
    pub bytes: Counter,
    /// Their latencies in sum, in [ticks](crate::counters::Clock), from when they were taken off the ring.
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
    #[inline]
    pub fn end_turn(&self, in_flight: u32) {
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
    #[inline]
    #[must_use]
    pub fn histograms(&self) -> Histograms<'_> {
        Histograms::new(&self.pages[0].queue.choice, &self.chosen)
    }

    /// Requests of a kind.
    #[inline]
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
