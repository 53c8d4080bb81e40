//! A baseline for measurements: a vhost-user-blk server with nothing between ring and disk, as fast as any server can be.
//!
//! ```text
//! cargo build --release -p vhost-user --example bare_relay
//! taskset -c 0 target/release/examples/bare_relay /tmp/relay.sock FILE wait io_uring &
//! blockplane-bench compare --backing FILE --client blocking --depth 32,128 --servers ours,raw --socket /tmp/relay.sock
//! ```
//!
//! In place of FILE and `io_uring`, `POOL/IMAGE` and `rbd` are an image of Ceph RBD, of the cluster that `CEPH_CONF` names.
//!
//! One thread pops chains from a split ring, submits their reads with the guest's memory as buffers,
//! and completes all that are done with one signal. It has one queue of one disk, which it
//! reads past the page cache; there is no device, no merging, no fairness, no limit and no statistics. Its
//! cost beyond the host's own reads is that of any server: two threads that hand each other work.
//!
//! When it has no work:
//!
//! - `wait`: it sleeps until a kick or a completion, as a program on the host would.
//! - `answer`: it polls for the guest's next request for some microseconds after a signal, and then sleeps.
//! - `spin`: it polls the ring and the disk all the time.

mod disk;
mod engine;

use std::error::Error;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::ptr;
use std::sync::Arc;
use std::thread::park;
use std::time::{Duration, Instant};

use ::engine::Completion;
use libc::iovec;
use rustix::buffer::spare_capacity;
use rustix::event::epoll;
use unix_socket::listener::Listener;
use vhost_user::{ControlThreads, Server};
use virtqueue::queue_setup::QueueSetup;
use virtqueue::{Chain, RingError, SplitRing};

use disk::{BareDisk, STATUS_OK, StopFlag, signal};
use engine::{Disk, Engine};

const USAGE: &str = "usage: bare_relay SOCKET FILE|POOL/IMAGE wait|answer|spin native|io_uring|rbd";

const SECTOR_BYTES: u64 = 512;
const HEADER_BYTES: usize = 16;
const T_IN: u32 = 0;
const STATUS_IOERR: u8 = 1;
const STATUS_UNSUPP: u8 = 2;

/// How long to poll after the guest was signalled: its thread has to wake up first.
const ANSWER_TIME: Duration = Duration::from_micros(60);

/// Behaviour without work.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Idle {
    Wait,
    Answer,
    Spin,
}

/// A request in flight.
#[derive(Clone, Copy)]
struct Request {
    data: iovec,
    status: *mut u8,
    busy: bool,
}

struct Relay<'q> {
    // First, so that it is dropped first: that waits for requests in flight.
    engine: Engine,
    /// By the heads of their chains.
    requests: Vec<Request>,
    in_flight: usize,
    completions: Vec<Completion>,
    chain: Chain,
    ring: &'q mut SplitRing,
    setup: &'q QueueSetup,
    epoll: OwnedFd,
    /// When the guest was signalled.
    signalled: Instant,
}

impl<'q> Relay<'q> {
    /// Prepares to serve a queue, with an epoll instance for its kicks, completions and the stop.
    fn new(
        ring: &'q mut SplitRing,
        setup: &'q QueueSetup,
        stop: &StopFlag,
        disk: &Disk,
    ) -> Result<Self, Box<dyn Error>> {
        let engine = Engine::new(disk)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        // Edge-triggered, so that the eventfds need not be read.
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        let kick = setup.descriptors.kick.as_ref().map(OwnedFd::as_fd);
        for fd in [engine.eventfd(), stop.as_fd()].into_iter().chain(kick) {
            epoll::add(&epoll, fd, epoll::EventData::new_u64(0), edge)?;
        }
        let none = Request {
            data: iovec {
                iov_base: ptr::null_mut(),
                iov_len: 0,
            },
            status: ptr::null_mut(),
            busy: false,
        };
        Ok(Relay {
            engine,
            requests: vec![none; ring.size().into()],
            in_flight: 0,
            completions: Vec::with_capacity(ring.size().into()),
            chain: Chain::new(),
            ring,
            setup,
            epoll,
            signalled: Instant::now(),
        })
    }

    /// Serves the queue until it is to stop and nothing is in flight.
    fn run(&mut self, stop: &StopFlag, idle: Idle) -> Result<(), RingError> {
        self.ring.disable_kicks();
        while !stop.is_set() || self.in_flight > 0 {
            let completed = self.complete();
            let submitted = self.submit()?;
            if completed || submitted || idle == Idle::Spin {
                continue;
            }
            if idle == Idle::Answer && self.poll_answer() {
                continue;
            }
            // From here on a descriptor signals new requests and completions.
            if !self.ring.enable_kicks_and_recheck() && !self.engine.prepare_to_block_and_recheck()
            {
                let mut events = Vec::with_capacity(4);
                // An interruption is handled like a wake-up.
                let _ = epoll::wait(&self.epoll, spare_capacity(&mut events), None);
            }
            self.ring.disable_kicks();
        }
        Ok(())
    }

