//! Parked requests: block requests that the disk has failed and that the export's error policy keeps until a client of a
//! monitor resumes them.
//!
//! They keep their slots and their memory map. Other requests of the queue continue: no driver may rely on an order among
//! requests in flight, and a flush covers only those that were answered before it. A wait until the queue has settled does not
//! include them: a retry goes to the disk that is current then.

use std::collections::VecDeque;

use engine::Errno;

use crate::messages::QueueReporter;

/// A parked block request.
pub(super) struct ParkedRequest {
    pub slot: u32,
    /// The guest's requests that were merged into it.
    pub requests: u32,
    pub errno: Errno,
}

/// Parked requests of a queue.
#[derive(Default)]
pub(super) struct ParkedList {
    /// In the order in which they failed.
    list: VecDeque<ParkedRequest>,
    /// Number of requests, from the first one on, that are to be retried as soon as there is room.
    retries: usize,
    /// All of them are to be retried once the queue is enabled.
    retry_on_enable: bool,
}

impl ParkedList {
    /// Adds a request that the disk has just failed, and counts it for its export.
    pub fn push_and_count(&mut self, parked: ParkedRequest, reports: &QueueReporter) {
        let export_queues = reports.export.queues();
        export_queues.add_parked_and_set_io_status(parked.requests, parked.errno);
        self.list.push_back(parked);
    }

    /// Removes the request that failed first, to be retried or answered, and counts it for its export.
    pub fn pop_and_count(&mut self, reports: Option<&QueueReporter>) -> Option<ParkedRequest> {
        let parked = self.list.pop_front()?;
        self.retries = self.retries.saturating_sub(1);
        if let Some(reports) = reports {
            reports.export.queues().subtract_resumed(parked.requests);
        }
        Some(parked)
    }

    /// Number of requests of the guest.
    pub fn guest_request_count(&self) -> u32 {
        self.list.iter().map(|parked| parked.requests).sum()
    }

    /// Number of requests of the guest in slots of which this is true.
    pub fn guest_request_count_where(&self, is_counted: impl Fn(u32) -> bool) -> u32 {
        let counted = self.list.iter().filter(|parked| is_counted(parked.slot));
        counted.map(|parked| parked.requests).sum()
    }

    pub fn slots(&self) -> impl Iterator<Item = u32> {
        self.list.iter().map(|parked| parked.slot)
    }

    /// Whether some wait for room to be retried.
    pub fn has_pending_retries(&self) -> bool {
        self.retries > 0
    }

    /// Has all of them retried.
    pub fn mark_all_for_retry(&mut self) {
        self.retries = self.list.len();
    }

    /// Has all of them retried once the queue is enabled, and not before.
    pub fn defer_retries_until_enabled(&mut self) {
        self.retries = 0;
        self.retry_on_enable = true;
    }

    /// Whether all are to be retried now that the queue is enabled.
    pub fn take_retry_on_enable(&mut self) -> bool {
        std::mem::take(&mut self.retry_on_enable)
    }
}
