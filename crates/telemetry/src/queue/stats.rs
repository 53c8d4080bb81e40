//! Statistics of a queue: counters and latency histograms for each kind of requests, and counters for all of them.
//!
//! They belong to the export and outlive a queue: one that is stopped and started again continues
//! counting. The queue's iothread writes them, any thread reads them, and neither waits for the
//! other. They lie in pages that exist once they were written to: a queue that was never used costs nothing.

use std::sync::{Arc, Mutex};

use crate::counters::{Histogram, SingleWriterU64};
use crate::queue::histograms::{ConfiguredBins, ConfiguredHistograms};
use crate::queue::request_kind::RequestKind;
use crate::queue::zero_pages::{ZeroPage, Zeroable};

/// Statistics of one kind of requests.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct KindStats {
    /// Bytes of requests that succeeded.
    pub bytes: SingleWriterU64,
    /// The sum of their latencies since admission, in [ticks](crate::counters::TickClock).
    pub ticks: SingleWriterU64,
    /// Requests that were merged into another one.
    pub merged: SingleWriterU64,
    /// Requests that failed on the disk.
    pub failed: SingleWriterU64,
    /// Requests that were refused before they reached the disk.
    pub invalid: SingleWriterU64,
    /// Latencies of requests that succeeded; its total is their number.
    pub latency: Histogram,
}

/// Statistics of the queue for all kinds of requests.
#[derive(Debug)]
#[repr(C, align(64))]
struct QueueCounters {
    size: SingleWriterU64,
    in_flight: SingleWriterU64,
    turns: SingleWriterU64,
    notifications: SingleWriterU64,
    wr_highest_offset: SingleWriterU64,
    last_success_ticks: SingleWriterU64,
    /// The version of the configured histograms. It is here since it is read whenever these counters change.
    version: SingleWriterU64,
}

/// A page of memory, one for each kind. The queue's own counters are in the first, with those of reads.
#[derive(Debug)]
#[repr(C, align(4096))]
struct KindPage {
    queue: QueueCounters,
    kind: KindStats,
}

type Pages = [KindPage; RequestKind::ALL.len()];

const _: () = assert!(size_of::<KindPage>() == 4096);

// SAFETY: counters, which are zero when all their bytes are.
unsafe impl Zeroable for Pages {}

/// All statistics of a queue. A clone is another handle to the same statistics.
#[derive(Clone)]
pub struct QueueStats {
    pages: ZeroPage<Pages>,
    configured: Arc<Mutex<ConfiguredBins>>,
}

impl QueueStats {
    /// Statistics that are all zero.
    #[must_use]
    pub fn new() -> Self {
        QueueStats {
            pages: ZeroPage::new(),
            configured: Arc::default(),
        }
    }

    /// Entries of the ring; 0 when no queue runs.
    #[must_use]
    pub fn queue_size(&self) -> &SingleWriterU64 {
        &self.pages[0].queue.size
    }

    /// Requests in flight after the last batch that was admitted or completed.
    #[must_use]
    pub fn in_flight(&self) -> &SingleWriterU64 {
        &self.pages[0].queue.in_flight
    }

    /// Number of turns with requests in the ring.
    #[must_use]
    pub fn turns(&self) -> &SingleWriterU64 {
        &self.pages[0].queue.turns
    }

    /// Counts a turn of the queue, with so many requests in flight after it.
    #[inline]
    pub fn count_turn_and_set_in_flight(&self, in_flight: u32) {
        let queue = &self.pages[0].queue;
        queue.turns.add(1);
        queue.in_flight.set(in_flight.into());
    }

    /// Signals to the guest.
    #[must_use]
    pub fn notifications(&self) -> &SingleWriterU64 {
        &self.pages[0].queue.notifications
    }

    /// The highest end of a write, in bytes.
    #[must_use]
    pub fn wr_highest_offset(&self) -> &SingleWriterU64 {
        &self.pages[0].queue.wr_highest_offset
    }

    /// The time at which requests last succeeded, in ticks; 0: never.
    #[must_use]
    pub fn last_success_ticks(&self) -> &SingleWriterU64 {
        &self.pages[0].queue.last_success_ticks
    }

    /// Histograms of latencies with configured boundaries.
    #[inline]
    #[must_use]
    pub fn configured_histograms(&self) -> ConfiguredHistograms<'_> {
        ConfiguredHistograms::new(&self.pages[0].queue.version, &self.configured)
    }

    /// Statistics of a kind of requests.
    #[inline]
    #[must_use]
    pub fn of_kind(&self, kind: RequestKind) -> &KindStats {
        &self.pages[kind as usize].kind
    }
}

impl Default for QueueStats {
    fn default() -> Self {
        QueueStats::new()
    }
}
