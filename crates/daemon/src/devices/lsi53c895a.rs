//! The host adapter with its socket, as an iothread runs it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use block::{DiskCall, DiskIo, Request, token};
use iothread::event_loop::Interest;
use iothread::{Completion, ExportReports, SOURCES, SocketDevice};
use lsi53c895a::adapter::Adapter;
use qmp::Handle;
use telemetry::queue::{Kind, QueueStats};
use unix_socket::listener::Listener;
use vfio_user::{PciDevice, Server};

use super::queues::tell_connected;
use super::requests::Requests;
use crate::disk::export_stats::ExportStats;

// The places of what is watched.
const LISTENER: usize = 0;
const READ: usize = 1;
const WRITE: usize = 2;
const UNMASK: usize = 3;

/// When a front-end could not be taken (too many files are open), how long it is before it is tried again.
const ACCEPT_AGAIN_NS: u64 = 100_000_000;

/// Who is told what happens.
pub(crate) struct Told {
    pub events: Handle,
    pub stats: Arc<ExportStats>,
    /// Those of each disk.
    pub disks: Vec<Arc<QueueStats>>,
    /// Of each disk.
    pub reports: Vec<ExportReports>,
}

/// The adapter, its front-end, and where the next one comes from.
pub(crate) struct LsiController {
    server: Server<Adapter>,
    listener: Option<Listener>,
    /// No front-end is taken: another process has the socket, or is about to.
    parked: bool,
    /// No front-end is taken before.
    accept_from_ns: Option<u64>,
    told: Told,
    requests: Requests,
}

impl LsiController {
    pub fn new(adapter: Adapter, listener: Listener, parked: bool, told: Told) -> io::Result<Self> {
        listener.socket().set_nonblocking(true)?;
        let queue = told.stats.queues[0].stats.clone();
        let requests = Requests::new(adapter.name(), queue, told.disks.clone());
        Ok(LsiController {
            server: Server::new(adapter),
            listener: Some(listener),
            parked,
            accept_from_ns: None,
            told,
            requests,
        })
    }

    fn stats(&self) -> &QueueStats {
        &self.told.stats.queues[0].stats
    }

    /// Takes the next front-end.
    fn accept(&mut self, now_ns: u64) {
        let Some(listener) = self.listener.as_ref().filter(|_| !self.parked) else {
            return;
        };
        match listener.socket().accept() {
            Ok((socket, _)) => {
                // An error: it has gone already.
                let _ = self.server.connect(socket);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                let export = self.server.device().0.name().to_owned();
                tracing::warn!(
                    export,
                    %error,
                    advice = "if too many files are open, raise `ulimit -n` (`LimitNOFILE=`)",
                    "no front-end can be taken; it is tried again"
                );
                self.accept_from_ns = Some(now_ns.saturating_add(ACCEPT_AGAIN_NS));
            }
        }
    }

    /// Monitors hear of front-ends that come and go.
    fn tell_connected(&mut self) {
        let connected = self.server.socket().is_some();
        let name = self.server.device().0.name();
        let Told { events, stats, .. } = &self.told;
        if tell_connected(name, connected, stats, events) {
            let size = match connected {
                true => stats.queue_size,
                false => 0,
            };
            stats.queues[0].stats.size().set(size.into());
        }
    }
}

/// The disks, and what is kept of each request.
struct Counted<'a> {
    io: &'a mut dyn DiskIo,
    requests: &'a mut Requests,
    /// In ticks.
    now: u64,
}

impl DiskIo for Counted<'_> {
    fn room(&self, disk: u32) -> usize {
        self.io.room(disk)
    }

    unsafe fn submit(&mut self, disk: u32, request: Request) {
        self.requests.submitted(disk, &request, self.now);
        // SAFETY: as promised to us.
        unsafe { self.io.submit(disk, request) };
    }

    fn call(&mut self, disk: u32, call: DiskCall, number: u32) {
        self.io.call(disk, call, number);
    }
}

impl SocketDevice for LsiController {
    fn sources(&self) -> [Option<(BorrowedFd<'_>, Interest)>; SOURCES] {
        let server = &self.server;
        let listener = self
            .listener
            .as_ref()
            .filter(|_| server.socket().is_none() && !self.parked && self.accept_from_ns.is_none());
        let readable = server.socket().filter(|_| server.wants_read());
        let writable = server.socket().filter(|_| server.wants_write());
        let mut sources = [None; SOURCES];
        sources[LISTENER] =
            listener.map(|listener| (listener.socket().as_fd(), Interest::Readable));
        sources[READ] = readable.map(|socket| (socket, Interest::Readable));
        sources[WRITE] = writable.map(|socket| (socket, Interest::Writable));
        sources[UNMASK] = server.unmask_fd().map(|fd| (fd, Interest::Readable));
        sources
    }

    fn generation(&self) -> u64 {
        self.server.generation()
    }

    fn ready(&mut self, source: usize, now_ns: u64) {
        match source {
            LISTENER => self.accept(now_ns),
            READ => self.server.readable(now_ns),
            WRITE => self.server.writable(),
            _ => self.server.unmasked(),
        }
    }

    fn poll_socket(&mut self) -> bool {
        self.server.look()
    }

    fn run(&mut self, now_ns: u64) -> bool {
        self.accept_from_ns = self.accept_from_ns.filter(|from| *from > now_ns);
        self.server.device().0.set_now(now_ns);
        let more = self.server.run(now_ns);
        self.tell_connected();
        more
    }

    fn deadline_ns(&mut self) -> Option<u64> {
        let adapter = self.server.device().0.deadline_ns();
        let deadlines = [adapter, self.server.deadline_ns(), self.accept_from_ns];
        deadlines.into_iter().flatten().min()
    }

    fn submit(&mut self, io: &mut dyn DiskIo) -> bool {
        let now = self.requests.now();
        let stats = &self.told.stats.queues[0].stats;
        let adapter = self.server.device().0;
        if !adapter.wants_submit() {
            return true;
        }
        let all = adapter.submit(&mut Counted {
            io,
            requests: &mut self.requests,
            now,
        });
        stats.turns().add(1);
        stats.in_flight().set(adapter.in_flight() as u64);
        all
    }

    fn complete(&mut self, done: &[Completion]) {
        let adapter = self.server.device().0;
        for &Completion { token, result } in done {
            let slot = token::number(token);
            let asked = self.requests.completed(slot, result.is_ok());
            if let (Some(asked), Err(errno)) = (asked, result) {
                self.told.reports[asked.disk].failed(asked.kind == Kind::Read, errno);
            }
            adapter.completed(slot, result);
        }
        let in_flight = adapter.in_flight() as u64;
        self.stats().in_flight().set(in_flight);
    }

    fn in_flight(&mut self) -> usize {
        self.server.device().0.in_flight()
    }

    fn is_connected(&self) -> bool {
        self.server.socket().is_some()
    }

    fn park(&mut self, parked: bool) {
        self.parked = parked;
    }

    fn disconnect(&mut self) {
        self.server.disconnect();
        self.tell_connected();
    }

    fn stop(&mut self) {
        self.listener = None;
        self.disconnect();
    }
}
