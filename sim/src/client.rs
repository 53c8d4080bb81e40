//! A client of the disk that has no ring: its requests come over a connection, as those of a host adapter do.
//!
//! Its iothread runs a [`SocketDevice`], whose peer is the [`Client`]: it sends requests, and checks
//! the answers. It shares the disk with the guest, and so the model of what may be there.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use block::{DiskIo, Op, Request, token};
use engine::{Completion, Errno};
use iothread::event_loop::Interest;
use iothread::{MAX_WATCHED_DESCRIPTORS, SocketDevice};

use crate::failure::Failure;
use crate::guest::Guest;
use crate::model::{Ended, SECTOR, data};
use crate::plan::Kind;

/// A sector in memory, as any direct I/O wants it.
#[derive(Clone)]
#[repr(align(512))]
struct Sector([u8; SECTOR]);

/// The list of segments of a request, and what it names.
struct Buffer {
    sectors: Vec<Sector>,
    segment: Box<libc::iovec>,
}

// SAFETY: the segment names the sectors, which go with it.
unsafe impl Send for Buffer {}

impl Buffer {
    fn new(sectors: u64, bytes: &[u8]) -> Self {
        let count = usize::try_from(sectors).expect("few");
        let mut sectors = vec![Sector([0; SECTOR]); count];
        for (sector, bytes) in sectors.iter_mut().zip(bytes.chunks(SECTOR)) {
            sector.0.copy_from_slice(bytes);
        }
        let segment = Box::new(libc::iovec {
            iov_base: sectors.as_mut_ptr().cast(),
            iov_len: count * SECTOR,
        });
        Buffer { sectors, segment }
    }
}

/// A request on its way to the device.
struct DeviceRequest {
    id: u32,
    op: Op,
    stable: bool,
    sector: u64,
    buffer: Buffer,
}

/// The outcome of a request.
struct DeviceReply {
    id: u32,
    result: Result<(), Errno>,
    sectors: Vec<Sector>,
}

/// What is under way between client and device.
#[derive(Default)]
struct Connection {
    sent: VecDeque<DeviceRequest>,
    answers: Vec<DeviceReply>,
}

type Shared = Arc<Mutex<Connection>>;

fn lock(connection: &Shared) -> MutexGuard<'_, Connection> {
    connection.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A request of the client without a reply.
struct PendingRequest {
    kind: Kind,
    range: (u64, u64),
    stable: bool,
    asked: u64,
    may_fail: bool,
}

/// The client's end.
#[derive(Default)]
pub struct Client {
    connection: Shared,
    asked: BTreeMap<u32, PendingRequest>,
    /// Requests that were answered.
    pub answered: u64,
}

impl Client {
    /// The device's end of a new connection.
    pub fn connect(&mut self) -> Box<dyn SocketDevice> {
        self.connection = Shared::default();
        let flags = rustix::event::EventfdFlags::CLOEXEC;
        Box::new(Device {
            connection: self.connection.clone(),
            socket: rustix::event::eventfd(0, flags).expect("an eventfd"),
            waiting: VecDeque::new(),
            in_flight: BTreeMap::new(),
            connected: true,
        })
    }

    /// Sends a request: a read, a write, which may have to be stable when it is done, or a flush.
    pub fn send(&mut self, guest: &mut Guest, kind: Kind, range: (u64, u64), stable: bool) {
        let (id, now) = (guest.new_id(), guest.tick());
        let (sector, sectors) = range;
        let (op, bytes) = match kind {
            Kind::Read => (Op::Read, Vec::new()),
            Kind::Write => (Op::Write, data(id, sector, sectors)),
            _ => (Op::Flush, Vec::new()),
        };
        if op == Op::Write {
            guest.model.asked(id, id, true, range, now);
        }
        guest
            .trace
            .say(|| format!("client: #{id}: {kind:?} of {sectors} sectors at {sector}"));
        guest.throttles.shown(id, kind, sectors);
        let buffer = Buffer::new(sectors, &bytes);
        lock(&self.connection).sent.push_back(DeviceRequest {
            id,
            op,
            stable,
            sector,
            buffer,
        });
        self.asked.insert(
            id,
            PendingRequest {
                kind,
                range,
                stable,
                asked: now,
                may_fail: false,
            },
        );
    }

    /// The disk has failed something.
    pub fn failed(&mut self, failure: &Failure) {
        for asked in self.asked.values_mut() {
            asked.may_fail |= failure.may_be(asked.kind, asked.range);
        }
    }

