//! A connection in the transmission phase, as a socket device of an iothread.
//!
//! Each turn reads from the socket once, parses all requests that have arrived, and sends all replies that are ready by one call, with
//! the data from where the disk has put it. A request occupies a slot until its reply is sent. A connection whose slots or buffers are
//! used up is not read from: so a client that sends too much, or reads no replies, only slows itself down.

mod disk;
mod incoming;
mod outgoing;
mod read_pause;
mod slots;
mod statistics;
mod status;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use block::DiskIo;
use iothread::event_loop::Interest;
use iothread::{Completion, ExportReporter, MAX_WATCHED_DESCRIPTORS, SocketDevice};
use nbd::server::Transmission;
use telemetry::queue::QueueStats;

use crate::buffers::BufferPool;
use crate::contexts::NumberedContext;
use crate::peer::Peer;
use crate::socket::ClientSocket;
use incoming::Input;
use outgoing::Replies;
use read_pause::ReadPause;
use slots::Slots;
use statistics::RequestCounter;

/// Requests of a connection that are in flight, or whose reply was not sent.
pub const DEPTH: u16 = 256;

/// The only disk of a connection.
const DISK: u32 = 0;

/// Most bytes of a connection's buffers: 32 MiB of requests, and one more request of 32 MiB.
const MAX_BUFFER_BYTES: usize = 2 * nbd::wire::MAX_PAYLOAD_BYTES as usize;

/// Most bytes that a turn reads, and that it sends: other sources of the iothread wait meanwhile.
const MAX_BYTES_PER_TURN: usize = 256 << 10;

/// How long the free buffers of an idle connection are kept.
const KEEP_BUFFERS_NS: u64 = 1_000_000_000;

// Indices of the descriptors that the iothread watches.
const READ: usize = 0;
const WRITE: usize = 1;

/// What a connection needs of its export.
pub(crate) struct ConnectionSettings {
    pub peer: Peer,
    pub transmission: Transmission,
    /// The metadata contexts that the client has chosen.
    pub contexts: Vec<NumberedContext>,
    /// The size when the client connected: what it knows.
    pub size_at_connect: u64,
    /// The size now, which may be smaller.
    pub current_size: Arc<AtomicU64>,
    /// Every write is stable when it completes.
    pub write_through: bool,
    /// Most bytes of one discard or write-zeroes.
    pub max_range_bytes: u64,
    pub export: String,
    /// The index of the iothread among those of the export, which is counted as a queue.
    pub queue: u16,
    pub stats: Arc<QueueStats>,
    pub reports: Arc<ExportReporter>,
    /// Called when the connection has ended and has nothing in flight.
    pub on_end: Box<dyn FnOnce() + Send>,
}

/// A connection.
pub(crate) struct Connection {
    socket: Socket,
    peer: Peer,
    transmission: Transmission,
    contexts: Vec<NumberedContext>,
    size_at_connect: u64,
    current_size: Arc<AtomicU64>,
    write_through: bool,
    max_range_bytes: u64,
    export: String,
    input: Input,
    read_pause: ReadPause,
    buffers: BufferPool,
    slots: Slots,
    replies: Replies,
    counter: RequestCounter,
    reports: Arc<ExportReporter>,
    on_end: Option<Box<dyn FnOnce() + Send>>,
    /// A slot or a buffer was freed since the input was parsed.
    has_freed: bool,
    /// When it had no request for the first time.
    idle_since_ns: Option<u64>,
}

/// The socket, and how far the connection has ended.
struct Socket {
    client: ClientSocket,
    /// Nothing more is read: the client has ended the session, or the export ends.
    has_read_all: bool,
    /// Nothing more is sent: the client is gone.
    is_broken: bool,
    /// The socket had bytes, as far as it is known.
    may_be_readable: bool,
    /// The socket has taken all that it can.
    is_full: bool,
}

impl Connection {
    /// On a non-blocking socket; `received` are bytes that were read already.
    pub fn new(client: ClientSocket, received: &[u8], settings: ConnectionSettings) -> Self {
        let read_pause = ReadPause::new(client.as_fd());
        Connection {
            socket: Socket {
                client,
                has_read_all: false,
                is_broken: false,
                may_be_readable: true,
                is_full: false,
            },
            peer: settings.peer,
            transmission: settings.transmission,
            contexts: settings.contexts,
            size_at_connect: settings.size_at_connect,
            current_size: settings.current_size,
            write_through: settings.write_through,
            max_range_bytes: settings.max_range_bytes,
            input: Input::new(received),
            read_pause,
            buffers: BufferPool::new(MAX_BUFFER_BYTES, DEPTH.into()),
            slots: Slots::new(),
            replies: Replies::default(),
            counter: RequestCounter::new(&settings.export, settings.queue, settings.stats),
            export: settings.export,
            reports: settings.reports,
            on_end: Some(settings.on_end),
            has_freed: false,
            idle_since_ns: None,
        }
    }

    /// Whether a request waits that there is room for now.
    fn can_unblock(&self) -> bool {
        self.input.is_blocked() && self.has_freed
    }

    /// Bytes of the export that requests may use now.
    fn usable_size(&self) -> u64 {
        self.size_at_connect
            .min(self.current_size.load(Ordering::Relaxed))
    }

