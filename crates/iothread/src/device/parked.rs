//! Parked requests: block requests that the disk has failed, and that wait, as the export's error policy has it, until a
//! monitor's client decides how to continue.
//!
//! They keep their slots, and the memory map that they came with. Other requests of the queue continue: no driver may rely on an
//! order among requests in flight, and a flush is about those that were answered before it. A wait until the queue
//! has settled does not include them: what they ask of the disk is decided anew when they are retried.

use std::collections::VecDeque;

use engine::Errno;

use crate::messages::QueueReports;

/// A parked block request.
pub(super) struct Parked {
    pub slot: u32,
    /// The guest's requests that were merged into it.
    pub requests: u32,
    pub errno: Errno,
}

/// Those of a queue.
#[derive(Default)]
pub(super) struct ParkedRequests {
    /// In the order in which they failed.
    list: VecDeque<Parked>,
    /// So many of the first are to be retried, as soon as there is room.
    retries: usize,
    /// All of them are, once the queue is enabled.
    when_enabled: bool,
}

impl ParkedRequests {
    pub fn push(&mut self, parked: Parked, reports: &QueueReports) {
        let waiting = reports.export.waiting();
        waiting.more(parked.requests, parked.errno);
        self.list.push_back(parked);
    }

    pub fn pop(&mut self, reports: Option<&QueueReports>) -> Option<Parked> {
        let parked = self.list.pop_front()?;
        self.retries = self.retries.saturating_sub(1);
        if let Some(reports) = reports {
            reports.export.waiting().less(parked.requests);
        }
        Some(parked)
    }

    /// Requests of the guest.
    pub fn requests(&self) -> u32 {
        self.list.iter().map(|parked| parked.requests).sum()
    }

    /// Requests of the guest in slots of which this is true.
    pub fn requests_of(&self, is_meant: impl Fn(u32) -> bool) -> u32 {
        let meant = self.list.iter().filter(|parked| is_meant(parked.slot));
        meant.map(|parked| parked.requests).sum()
    }

    pub fn slots(&self) -> impl Iterator<Item = u32> {
        self.list.iter().map(|parked| parked.slot)
    }

    /// Whether some wait for room to be retried.
    pub fn wants_room(&self) -> bool {
        self.retries > 0
    }

    /// All are to be retried.
    pub fn retry_all(&mut self) {
        self.retries = self.list.len();
    }

    /// All are to be retried once the queue is enabled, and not before.
    pub fn retry_when_enabled(&mut self) {
        self.retries = 0;
        self.when_enabled = true;
    }

    /// Whether all are to be retried now that the queue is enabled.
    pub fn take_when_enabled(&mut self) -> bool {
        std::mem::take(&mut self.when_enabled)
    }
}