    /// Completes all requests that are done, with one signal.
    fn complete(&mut self) -> bool {
        self.engine.reap(&mut self.completions);
        let any = !self.completions.is_empty();
        for completion in self.completions.drain(..) {
            // The token is the head of the chain.
            let head = (completion.token & 0xffff) as u16;
            let request = &mut self.requests[usize::from(head)];
            request.busy = false;
            self.in_flight -= 1;
            let (status, bytes) = match completion.result {
                Ok(()) => (STATUS_OK, request.data.iov_len),
                Err(_) => (STATUS_IOERR, 0),
            };
            // SAFETY: guest memory that the chain has checked, mapped as long as the queue's setup.
            unsafe { request.status.write_volatile(status) };
            self.ring
                .push(head, u32::try_from(bytes + 1).unwrap_or(u32::MAX));
        }
        self.publish();
        any
    }

    fn publish(&mut self) {
        if self.ring.publish()
            && let Some(call) = &self.setup.descriptors.call
        {
            signal(call);
            self.signalled = Instant::now();
        }
    }

    /// Submits the guest's new requests.
    fn submit(&mut self) -> Result<bool, RingError> {
        let mut any = false;
        while let Some(head) = self.ring.pop(&self.setup.memory, &mut self.chain)? {
            any = true;
            if !self.read(head) {
                self.refuse(head);
            }
        }
        self.engine.submit();
        Ok(any)
    }

    /// Submits a read into one buffer; false for other requests.
    fn read(&mut self, head: u16) -> bool {
        let ([header], &[data, status]) = (self.chain.readable(), self.chain.writable()) else {
            return false;
        };
        let request = &mut self.requests[usize::from(head)];
        if header.iov_len != HEADER_BYTES || request.busy {
            return false;
        }
        // SAFETY: 16 bytes of guest memory that the chain has checked, mapped as long as the queue's setup.
        let [kind, sector] = unsafe { header.iov_base.cast::<[u64; 2]>().read_unaligned() };
        // The upper half of the first word is reserved.
        if (kind & u64::from(u32::MAX)) != u64::from(T_IN) {
            return false;
        }
        *request = Request {
            data,
            status: last_byte(&status),
            busy: true,
        };
        let (offset, len) = (sector.wrapping_mul(SECTOR_BYTES), data.iov_len as u64);
        let buffer = &raw mut request.data;
        // SAFETY: the buffer is guest memory that is mapped as long as the queue's setup; its entry
        // in `requests` is not touched before the completion (`busy`), and outlives the engine.
        let read = unsafe { self.engine.read(offset, buffer, len, head.into()) };
        request.busy = read.is_ok();
        self.in_flight += usize::from(read.is_ok());
        read.is_ok()
    }

    fn refuse(&mut self, head: u16) {
        if let Some(status) = self.chain.writable().last() {
            // SAFETY: guest memory that the chain has checked, mapped as long as the queue's setup.
            unsafe { last_byte(status).write_volatile(STATUS_UNSUPP) };
        }
        self.ring.push(head, 1);
        self.publish();
    }

    /// Polls for the guest's next request or a completion for a while after the signal.
    fn poll_answer(&self) -> bool {
        while self.signalled.elapsed() < ANSWER_TIME {
            if self.ring.has_available() || self.engine.has_completions() {
                return true;
            }
            std::hint::spin_loop();
        }
        false
    }
}

/// The last byte of a segment, which is never empty.
fn last_byte(segment: &iovec) -> *mut u8 {
    segment
        .iov_base
        .cast::<u8>()
        .wrapping_add(segment.iov_len - 1)
}

/// Parses the command line, and serves front-ends until a signal ends the process.
fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [socket, path, idle, engine] = words.as_slice() else {
        return Err(USAGE.into());
    };
    let idle = match idle.as_str() {
        "wait" => Idle::Wait,
        "answer" => Idle::Answer,
        "spin" => Idle::Spin,
        _ => return Err(USAGE.into()),
    };
    let opened = Disk::open(path, engine)?;
    // An error is reported now, and not when the first queue starts.
    Engine::new(&opened)?;
    let disk = BareDisk {
        name: "bare relay",
        sectors: opened.size()? / SECTOR_BYTES,
        serve: Arc::new(
            move |ring, setup, stop| match Relay::new(ring, setup, stop, &opened) {
                Ok(mut relay) => relay.run(stop, idle),
                Err(error) => {
                    eprintln!("bare_relay: the queue is not served: {error}");
                    Ok(())
                }
            },
        ),
    };
    let threads = Arc::new(ControlThreads::start()?);
    let listener = Listener::bind(&PathBuf::from(socket))?;
    let _server = Server::start(&threads, listener, Arc::new(disk))?;
    // It runs until a signal ends it.
    loop {
        park();
    }
}
