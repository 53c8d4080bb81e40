//! One HTTP client of the metrics endpoint: receives its requests, sends the responses, and keeps the deadline at which the
//! server drops it.
//!
//! It holds at most one request and one response, and each has a timeout. So a client that is slow, or that sends
//! and never reads, costs a connection for a while and delays no other client.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};

use crate::openmetrics::http::{HttpRequest, RequestedPage};
use crate::openmetrics::limits::{
    KEEP_ALIVE_TIMEOUT, LINGER_TIMEOUT, MAX_REQUEST_BYTES, REQUEST_TIMEOUT, RESPONSE_TIMEOUT,
};
use crate::openmetrics::pages::HttpPageSource;

/// A connected client.
pub(crate) struct HttpConnection {
    socket: OwnedFd,
    stage: HttpConnectionStage,
    /// Bytes of requests that are not answered yet.
    input: Vec<u8>,
    /// When the connection is dropped.
    deadline: Instant,
    /// When it last received a response, or connected.
    idle_since: Instant,
}

/// Stage of the connection.
enum HttpConnectionStage {
    ReadingRequest,
    WritingResponse {
        response: Vec<u8>,
        /// Bytes that have been sent.
        sent: usize,
        /// The connection is closed afterwards.
        close_after: bool,
    },
    /// Waiting for the client to close its side: a full close could discard the response on its way.
    Lingering,
    Closed,
}

impl HttpConnection {
    /// The state of a client that has just connected.
    pub fn new(socket: OwnedFd, now: Instant) -> Self {
        HttpConnection {
            socket,
            stage: HttpConnectionStage::ReadingRequest,
            input: Vec::new(),
            deadline: now + REQUEST_TIMEOUT,
            idle_since: now,
        }
    }

    /// Whether the connection has ended or its time is over.
    pub fn has_ended_or_timed_out(&self, now: Instant) -> bool {
        matches!(self.stage, HttpConnectionStage::Closed) || self.deadline <= now
    }

    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Order of eviction when there are too many clients: first those that are not reading a response, the longest
    /// idle first.
    pub fn eviction_rank(&self) -> (bool, Instant) {
        (
            matches!(self.stage, HttpConnectionStage::WritingResponse { .. }),
            self.idle_since,
        )
    }

    /// The events for which the socket is polled.
    pub fn events_to_poll(&self) -> PollFlags {
        match self.stage {
            HttpConnectionStage::WritingResponse { .. } => PollFlags::OUT,
            _ => PollFlags::IN,
        }
    }

    /// Makes progress when the socket is readable or writable; handles at most one request.
    pub fn on_ready(&mut self, pages: &impl HttpPageSource, now: Instant) {
        let has_input = match self.stage {
            HttpConnectionStage::ReadingRequest => self.receive_into_buffer(now),
            HttpConnectionStage::WritingResponse { .. } => self.write_response(now),
            HttpConnectionStage::Lingering => {
                self.receive_and_discard_input();
                false
            }
            HttpConnectionStage::Closed => false,
        };
        if has_input && let Some(request) = HttpRequest::parse_next(&mut self.input) {
            let response = request.encode_response(|| match request.page {
                RequestedPage::Metrics(format) => pages.metrics_page(format),
                RequestedPage::Index | RequestedPage::Invalid(_) => pages.plain_text_index(),
            });
            self.stage = HttpConnectionStage::WritingResponse {
                response,
                sent: 0,
                close_after: request.close_after,
            };
            self.deadline = now + RESPONSE_TIMEOUT;
        }
    }

    /// Receives what has arrived and appends it to `input`, which the caller parses. True if there is new input.
    fn receive_into_buffer(&mut self, now: Instant) -> bool {
        let len_before = self.input.len();
        self.input.resize(MAX_REQUEST_BYTES, 0);
        // There is room: a partial request that fills the buffer was rejected before.
        let received = recv(
            &self.socket,
            &mut self.input[len_before..],
            RecvFlags::empty(),
        );
        let received = received.map(|(_, len)| len);
        self.input.truncate(len_before + received.unwrap_or(0));
        match received {
            Ok(0) => self.stage = HttpConnectionStage::Closed,
            Ok(_) if len_before == 0 => self.deadline = now + REQUEST_TIMEOUT,
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.stage = HttpConnectionStage::Closed,
        }
        received.is_ok_and(|len| len > 0)
    }

    /// Sends what the socket takes of the response. True when it is sent completely and the next request is already in
    /// the buffer.
    fn write_response(&mut self, now: Instant) -> bool {
        let HttpConnectionStage::WritingResponse {
            response,
            sent,
            close_after,
        } = &mut self.stage
        else {
            return false;
        };
        match send(&self.socket, &response[*sent..], SendFlags::NOSIGNAL) {
            Ok(len) => *sent += len,
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => {
                self.stage = HttpConnectionStage::Closed;
                return false;
            }
        }
        if *sent < response.len() {
            return false;
        }
        let close_after = *close_after;
        self.idle_since = now;
        if close_after {
            // An error only means that the client has disconnected.
            let _ = shutdown(&self.socket, Shutdown::Write);
            self.stage = HttpConnectionStage::Lingering;
            self.deadline = now + LINGER_TIMEOUT;
            return false;
        }
        self.stage = HttpConnectionStage::ReadingRequest;
        let timeout = if self.input.is_empty() {
            KEEP_ALIVE_TIMEOUT
        } else {
            REQUEST_TIMEOUT
        };
        self.deadline = now + timeout;
        !self.input.is_empty()
    }

    /// Discards input while the client closes its side.
    fn receive_and_discard_input(&mut self) {
        let mut discarded = [0; MAX_REQUEST_BYTES];
        match recv(&self.socket, &mut discarded[..], RecvFlags::empty()) {
            Ok((_, len)) if len > 0 => {}
            Err(Errno::AGAIN | Errno::INTR) => {}
            _ => self.stage = HttpConnectionStage::Closed,
        }
    }
}

impl AsFd for HttpConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
