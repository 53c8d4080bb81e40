//! The LSI 53C895A with its vfio-user socket, as a socket device of an iothread: accepts the front-end, runs the adapter, and counts its
//! requests.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use block::{DiskCall, DiskIo, Request, token};
use iothread::event_loop::Interest;
use iothread::{Completion, ExportReporter, MAX_WATCHED_DESCRIPTORS, ReportedExport, SocketDevice};
use lsi53c895a::adapter::Adapter;
use qmp::ServerHandle;
use telemetry::queue::{QueueStats, RequestKind};
use unix_socket::accept::{ACCEPT_RETRY_DELAY, AcceptFailed, client_or_warn};
use unix_socket::listener::Listener;
use vfio_user::{PciDevice, Server};

use super::in_flight::AdapterInFlightRequests;
use super::queues::record_and_report_connection;
use crate::disk::export_stats::ExportStats;

// Indices of the descriptors that the iothread watches.
const LISTENER: usize = 0;
const READ: usize = 1;
const WRITE: usize = 2;
const UNMASK: usize = 3;

/// Events, counters and error reports of an export.
pub(crate) struct ExportMonitoring {
    pub export: Arc<ReportedExport>,
    pub events: ServerHandle,
    pub stats: Arc<ExportStats>,
    /// Counters of each disk.
    pub disk_stats: Vec<Arc<QueueStats>>,
    /// Error reports of each disk.
    pub disk_reports: Vec<ExportReporter>,
}

/// The adapter, its front-end, and the listening socket.
pub(crate) struct LsiController {
    server: Server<Adapter>,
    listener: Option<Listener>,
    /// During a live upgrade: accepts no front-end, since the other process has the socket, or is about to.
    accepting_paused: bool,
    /// After a failed `accept`: the time before which none is accepted.
    accept_retry_ns: Option<u64>,
    monitoring: ExportMonitoring,
    in_flight: AdapterInFlightRequests,
}

impl LsiController {
    /// Of this adapter, without a front-end.
    pub fn new(
        adapter: Adapter,
        listener: Listener,
        accepting_paused: bool,
        monitoring: ExportMonitoring,
    ) -> io::Result<Self> {
        listener.socket().set_nonblocking(true)?;
        let queue = monitoring.stats.queues[0].stats.clone();
        let in_flight =
            AdapterInFlightRequests::new(adapter.name(), queue, monitoring.disk_stats.clone());
        Ok(LsiController {
            server: Server::new(adapter),
            listener: Some(listener),
            accepting_paused,
            accept_retry_ns: None,
            monitoring,
            in_flight,
        })
    }

    /// Counters of the adapter's only queue: it has no virtqueues, and is counted as one.
    fn queue_stats(&self) -> &QueueStats {
        &self.monitoring.stats.queues[0].stats
    }

    /// Accepts the next front-end.
    fn try_accept_front_end(&mut self, now_ns: u64) {
        let Some(listener) = self.listener.as_ref().filter(|_| !self.accepting_paused) else {
            return;
        };
        let accepted = listener.socket().accept();
        let export = self.server.device_and_host().0.name();
        match client_or_warn(accepted, "a front-end", Some(export)) {
            Ok(Some((socket, _))) => {
                // Fails if the front-end has disconnected already.
                let _ = self.server.attach_connection(socket);
            }
            Ok(None) => {}
            Err(AcceptFailed) => {
                let delay_ns = u64::try_from(ACCEPT_RETRY_DELAY.as_nanos()).unwrap_or(u64::MAX);
                self.accept_retry_ns = Some(now_ns.saturating_add(delay_ns));
            }
        }
    }

    /// Compares the socket with the recorded state: updates the counters, and sends an event, if a front-end has connected or disconnected.
    fn report_connection_if_changed(&mut self) {
        let connected = self.server.socket().is_some();
        let ExportMonitoring {
            export,
            events,
            stats,
            ..
        } = &self.monitoring;
        if record_and_report_connection(export, connected, stats, events) {
            let queue_size = match connected {
                true => stats.queue_size,
                false => 0,
            };
            stats.queues[0].stats.queue_size().set(queue_size.into());
        }
    }
}

/// Access to the disks that counts requests.
struct RequestCountingDiskIo<'a> {
    io: &'a mut dyn DiskIo,
    in_flight: &'a mut AdapterInFlightRequests,
    now_ticks: u64,
}