    /// Looks at answers that have come.
    pub fn look(&mut self, guest: &mut Guest) {
        let answers = std::mem::take(&mut lock(&self.connection).answers);
        for answer in answers {
            let id = answer.id;
            if let Err(wrong) = self.check_reply(guest, answer) {
                guest.complain(format!("#{id} of the client: {wrong}"));
            }
        }
    }

    fn check_reply(&mut self, guest: &mut Guest, answer: DeviceReply) -> Result<(), String> {
        let DeviceReply {
            id,
            result,
            sectors,
        } = answer;
        let asked = self.asked.remove(&id).ok_or("was answered before")?;
        let now = guest.tick();
        self.answered += 1;
        guest.throttles.answered(id, result.is_err());
        guest.trace.say(|| format!("client: #{id}: {result:?}"));
        if result.is_err() && !asked.may_fail {
            return Err(format!(
                "it has failed ({result:?}), and the disk has failed nothing"
            ));
        }
        match (asked.kind, result) {
            (Kind::Write, _) => {
                let how = match result {
                    Err(_) => Ended::Unknown,
                    Ok(()) if asked.stable => Ended::Stable,
                    Ok(()) => Ended::Done,
                };
                guest.changed(id, asked.range, how, now)?;
            }
            (_, Err(_)) => {}
            (Kind::Read, Ok(())) => {
                for (sector, bytes) in (asked.range.0..).zip(&sectors) {
                    guest.model.check(sector, &bytes.0, asked.asked)?;
                }
            }
            (_, Ok(())) => guest.model.flushed(asked.asked),
        }
        Ok(())
    }

    /// The connection has ended: nothing is known of what is not answered.
    pub fn forget(&mut self, guest: &mut Guest) {
        let now = guest.tick();
        for (id, asked) in std::mem::take(&mut self.asked) {
            guest.throttles.forget(id);
            guest.model.ended(id, asked.range, Ended::Unknown, now);
        }
    }

    /// A request that has no answer.
    pub fn waits_for(&self) -> Option<u32> {
        self.asked.keys().next().copied()
    }
}

/// The device's end, on an iothread.
struct Device {
    connection: Shared,
    /// What is ready when something was sent.
    socket: OwnedFd,
    waiting: VecDeque<DeviceRequest>,
    in_flight: BTreeMap<u32, Buffer>,
    connected: bool,
}

impl SocketDevice for Device {
    fn watched_descriptors(&self) -> [Option<(BorrowedFd<'_>, Interest)>; MAX_WATCHED_DESCRIPTORS] {
        let socket = self.connected.then_some(self.socket.as_fd());
        [
            socket.map(|socket| (socket, Interest::Readable)),
            None,
            None,
            None,
        ]
    }

    fn watched_descriptors_version(&self) -> u64 {
        0
    }

    fn on_ready(&mut self, _: usize, _: u64) {
        self.waiting.append(&mut lock(&self.connection).sent);
    }

    fn poll_socket(&mut self) -> bool {
        false
    }

    fn run_turn(&mut self, _: u64) -> bool {
        false
    }

    fn deadline_ns(&mut self) -> Option<u64> {
        None
    }

    fn submit(&mut self, io: &mut dyn DiskIo) -> bool {
        while io.room(0) > 0 {
            let Some(sent) = self.waiting.pop_front() else {
                return true;
            };
            let DeviceRequest { id, buffer, .. } = sent;
            let buffer = self.in_flight.entry(id).or_insert(buffer);
            let request = Request {
                op: sent.op,
                fua: sent.stable && sent.op == Op::Write,
                offset: sent.sector * SECTOR as u64,
                len: buffer.segment.iov_len as u64,
                iov: &raw mut *buffer.segment,
                iov_count: u32::from(sent.op != Op::Flush),
                token: id.into(),
            };
            // SAFETY: the buffer stays until the request completes.
            unsafe { io.submit(0, request) };
        }
        self.waiting.is_empty()
    }

    fn complete(&mut self, done: &[Completion]) {
        for Completion { token, result } in done {
            let id = token::request_number(*token);
            let buffer = self.in_flight.remove(&id).expect("it was submitted");
            lock(&self.connection).answers.push(DeviceReply {
                id,
                result: *result,
                sectors: buffer.sectors,
            });
        }
    }

    fn in_flight_count(&mut self) -> usize {
        self.in_flight.len()
    }

    fn is_connected(&self) -> bool {
        self.connected
    }

    fn set_accepting_paused(&mut self, _: bool) {}

    fn disconnect(&mut self) {
        self.connected = false;
        self.waiting.clear();
    }

    fn disconnect_and_stop(&mut self) {
        self.disconnect();
    }
}