    /// Whether the socket may have bytes, which are wanted.
    fn can_read(&self) -> bool {
        let socket = &self.socket;
        socket.may_be_readable && !socket.has_read_all && !self.input.is_blocked()
    }

    /// Whether no request is left: none in flight, and no reply to send.
    fn is_idle(&self) -> bool {
        self.slots.are_all_free() && !self.has_unsent()
    }

    /// Whether replies wait to be sent. Encrypted ones stay in a session whose socket is broken.
    fn has_unsent(&self) -> bool {
        !self.socket.is_broken && (!self.replies.is_empty() || self.socket.client.has_unsent())
    }

    /// Ends the connection at once: nothing more is read, submitted or sent.
    fn break_off(&mut self) {
        self.socket.has_read_all = true;
        self.socket.is_broken = true;
        self.release_not_in_flight();
        self.drop_replies();
    }

    /// Frees the slots of requests that are received and not in flight, without replies.
    fn release_not_in_flight(&mut self) {
        while let Some(slot) = self.slots.pop_not_in_flight() {
            self.release_slot(slot);
        }
    }

    /// Frees a slot whose request is not in flight.
    fn release_slot(&mut self, slot: u16) {
        self.has_freed = true;
        if let Some(buffer) = self.slots.put(slot) {
            self.buffers.put(buffer);
        }
    }

    /// Notifies the server if the connection has ended and nothing is in flight.
    fn report_end_if_finished(&mut self) {
        if self.socket.has_read_all
            && self.is_idle()
            && let Some(on_end) = self.on_end.take()
        {
            self.socket.is_broken = true;
            on_end();
        }
    }

    /// Drops the buffers of a connection that has been idle for some time.
    fn drop_buffers_if_long_idle(&mut self, now_ns: u64) {
        if !self.is_idle() || !self.buffers.has_free() {
            self.idle_since_ns = None;
            return;
        }
        let since_ns = *self.idle_since_ns.get_or_insert(now_ns);
        if now_ns.saturating_sub(since_ns) >= KEEP_BUFFERS_NS {
            self.buffers.drop_free();
            self.idle_since_ns = None;
        }
    }
}

impl SocketDevice for Connection {
    fn watched_descriptors(&self) -> [Option<(BorrowedFd<'_>, Interest)>; MAX_WATCHED_DESCRIPTORS] {
        let Socket {
            client,
            has_read_all,
            is_full,
            ..
        } = &self.socket;
        let wants_read = !has_read_all && !self.input.is_blocked();
        let wants_write = *is_full && self.has_unsent();
        let mut descriptors = [None; MAX_WATCHED_DESCRIPTORS];
        descriptors[READ] = wants_read.then(|| (client.as_fd(), Interest::Readable));
        descriptors[WRITE] = wants_write.then(|| (client.as_fd(), Interest::Writable));
        descriptors
    }

    fn watched_descriptors_version(&self) -> u64 {
        0
    }

    fn on_ready(&mut self, descriptor: usize, _now_ns: u64) {
        match descriptor {
            READ => self.socket.may_be_readable = true,
            _ => self.socket.is_full = false,
        }
    }

    /// Reads from the socket; its turn parses what has come.
    fn poll_socket(&mut self) -> bool {
        if !self.read_pause.is_over() {
            return false;
        }
        // The bytes of an earlier poll are parsed first.
        self.socket.may_be_readable = true;
        let has_read = self.can_read() && !self.input.is_full() && self.read_socket();
        if has_read {
            self.read_pause.begin(&self.socket.client);
        }
        has_read
    }

    fn run_turn(&mut self, now_ns: u64) -> bool {
        self.counter.count_as_queue();
        let has_more_to_send = self.send_replies();
        // What a poll of the socket has read, or what has waited for a slot or a buffer.
        self.parse_input();
        if self.can_read() {
            self.read_socket();
            self.parse_input();
        }
        // Requests that are answered without the disk.
        let has_more_to_send = self.send_replies() || has_more_to_send;
        self.report_end_if_finished();
        self.drop_buffers_if_long_idle(now_ns);
        has_more_to_send && !self.socket.is_full || self.can_read() || self.can_unblock()
    }

    fn deadline_ns(&mut self) -> Option<u64> {
        if self.can_unblock() {
            // Requests were refused when they were to be submitted: no completion follows.
            return Some(0);
        }
        let since_ns = self.idle_since_ns?;
        Some(since_ns.saturating_add(KEEP_BUFFERS_NS))
    }

    fn submit(&mut self, io: &mut dyn DiskIo) -> bool {
        self.submit_requests(io)
    }

    fn complete(&mut self, done: &[Completion]) {
        self.complete_requests(done);
    }

    fn in_flight_count(&mut self) -> usize {
        self.slots.in_flight()
    }

    fn is_connected(&self) -> bool {
        self.on_end.is_some()
    }

    /// Clients are accepted elsewhere.
    fn set_accepting_paused(&mut self, _paused: bool) {}

    fn disconnect(&mut self) {
        self.break_off();
    }

    /// Replies to requests in flight are still sent, as far as the socket takes them. Others get none: an error would reach the client's
    /// guest, while an unanswered request is sent again by a client that connects again.
    fn disconnect_and_stop(&mut self) {
        self.socket.has_read_all = true;
        self.release_not_in_flight();
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(on_end) = self.on_end.take() {
            on_end();
        }
    }
}
