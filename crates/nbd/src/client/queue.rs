//! Requests of one thread to one export: sends them, and returns their completions to that thread.

mod bounded_waits;
mod outage;
mod requested_flush;

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;

use engine::{Completion, Errno, Full, Op, Request};

use super::connection::Connection;
use super::disk::Disk;
use super::ending::EndingConnection;
use super::lost::Lost;
use super::outbox::Outbox;
use super::record::State;
use super::records::Records;
use super::request_group::RequestGroup;
use super::sockets::SocketSet;
use super::{Wake, now_ns};
use bounded_waits::Stop;
use outage::Outage;

/// Most requests in flight in a queue.
pub const MAX_IN_FLIGHT: u32 = 256;

/// The connection of a queue.
enum Link {
    Up(Connection),
    Down(Outage),
    /// The server allows one connection, which another queue has: all requests fail.
    Refused,
}

/// Requests of one thread to one export, in the shape of [`engine::IoBackend`].
///
/// Dropping it waits for nothing, so the owner of the buffers drops it when nothing is in flight. The connection is kept by the
/// disk.
pub struct ClientQueue {
    disk: Arc<Disk>,
    sockets: Option<Rc<SocketSet>>,
    wake: Wake,
    link: Link,
    records: Records,
    outbox: Outbox,
    /// Requests that wait until overlapping writes that may be carried out late are answered, in order.
    held: VecDeque<u32>,
    /// Unanswered requests that change data and may be carried out late.
    late_writes: usize,
    /// Requests that were given up and are not answered.
    given_up: usize,
    /// When the present outage began: its first break. `None`: since the last break a request was answered, or none waited for the new
    /// connection.
    outage_since_ns: Option<u64>,
    /// Completions for the next reap.
    done: Vec<Completion>,
    /// Requests whose piece was answered, while they are processed.
    answered: Vec<u32>,
    next_order: u64,
    /// Sources that are to end.
    stops: Vec<Stop>,
    /// Threads that wait for the flush that is under way.
    flush_callers: Vec<Sender<Result<(), Errno>>>,
    /// An event of the sockets has not been looked at.
    has_event: bool,
}

impl ClientQueue {
    /// An empty queue. `sockets` are watched by the thread's event loop; without, it calls [`reap`](Self::reap) now and then while
    /// [`needs_retry`](Self::needs_retry). `wake` is called by other threads and must be cheap.
    #[must_use]
    pub fn new(disk: Arc<Disk>, sockets: Option<Rc<SocketSet>>, wake: Wake) -> Self {
        let first = disk.add_queue(&wake);
        let mut queue = ClientQueue {
            disk,
            sockets,
            wake,
            link: Link::Refused,
            records: Records::new(MAX_IN_FLIGHT),
            outbox: Outbox::new(MAX_IN_FLIGHT),
            held: VecDeque::new(),
            late_writes: 0,
            given_up: 0,
            outage_since_ns: None,
            done: Vec::with_capacity(MAX_IN_FLIGHT as usize),
            answered: Vec::with_capacity(MAX_IN_FLIGHT as usize),
            next_order: 0,
            stops: Vec::new(),
            flush_callers: Vec::new(),
            has_event: false,
        };
        match first {
            Some(Some(connected)) => {
                queue.link = Link::Up(Connection::new(connected, queue.sockets.clone()));
                queue.disk.connected_queues.fetch_add(1, Ordering::Relaxed);
            }
            Some(None) => queue.link = Link::Down(queue.begin_first_connection()),
            None => tracing::error!(
                "requests to {} fail on this iothread: the server allows one connection \
                 (it does not offer NBD_FLAG_CAN_MULTI_CONN), which another iothread has",
                queue.disk.options()
            ),
        }
        queue
    }

    /// The disk.
    #[must_use]
    pub fn disk(&self) -> &Arc<Disk> {
        &self.disk
    }

    /// How many requests are certain to be taken before the next reap.
    #[must_use]
    pub fn room(&self) -> usize {
        self.records.room().saturating_sub(self.done.len())
    }

