//! Waits that are bounded: of a source that is about to end, and of a job whose requests are cancelled.
//!
//! A request of a cancelled job that was not sent fails at once. One that was sent cannot be withdrawn. When it is given up it
//! completes, with an error, and its record stays until the server answers: so the connection remains usable for others, and newer
//! writes that overlap this one wait for it.

use engine::{Completion, Errno};

use super::{ClientQueue, Link, MAX_IN_FLIGHT};
use crate::client::lost::Lost;
use crate::client::record::{Record, State};
use crate::client::{nanoseconds, now_ns};

/// With more requests that were given up and are not answered, the connection is given up: others need their places.
const MAX_GIVEN_UP: usize = MAX_IN_FLIGHT as usize / 2;

/// A source that is to end.
pub(super) struct Stop {
    source_index: u32,
    deadline_ns: u64,
    /// `stop_timeout` has passed: requests of the source fail.
    has_timed_out: bool,
}

impl ClientQueue {
    /// Has the requests of the source with this index, also those of its tasks, wait for `stop_timeout` at most, because it is
    /// about to end.
    pub fn end_unbounded_waits(&mut self, source_index: u32) {
        let wait = self.disk.options().stop_timeout;
        self.stops.push(Stop {
            source_index,
            deadline_ns: now_ns().saturating_add(nanoseconds(wait)),
            has_timed_out: false,
        });
    }

    /// Notes that the source with this index has ended.
    pub fn forget_ended_source(&mut self, source_index: u32) {
        self.stops.retain(|stop| stop.source_index != source_index);
    }

    /// Whether the source with this index is about to end, and its `stop_timeout` has passed.
    pub(super) fn has_stop_timed_out(&self, source_index: u32) -> bool {
        let mut stops = self.stops.iter();
        stops.any(|stop| stop.has_timed_out && stop.source_index == source_index)
    }

    /// When the next bounded wait is over.
    pub(super) fn next_bound_ns(&self) -> Option<u64> {
        let stops = self.stops.iter().map(|stop| stop.deadline_ns);
        let cancelled = match self.disk.has_cancellations() {
            true => self.next_cancelled_ns(),
            false => None,
        };
        stops.chain(cancelled).min()
    }

    #[cold]
    fn next_cancelled_ns(&self) -> Option<u64> {
        let used = self.records.iter_used();
        let next = used.filter_map(|(_, record)| record.cancels_at_ns()).min();
        next.map(|at_ns| match self.link {
            Link::Down(_) => 0,
            Link::Up(_) | Link::Refused => at_ns,
        })
    }

    /// Fails the requests that have waited for long enough.
    #[inline]
    pub(super) fn end_bounded_waits(&mut self) {
        if !self.stops.is_empty() {
            self.end_waits_of_stopped();
        }
        if self.disk.has_cancellations() {
            self.end_waits_of_cancelled();
        }
    }

    /// Fails requests of sources whose `stop_timeout` has passed.
    #[cold]
    fn end_waits_of_stopped(&mut self) {
        let now_ns = now_ns();
        for index in 0..self.stops.len() {
            let stop = &mut self.stops[index];
            if stop.deadline_ns > now_ns {
                continue;
            }
            // Later requests of the source fail as well: it still empties its ring.
            stop.deadline_ns = now_ns.saturating_add(1_000_000_000);
            stop.has_timed_out = true;
            let source_index = stop.source_index;
            self.fail_requests(|_, record| record.source_index == source_index);
        }
    }

    #[cold]
    fn end_waits_of_cancelled(&mut self) {
        let is_up = matches!(self.link, Link::Up(_));
        let partly_sent = self.outbox.partly_sent();
        let now_ns = now_ns();
        self.fail_requests(|slot, record| {
            let waits = is_up && (record.state == State::Sent || partly_sent == Some(slot));
            let cancels_at_ns = record.cancels_at_ns();
            cancels_at_ns.is_some_and(|at_ns| !waits || at_ns <= now_ns)
        });
    }

    /// Fails requests that still wait for an answer. Those that were sent are given up.
    fn fail_requests(&mut self, is_meant: impl Fn(u32, &Record) -> bool) {
        let used = self.records.iter_used();
        let meant = used.filter(|(slot, record)| !record.is_given_up && is_meant(*slot, record));
        let slots: Vec<u32> = meant.map(|(slot, _)| slot).collect();
        if slots.is_empty() {
            return;
        }
        let partly_sent = self.outbox.partly_sent();
        self.outbox.remove_unsent(&slots);
        self.held.retain(|slot| !slots.contains(slot));
        for slot in slots {
            let is_partly_sent = partly_sent == Some(slot);
            if is_partly_sent || self.records.get(slot).state == State::Sent {
                self.give_up(slot, is_partly_sent);
            } else {
                self.complete(slot, Err(Errno::IO));
            }
        }
        if self.given_up > MAX_GIVEN_UP
            && let Link::Up(connection) = std::mem::replace(&mut self.link, Link::Refused)
        {
            self.lose(connection, Lost::Unanswered);
        }
    }

    /// Completes a request that the server may carry out, and keeps its record until the answer.
    fn give_up(&mut self, slot: u32, is_partly_sent: bool) {
        self.note_late_write(slot);
        if let Link::Up(connection) = &mut self.link {
            connection.drop_data_of(slot);
        }
        let record = self.records.get_mut(slot);
        // SAFETY: the request completes after that.
        unsafe { record.give_up(is_partly_sent) };
        let (token, result) = (record.request.token, Err(Errno::IO));
        self.given_up += 1;
        self.done.push(Completion { token, result });
    }
}