impl DiskIo for RequestCountingDiskIo<'_> {
    fn room(&self, disk: u32) -> usize {
        self.io.room(disk)
    }

    unsafe fn submit(&mut self, disk: u32, request: Request) {
        self.in_flight
            .count_and_record_submitted(disk, &request, self.now_ticks);
        // SAFETY: as the caller promises.
        unsafe { self.io.submit(disk, request) };
    }

    fn submit_blocking_call(&mut self, disk: u32, call: DiskCall, number: u32) {
        self.io.submit_blocking_call(disk, call, number);
    }
}

impl SocketDevice for LsiController {
    /// The listener while no front-end is connected; otherwise the socket, and the eventfd with which interrupts are unmasked.
    fn watched_descriptors(&self) -> [Option<(BorrowedFd<'_>, Interest)>; MAX_WATCHED_DESCRIPTORS] {
        let server = &self.server;
        let listener = self.listener.as_ref().filter(|_| {
            server.socket().is_none() && !self.accepting_paused && self.accept_retry_ns.is_none()
        });
        let readable = server.socket().filter(|_| server.wants_read());
        let writable = server.socket().filter(|_| server.wants_write());
        let mut descriptors = [None; MAX_WATCHED_DESCRIPTORS];
        descriptors[LISTENER] =
            listener.map(|listener| (listener.socket().as_fd(), Interest::Readable));
        descriptors[READ] = readable.map(|socket| (socket, Interest::Readable));
        descriptors[WRITE] = writable.map(|socket| (socket, Interest::Writable));
        // A semaphore would stay readable, whatever is read.
        descriptors[UNMASK] = server.unmask_fd().map(|fd| (fd, Interest::ReadableEdge));
        descriptors
    }

    fn watched_descriptors_version(&self) -> u64 {
        self.server.watched_descriptors_version()
    }

    fn on_ready(&mut self, descriptor: usize, now_ns: u64) {
        match descriptor {
            LISTENER => self.try_accept_front_end(now_ns),
            READ => self.server.handle_readable(now_ns),
            WRITE => self.server.handle_writable(),
            _ => self.server.handle_unmask(),
        }
    }

    fn poll_socket(&mut self) -> bool {
        self.server.has_or_reads_message()
    }

    fn run_turn(&mut self, now_ns: u64) -> bool {
        self.accept_retry_ns = self.accept_retry_ns.filter(|retry_ns| *retry_ns > now_ns);
        self.server.device_and_host().0.advance_time(now_ns);
        let has_more = self.server.do_pending_work(now_ns);
        self.report_connection_if_changed();
        has_more
    }

    fn deadline_ns(&mut self) -> Option<u64> {
        let adapter = self.server.device_and_host().0.deadline_ns();
        let deadlines = [adapter, self.server.deadline_ns(), self.accept_retry_ns];
        deadlines.into_iter().flatten().min()
    }

    /// Submits what the adapter has for its disks. False if some requests found no room.
    fn submit(&mut self, io: &mut dyn DiskIo) -> bool {
        let now_ticks = self.in_flight.now_ticks();
        let stats = &self.monitoring.stats.queues[0].stats;
        let adapter = self.server.device_and_host().0;
        if !adapter.wants_submit() {
            return true;
        }
        let submitted_all = adapter.submit_queued_requests(&mut RequestCountingDiskIo {
            io,
            in_flight: &mut self.in_flight,
            now_ticks,
        });
        stats.turns().add(1);
        stats.in_flight().set(adapter.in_flight_count() as u64);
        submitted_all
    }

    /// Counts completed requests, reports failed ones, and gives all to the adapter.
    fn complete(&mut self, done: &[Completion]) {
        let adapter = self.server.device_and_host().0;
        for &Completion { token, result } in done {
            let slot = token::request_number(token);
            let request = self
                .in_flight
                .take_and_count_completed(slot, result.is_ok());
            if let (Some(request), Err(errno)) = (request, result) {
                self.monitoring.disk_reports[request.disk]
                    .report_failure(request.kind == RequestKind::Read, errno);
            }
            adapter.complete_request(slot, result);
        }
        let in_flight = adapter.in_flight_count() as u64;
        self.queue_stats().in_flight().set(in_flight);
    }

    fn in_flight_count(&mut self) -> usize {
        self.server.device_and_host().0.in_flight_count()
    }

    fn is_connected(&self) -> bool {
        self.server.socket().is_some()
    }

    fn set_accepting_paused(&mut self, accepting_paused: bool) {
        self.accepting_paused = accepting_paused;
    }

    fn disconnect(&mut self) {
        self.server.disconnect();
        self.report_connection_if_changed();
    }

    fn disconnect_and_stop(&mut self) {
        self.listener = None;
        self.disconnect();
    }
}
