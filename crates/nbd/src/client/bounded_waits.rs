//! Waits that are bounded: of a source that is about to end, and of tasks whose requests are cancelled.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use engine::Errno;

use super::connection::Lost;
use super::disk::Disk;
use super::flush_calls::FLUSH_TOKEN;
use super::now_ns;
use super::outage::nanoseconds;
use super::queue::{ClientQueue, Link};
use super::records::{Record, State};

/// How long requests of a source that is to end wait for an answer, or for a connection, before they fail. A cancelled request that was
/// sent waits as long for its answer: only by the end of the connection it ends earlier, and the server may carry it out later.
pub const STOP_WAIT: Duration = Duration::from_secs(10);

/// The upper half of the tokens of requests that async tasks make.
const TASKS: u64 = u32::MAX as u64;

/// A source that is to end.
pub(super) struct Stop {
    /// The place of the source.
    place: u32,
    deadline_ns: u64,
}

/// Cancels requests of async tasks to a disk as long as it exists: they fail at once while there is no connection, and after
/// [`STOP_WAIT`] if the server does not answer them. Requests that a source has submitted itself wait as before.
pub struct Cancellation(Arc<Disk>);

impl Cancellation {
    /// Begins to cancel.
    #[must_use]
    pub fn begin(disk: &Arc<Disk>) -> Self {
        disk.begin_cancellation(now_ns().saturating_add(nanoseconds(STOP_WAIT)));
        Cancellation(disk.clone())
    }
}

impl Drop for Cancellation {
    fn drop(&mut self) {
        self.0.end_cancellation();
    }
}

/// Whether an async task has made the request.
fn is_of_task(record: &Record) -> bool {
    let token = record.request.token;
    token >> 32 == TASKS && token != FLUSH_TOKEN
}

impl ClientQueue {
    /// Has the requests of the source with this place, also those of its tasks, wait for [`STOP_WAIT`] at most, because it is about
    /// to end.
    pub fn end_unbounded_waits(&mut self, place: u32) {
        self.stops.push(Stop {
            place,
            deadline_ns: now_ns().saturating_add(nanoseconds(STOP_WAIT)),
        });
    }

    /// Notes that the source at this place has ended.
    pub fn forget_ended_source(&mut self, place: u32) {
        self.stops.retain(|stop| stop.place != place);
    }

    /// When the next bounded wait is over.
    pub(super) fn next_bound_ns(&self) -> Option<u64> {
        let stops = self.stops.iter().map(|stop| stop.deadline_ns);
        let cancels_at_ns = self.disk.cancels_at_ns.load(Ordering::Acquire);
        let has_cancelled = || {
            let mut used = self.records.iter_used();
            used.any(|(_, record)| is_of_task(record))
        };
        let cancelled = match self.link {
            _ if cancels_at_ns == u64::MAX || !has_cancelled() => None,
            Link::Down(_) => Some(0),
            Link::Up(_) | Link::Refused => Some(cancels_at_ns),
        };
        stops.chain(cancelled).min()
    }

    /// Fails the requests that have waited for long enough.
    #[inline]
    pub(super) fn end_bounded_waits(&mut self) {
        if !self.stops.is_empty() {
            self.end_waits_of_stopped();
        }
        if self.disk.cancels_at_ns.load(Ordering::Relaxed) != u64::MAX {
            self.end_waits_of_cancelled();
        }
    }

    /// Fails requests of sources that have waited for long enough for their end.
    #[cold]
    fn end_waits_of_stopped(&mut self) {
        let now_ns = now_ns();
        for index in 0..self.stops.len() {
            let Stop { place, deadline_ns } = self.stops[index];
            if deadline_ns > now_ns {
                continue;
            }
            // Later requests of the source have the same right to fail: it still empties its ring.
            self.stops[index].deadline_ns = now_ns.saturating_add(1_000_000_000);
            self.fail_requests(|record| record.source == place);
        }
    }

    #[cold]
    fn end_waits_of_cancelled(&mut self) {
        let is_down = matches!(self.link, Link::Down(_));
        if is_down || now_ns() >= self.disk.cancels_at_ns.load(Ordering::Acquire) {
            self.fail_requests(is_of_task);
        }
    }

    /// Fails requests that still wait for an answer.
    fn fail_requests(&mut self, is_meant: impl Fn(&Record) -> bool) {
        let meant = |queue: &Self| -> Vec<u32> {
            let used = queue.records.iter_used();
            let slots = used.filter(|(_, record)| is_meant(record));
            slots.map(|(slot, _)| slot).collect()
        };
        let slots = meant(self);
        if slots.is_empty() {
            return;
        }
        let partly_sent = self.outbox.partly_sent();
        let is_on_wire =
            |slot: &u32| self.records.get(*slot).state == State::Sent || partly_sent == Some(*slot);
        // No late answer may reach memory that is used for something else.
        if slots.iter().any(is_on_wire)
            && let Link::Up(connection) = std::mem::replace(&mut self.link, Link::Refused)
        {
            self.lose(connection, Lost::Stopped);
        }
        let slots = meant(self);
        self.held.retain(|slot| !slots.contains(slot));
        let unsent: Vec<u32> = self
            .outbox
            .iter()
            .filter(|slot| !slots.contains(slot))
            .collect();
        self.outbox.restart(unsent.into_iter());
        for slot in slots {
            self.complete(slot, Err(Errno::IO));
        }
    }
}