    /// Takes a request of the source with this index, and of the job with this group; the next [`submit`](Self::submit) sends it. Two
    /// kinds of requests are taken without room, and fail: those of a cancelled job, and those of a source whose `stop_timeout` has
    /// passed.
    ///
    /// # Errors
    /// [`Full`] if there is no room; the request was not taken.
    ///
    /// # Safety
    /// As for [`engine::IoBackend::start_or_queue`], until the completion was reaped or the queue was dropped.
    pub unsafe fn start(
        &mut self,
        request: &Request,
        source_index: u32,
        group: Option<&Arc<RequestGroup>>,
    ) -> Result<(), Full> {
        let is_cancelled = group.is_some_and(|group| group.is_cancelled());
        let is_full = self.room() == 0;
        let fails_at_once = is_cancelled || (is_full && self.has_stop_timed_out(source_index));
        if is_full && !fails_at_once {
            return Err(Full);
        }
        let fails = match &self.link {
            _ if fails_at_once => true,
            Link::Up(_) => false,
            Link::Down(outage) => outage.fails_requests(),
            Link::Refused => true,
        };
        let has_nothing_to_do = request.len == 0 && request.op != Op::Flush;
        if fails || has_nothing_to_do {
            let (token, result) = (request.token, if fails { Err(Errno::IO) } else { Ok(()) });
            self.done.push(Completion { token, result });
            return Ok(());
        }
        let taken = self
            .records
            .take(request, source_index, group, self.next_order);
        let slot = taken.ok_or(Full)?;
        self.next_order += 1;
        if self.late_writes > 0 && self.overlaps_late_write(slot) {
            self.held.push_back(slot);
        } else {
            self.queue_piece(slot);
        }
        Ok(())
    }

    /// Has the next piece of a request sent.
    fn queue_piece(&mut self, slot: u32) {
        self.records.get_mut(slot).begin_piece(&self.disk);
        self.outbox.push(slot);
    }

    /// Notes that the server may carry out what it has not answered late: a request that was given up, or an old copy of one that
    /// is sent again on another connection.
    fn note_late_write(&mut self, slot: u32) {
        let record = self.records.get_mut(slot);
        if record.changes_data() && !record.is_late_write {
            record.is_late_write = true;
            self.late_writes += 1;
        }
    }

    /// Whether a write overlaps one that may be carried out late: it waits for the answer to that.
    #[cold]
    fn overlaps_late_write(&self, slot: u32) -> bool {
        let record = self.records.get(slot);
        let mut used = self.records.iter_used();
        record.changes_data()
            && used.any(|(other, late)| {
                other != slot && late.is_late_write && late.overlaps(&record.request)
            })
    }

    /// Queues the requests that have waited, and overlap no late write any more.
    #[cold]
    fn queue_held(&mut self) {
        for _ in 0..self.held.len() {
            let Some(slot) = self.held.pop_front() else {
                return;
            };
            if self.overlaps_late_write(slot) {
                self.held.push_back(slot);
            } else {
                self.queue_piece(slot);
            }
        }
    }

    /// The submit phase: sends requests.
    pub fn submit(&mut self) {
        let has_unsent = matches!(&self.link, Link::Up(connection) if connection.has_unsent());
        if self.outbox.is_empty() && !has_unsent {
            return;
        }
        self.with_connection(|connection, queue| {
            let Self {
                outbox,
                disk,
                records,
                answered,
                ..
            } = queue;
            connection.send(outbox, disk, records, answered)
        });
    }

    /// Uses the connection, if there is one. If that fails it is replaced.
    fn with_connection(
        &mut self,
        call: impl FnOnce(&mut Connection, &mut Self) -> Result<(), Lost>,
    ) {
        match std::mem::replace(&mut self.link, Link::Refused) {
            Link::Up(mut connection) => {
                let result = call(&mut connection, self);
                self.link = Link::Up(connection);
                self.process_answered();
                if let Err(reason) = result
                    && let Link::Up(connection) = std::mem::replace(&mut self.link, Link::Refused)
                {
                    self.lose(connection, reason);
                }
            }
            other => self.link = other,
        }
    }

    /// Notes that the event loop has seen an event of the sockets.
    pub fn note_event(&mut self) {
        self.has_event = true;
    }

