//! The time without a connection: how long requests wait, and what is sent again afterwards.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use engine::{Completion, Errno};

use super::{ClientQueue, Link};
use crate::client::connection::Connection;
use crate::client::ending::{ENDING_WAIT, EndingConnection, GIVEN_UP_WAIT, time_until_ended};
use crate::client::lost::Lost;
use crate::client::reconnection::Reconnection;
use crate::client::record::State;
use crate::client::{connector, nanoseconds, now_ns};

/// A connection that breaks within this time is not replaced at once.
const SHORT_LIVED: Duration = Duration::from_secs(1);

/// The pause before a short-lived connection is replaced.
const PAUSE: Duration = Duration::from_millis(500);

/// With so many broken connections a request fails: it might be the reason.
const MAX_LOSSES: u8 = 8;

/// The time until there is a connection again.
pub(super) struct Outage {
    reconnection: Arc<Reconnection>,
    /// When requests stop waiting (the loop's clock); `None`: they fail at once.
    deadline_ns: Option<u64>,
}

impl Outage {
    /// Whether requests fail at once.
    pub fn fails_requests(&self) -> bool {
        self.deadline_ns.is_none()
    }

    /// When the requests that wait fail.
    pub fn deadline_ns(&self) -> Option<u64> {
        self.deadline_ns
    }

    /// Whether the new connection is there.
    pub fn is_over(&self) -> bool {
        self.reconnection.is_ready()
    }
}

impl Drop for Outage {
    fn drop(&mut self) {
        self.reconnection.cancel();
    }
}

impl ClientQueue {
    /// Connects for the first time, in the background: other queues have the disk's connections, or they were closed. The time that
    /// requests wait is counted from the end of earlier connections.
    pub(super) fn begin_first_connection(&self) -> Outage {
        let options = self.disk.options();
        let patience = options.reconnect_delay.max(options.attempt_timeout);
        let wait = time_until_ended(options) + patience;
        Outage {
            reconnection: connector::start(&self.disk, None, Duration::ZERO, self.wake.clone()),
            deadline_ns: Some(now_ns().saturating_add(nanoseconds(wait))),
        }
    }

    /// Ends a connection. Requests that were sent wait for the next one, or fail.
    pub(super) fn lose(&mut self, connection: Connection, reason: Lost) {
        let now_ns = now_ns();
        let lived_ns = now_ns.saturating_sub(connection.since_ns);
        self.disk.connected_queues.fetch_sub(1, Ordering::Relaxed);
        // The next break belongs to the same outage, unless a request was answered before it or none waited.
        let since_ns = *self.outage_since_ns.get_or_insert(now_ns);
        let delay = self.disk.options().reconnect_delay;
        let deadline_ns = since_ns.saturating_add(nanoseconds(delay));
        tracing::warn!(
            %reason, requests = self.records.used(), reconnect_delay_s = delay.as_secs(),
            "the connection to {} broke", self.disk.options()
        );
        let pause = match lived_ns < nanoseconds(SHORT_LIVED) {
            true => PAUSE,
            false => Duration::ZERO,
        };
        self.disk.count_loss_if_crash(reason);
        let socket = connection.into_socket();
        let wait = self.ending_wait();
        let old = EndingConnection::begin(socket, self.disk.options(), wait);
        let reconnection = connector::start(&self.disk, Some(old), pause, self.wake.clone());
        self.link = Link::Down(Outage {
            reconnection,
            deadline_ns: Some(deadline_ns),
        });
        if reason == Lost::UnreadableMemory {
            // The request has failed already; its part that was sent ends with the connection.
            self.outbox.restart(std::iter::empty());
        }
        self.prepare_to_send_again();
        self.fail_waiting_if_due(now_ns);
    }

    /// How long the end of the connection is waited for.
    pub(super) fn ending_wait(&self) -> Duration {
        let mut used = self.records.iter_used();
        match used.any(|(_, record)| record.is_given_up && record.changes_data()) {
            true => GIVEN_UP_WAIT,
            false => ENDING_WAIT,
        }
    }

    /// Has all requests sent again, in their order: each flush comes after the writes that came before it. Those that were given up end
    /// with the old connection.
    fn prepare_to_send_again(&mut self) {
        let partly_sent = self.outbox.partly_sent();
        let mut slots: Vec<(u64, u32)> = Vec::new();
        let mut poisonous: Vec<u32> = Vec::new();
        let mut given_up: Vec<u32> = Vec::new();
        for (slot, record) in self.records.iter_used() {
            match record.state {
                _ if record.is_given_up => given_up.push(slot),
                State::Sent | State::Unsent if record.losses >= MAX_LOSSES => poisonous.push(slot),
                State::Sent | State::Unsent => slots.push((record.order, slot)),
                State::Free | State::Held | State::Answered => {}
            }
        }
        slots.sort_unstable();
        for &(_, slot) in &slots {
            let record = self.records.get_mut(slot);
            if record.state == State::Sent || partly_sent == Some(slot) {
                record.losses += 1;
                self.note_late_write(slot);
            }
            self.records.get_mut(slot).begin_again(&self.disk);
        }
        self.outbox.restart(slots.iter().map(|(_, slot)| *slot));
        for slot in given_up {
            self.complete(slot, Err(Errno::IO));
        }
        for slot in poisonous {
            tracing::error!(
                "a request to {} fails: {MAX_LOSSES} connections broke before it was answered",
                self.disk.options()
            );
            self.complete(slot, Err(Errno::IO));
        }
    }