    /// The reap phase: appends completions to `out`.
    pub fn reap(&mut self, out: &mut Vec<Completion>) {
        match &self.link {
            Link::Up(connection) => {
                let has_event = std::mem::take(&mut self.has_event);
                if has_event || self.records.used() > 0 || !connection.is_drained() {
                    self.with_connection(|connection, queue| {
                        connection.receive(&mut queue.records, &mut queue.answered)
                    });
                }
            }
            Link::Down(outage) if outage.is_over() => self.end_outage_if_over(),
            Link::Down(outage) if outage.deadline_ns().is_some() => {
                self.fail_waiting_if_due(now_ns());
            }
            Link::Down(_) | Link::Refused => {}
        }
        self.end_bounded_waits();
        if !self.held.is_empty() {
            self.queue_held();
        }
        if self.serves_flush_calls() {
            self.begin_requested_flush();
        }
        if !self.flush_callers.is_empty() {
            self.report_requested_flush();
        }
        out.append(&mut self.done);
    }

    /// Whether another thread waits for a flush on the connection.
    fn serves_flush_calls(&self) -> bool {
        self.disk.flush_calls.is_requested() && !matches!(self.link, Link::Refused)
    }

    /// Completes requests that were answered, or has their next pieces sent.
    fn process_answered(&mut self) {
        let mut answered = std::mem::take(&mut self.answered);
        if !answered.is_empty() {
            self.outage_since_ns = None;
        }
        for slot in answered.drain(..) {
            let features = self.disk.features();
            let record = self.records.get_mut(slot);
            debug_assert!(record.state == State::Answered);
            if let Some(errno) = record.error {
                self.complete(slot, Err(errno));
            } else if !record.is_given_up && record.advance(features) {
                self.queue_piece(slot);
            } else {
                self.complete(slot, Ok(()));
            }
        }
        self.answered = answered;
    }

    /// Whether [`reap`](Self::reap) finds something; without a system call.
    #[must_use]
    pub fn has_completions(&self) -> bool {
        !self.done.is_empty()
            || (self.flush_callers.is_empty() && self.serves_flush_calls() && self.room() > 0)
            || match &self.link {
                Link::Up(connection) => self.has_event || connection.has_more_to_send(),
                Link::Down(outage) => outage.is_over(),
                Link::Refused => false,
            }
    }

    /// Whether the loop has to run once more before it waits for events: the socket was not read to its end.
    #[must_use]
    pub fn must_run_before_blocking(&self) -> bool {
        match &self.link {
            Link::Up(connection) => !connection.is_drained(),
            Link::Down(_) | Link::Refused => false,
        }
    }

    /// When requests fail that wait for a connection, or whose wait is bounded (the loop's clock, nanoseconds).
    #[must_use]
    pub fn next_deadline_ns(&self) -> Option<u64> {
        let outage = match &self.link {
            Link::Down(outage) => outage.deadline_ns(),
            Link::Up(_) | Link::Refused => None,
        };
        outage.into_iter().chain(self.next_bound_ns()).min()
    }

    /// Whether the loop has to look again in a moment, since events of the socket do not reach it.
    #[must_use]
    pub fn needs_retry(&self) -> bool {
        match &self.link {
            Link::Up(connection) => !connection.is_watched() && self.records.used() > 0,
            Link::Down(_) | Link::Refused => false,
        }
    }
}

impl Drop for ClientQueue {
    /// Leaves the connection to the disk. If the server has not answered everything, the connection ends, and the next one is made
    /// after that.
    fn drop(&mut self) {
        match std::mem::replace(&mut self.link, Link::Refused) {
            Link::Up(mut connection) => {
                self.disk.connected_queues.fetch_sub(1, Ordering::Relaxed);
                // The last answers, or the end of the server, may not have been looked at.
                let received = connection.receive(&mut self.records, &mut self.answered);
                self.process_answered();
                match received {
                    Err(reason) => self.disk.count_loss_if_crash(reason),
                    // A server that is silent may have crashed.
                    Ok(()) if self.records.used() > 0 => self.disk.count_loss(),
                    Ok(()) => {}
                }
                let idle = match received.is_ok() && self.records.used() == 0 {
                    true => connection.into_idle(),
                    false => {
                        let socket = connection.into_socket();
                        let wait = self.ending_wait();
                        EndingConnection::begin(socket, self.disk.options(), wait)
                            .wait_in_background(self.disk.launcher());
                        None
                    }
                };
                self.disk.remove_queue(&self.wake, idle);
            }
            Link::Down(outage) => {
                drop(outage);
                self.disk.remove_queue(&self.wake, None);
            }
            Link::Refused => {}
        }
    }
}