    /// Uses the new connection, if it is there.
    pub(super) fn end_outage_if_over(&mut self) {
        let Link::Down(outage) = &self.link else {
            return;
        };
        let Some(connected) = outage.reconnection.take_connected() else {
            return;
        };
        let connection = Connection::new(connected, self.sockets.clone());
        self.link = Link::Up(connection);
        self.disk.connected_queues.fetch_add(1, Ordering::Relaxed);
        if self.outage_since_ns.is_some() {
            if self.records.used() == 0 {
                // No request has waited for this connection: if it breaks, that is another outage.
                self.outage_since_ns = None;
            }
            self.disk.reconnections.fetch_add(1, Ordering::Relaxed);
            tracing::info!(
                requests = self.records.used(),
                "connected again to {}",
                self.disk.options()
            );
        }
    }

    /// Fails all requests if they have waited for long enough.
    pub(super) fn fail_waiting_if_due(&mut self, now_ns: u64) {
        let Link::Down(outage) = &mut self.link else {
            return;
        };
        if outage.deadline_ns.is_none_or(|deadline| now_ns < deadline) {
            return;
        }
        outage.deadline_ns = None;
        tracing::error!(
            requests = self.records.used(),
            "requests to {} fail until there is a connection again",
            self.disk.options()
        );
        self.outbox.restart(std::iter::empty());
        self.held.clear();
        let slots: Vec<u32> = self.records.iter_used().map(|(slot, _)| slot).collect();
        for slot in slots {
            self.complete(slot, Err(Errno::IO));
        }
    }

    /// Completes a request. One that was given up has completed before.
    pub(super) fn complete(&mut self, slot: u32, result: Result<(), Errno>) {
        let record = self.records.get(slot);
        if record.is_late_write {
            self.late_writes -= 1;
        }
        if result.is_ok() && record.changes_data() {
            let has_unflushed = &self.disk.has_unflushed;
            if !has_unflushed.load(Ordering::Relaxed) {
                has_unflushed.store(true, Ordering::Relaxed);
            }
        }
        let (token, is_given_up) = (record.request.token, record.is_given_up);
        self.records.release(slot);
        match is_given_up {
            true => self.given_up -= 1,
            false => self.done.push(Completion { token, result }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use engine::{Op, Request};

    use super::*;
    use crate::client::connect::Connected;
    use crate::client::socket::Socket;
    use crate::client::{BlockSizes, ClientOptions, Disk, Negotiated, ReplyStyle, ServerAddress};

    const NEGOTIATED: Negotiated = Negotiated {
        size: 1 << 20,
        flags: 0,
        blocks: BlockSizes {
            minimum: 1,
            preferred: 4096,
            maximum: 32 << 20,
        },
        replies: ReplyStyle::Simple,
    };

    /// A queue with a connection, and the server's end of it. The address is for this test only, and no server has it.
    fn connected_queue(address: &str) -> (ClientQueue, UnixStream) {
        let options = ClientOptions {
            server: ServerAddress::Unix {
                path: address.into(),
            },
            export: String::new(),
            reconnect_delay: Duration::from_secs(60),
            open_timeout: Duration::ZERO,
            attempt_timeout: Duration::ZERO,
            stop_timeout: Duration::ZERO,
            tls: None,
        };
        let (socket, server) = UnixStream::pair().unwrap();
        socket.set_nonblocking(true).unwrap();
        let disk = Disk::of_socket(options, socket.into(), NEGOTIATED).unwrap();
        (ClientQueue::new(disk, None, Arc::new(|| ())), server)
    }

    /// Breaks the connection; returns when requests fail that wait for another one.
    fn break_connection(queue: &mut ClientQueue, server: UnixStream) -> u64 {
        drop(server);
        queue.note_event();
        queue.reap(&mut Vec::new());
        queue.next_deadline_ns().expect("the connection broke")
    }

    /// Gives the queue another connection, and returns the server's end of it.
    fn connect_again(queue: &mut ClientQueue) -> UnixStream {
        let Link::Down(outage) = &queue.link else {
            panic!("the queue has a connection");
        };
        let (socket, server) = UnixStream::pair().unwrap();
        socket.set_nonblocking(true).unwrap();
        let connected = Connected {
            socket: Socket::plain(socket.into()),
            negotiated: NEGOTIATED,
        };
        assert!(outage.reconnection.offer(connected).is_none());
        queue.reap(&mut Vec::new());
        assert_eq!(queue.next_deadline_ns(), None);
        server
    }

    #[test]
    fn outage_is_over_with_a_connection_that_no_request_has_waited_for() {
        let (mut queue, server) = connected_queue("/no/server/without/requests");
        break_connection(&mut queue, server);
        assert!(queue.outage_since_ns.is_some());
        let _server = connect_again(&mut queue);
        assert_eq!(queue.outage_since_ns, None);
    }

    #[test]
    fn outage_goes_on_if_a_connection_breaks_that_a_request_has_waited_for() {
        let (mut queue, server) = connected_queue("/no/server/with/a/request");
        let flush = Request::without_data(Op::Flush, 0, 0, 0);
        // SAFETY: there is no memory.
        unsafe { queue.start(&flush, 0, None) }.unwrap();
        let deadline_ns = break_connection(&mut queue, server);
        let server = connect_again(&mut queue);
        assert_eq!(break_connection(&mut queue, server), deadline_ns);
    }
}
