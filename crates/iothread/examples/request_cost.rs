//! The whole way of a request on an iothread, run by hand: for counting instructions.
//!
//! ```text
//! cargo build --release -p iothread --example request_cost
//! valgrind --tool=callgrind --toggle-collect='*::iteration' --toggle-collect='*::guest_turn' \
//!     target/release/examples/request_cost 32 100000
//! ```
//!
//! The difference of two runs, of which one has more requests, is what these cost. One thread plays both sides: the loop
//! iterates, and whenever it reads its clock or would wait, the guest gets its turn and, if all that
//! it asked for is answered, asks again. Nothing depends on time, so that two runs execute the same
//! instructions, and the guest's own are not counted. It measures no nanoseconds and no cache misses.

#![allow(clippy::print_stdout, reason = "printing is what it is for")]

use std::cell::Cell;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering, fence};
use std::sync::mpsc::channel;

use block::{
    Aio, BackendSettings, FileOptions, IoContext, Locking, Node, NodeOptions, NullOptions,
};
use iothread::event_loop::poller::Event;
use iothread::event_loop::{EventLoop, Interest, PollSettings, Poller, Readiness};
use iothread::{DeviceSetup, Message, QueuesRunner, ScsiDisk, ScsiSetup, VringSetup};
use rustix::event::{EventfdFlags, eventfd};
use scsi::{TransportId, Unit, UnitOptions};
use telemetry::queue::QueueName;
use virtio_blk::{Device, DeviceOptions};
use virtio_scsi::Address;
use virtqueue::queue_setup::{QueueFds, QueueSetup};
use virtqueue::testing::{Buffer, DriverRing, TestMemory};
use virtqueue::{GuestMemory, InflightRegion, RingFeatures};

const USAGE: &str =
    "usage: request_cost DEPTH REQUESTS [scsi] [sequential] [blocking] [recorded] [io_uring] [fixed] [FILE]
  DEPTH       requests that the guest has in flight: a power of two up to 256
  scsi        they are READ (10) commands on a queue of a virtio SCSI controller
  sequential  the requests of a batch are neighbours, else they are random
  blocking    the guest waits for a signal, and kicks when it is asked to
  recorded    what is in flight is recorded, for a server that follows a crash
  io_uring    a ring carries the requests to FILE, else Linux AIO
  fixed       the guest's memory is known to the ring
  FILE        a file of at least 16 MiB on a file system with direct I/O, else a null disk";

const QUEUE_SIZE: u16 = 1024;
const BLOCK_BYTES: u32 = 4096;
const DISK_BYTES: u64 = 16 << 20;

/// A SCSI command's header, and where its CDB of 32 bytes begins.
const COMMAND_BYTES: u32 = 51;
const CDB_AT: usize = 19;

type Error = Box<dyn std::error::Error>;

/// What is to be run.
struct Load {
    depth: u16,
    requests: u64,
    scsi: bool,
    sequential: bool,
    blocking: bool,
    recorded: bool,
    fixed: bool,
    node: NodeOptions,
}

impl Load {
    /// The load of the command line: depth, number of requests, and words for the kind of guest and disk; `None` if it is invalid.
    fn from_args() -> Option<Load> {
        let mut args = std::env::args().skip(1);
        let mut load = Load {
            depth: args.next()?.parse().ok()?,
            requests: args.next()?.parse().ok()?,
            scsi: false,
            sequential: false,
            blocking: false,
            recorded: false,
            fixed: false,
            node: NodeOptions::Null(NullOptions {
                size: DISK_BYTES,
                read_zeroes: false,
                latency_ns: 0,
            }),
        };
        let mut aio = Aio::Native;
        for arg in args {
            match arg.as_str() {
                "scsi" => load.scsi = true,
                "sequential" => load.sequential = true,
                "blocking" => load.blocking = true,
                "recorded" => load.recorded = true,
                "fixed" => load.fixed = true,
                "io_uring" => aio = Aio::IoUring,
                path => {
                    load.node = NodeOptions::File(FileOptions {
                        path: path.into(),
                        direct: true,
                        no_flush: false,
                        unmap: true,
                        aio,
                        aio_max_batch: 0,
                        locking: Locking::Off,
                        force_share: false,
                    });
                }
            }
        }
        (load.depth.is_power_of_two() && load.depth <= 256).then_some(load)
    }
}

/// A guest whose requests stand in its memory once and for all: only sectors and indices change.
struct Guest {
    depth: u16,
    scsi: bool,
    sequential: bool,
    blocking: bool,
    headers: Vec<NonNull<u8>>,
    avail: NonNull<u8>,
    used: NonNull<u8>,
    asked: Cell<u16>,
    answered: Cell<u64>,
    random: Cell<u64>,
    _memory: Arc<GuestMemory>,
}

impl Guest {
    /// Writes the guest's requests to its memory and its ring.
    fn new(load: &Load, memory: &TestMemory, driver: &mut DriverRing) -> Guest {
        let guest_memory = memory.guest_memory();
        let host = |addr, len| {
            guest_memory
                .host_addr_of_range(addr, len)
                .expect("test memory")
        };
        let mut headers = Vec::new();
        let mut heads = Vec::new();
        for _ in 0..load.depth {
            let data = memory.alloc(u64::from(BLOCK_BYTES), u64::from(BLOCK_BYTES));
            let data = Buffer::writable(data, BLOCK_BYTES);
            if load.scsi {
                let command = memory.alloc(COMMAND_BYTES.into(), 64);
                let response = Buffer::writable(memory.alloc(108, 4), 108);
                let readable = Buffer::readable(command, COMMAND_BYTES);
                heads.push(driver.add(&[readable, response, data]));
                memory.write(command, &[1, 0, 0x40]);
                let blocks = u8::try_from(BLOCK_BYTES / 512).expect("few");
                memory.write(
                    command + CDB_AT as u64,
                    &[0x28, 0, 0, 0, 0, 0, 0, 0, blocks],
                );
                headers.push(host(command, COMMAND_BYTES.into()));
            } else {
                let header = memory.alloc(16, 16);
                let status = Buffer::writable(memory.alloc(16, 16), 1);
                heads.push(driver.add(&[Buffer::readable(header, 16), data, status]));
                headers.push(host(header, 16));
            }
        }
        for (entry, head) in (0..QUEUE_SIZE).zip(heads.iter().cycle()) {
            driver.set_avail_entry(entry, *head);
        }
        let layout = driver.layout();
        Guest {
            depth: load.depth,
            scsi: load.scsi,
            sequential: load.sequential,
            blocking: load.blocking,
            headers,
            avail: host(layout.avail, 6 + 2 * u64::from(QUEUE_SIZE)),
            used: host(layout.used, 6 + 8 * u64::from(QUEUE_SIZE)),
            asked: Cell::new(0),
            answered: Cell::new(0),
            random: Cell::new(1),
            _memory: guest_memory,
        }
    }

    fn word(ring: NonNull<u8>, offset: usize) -> &'static AtomicU16 {
        // SAFETY: the offsets below are even and inside the rings, which are aligned, and mapped
        // until the program ends.
        unsafe { AtomicU16::from_ptr(ring.add(offset).cast().as_ptr()) }
    }

    /// Asks for the next batch if the last one is answered; true when the device wants a kick.
    #[inline(never)]
    fn guest_turn(&self) -> bool {
        let old = self.asked.get();
        if Guest::word(self.used, 2).load(Ordering::Acquire) != old {
            return false;
        }
        self.answered
            .set(self.answered.get() + u64::from(self.depth));
        let size = usize::from(QUEUE_SIZE);
        for index in 0..self.depth {
            let entry = usize::from(old.wrapping_add(index)) % size;
            let head = Guest::word(self.avail, 4 + 2 * entry).load(Ordering::Relaxed);
            let header = self.headers[usize::from(head / 3)];
            let sector = self.next_block(index) * u64::from(BLOCK_BYTES / 512);
            // SAFETY: within a header of ours, or the CDB behind it, which the device does not have now.
            unsafe {
                if self.scsi {
                    let lba = u32::try_from(sector).expect("a small disk").to_be();
                    header.add(CDB_AT + 2).cast::<u32>().write_unaligned(lba);
                } else {
                    header.add(8).cast::<u64>().write_unaligned(sector);
                }
            }
        }
        let new = old.wrapping_add(self.depth);
        self.asked.set(new);
        if self.blocking {
            // To be signalled for the last of them.
            Guest::word(self.avail, 4 + 2 * size).store(new.wrapping_sub(1), Ordering::Relaxed);
        }
        Guest::word(self.avail, 2).store(new, Ordering::Release);
        fence(Ordering::SeqCst);
        let event = Guest::word(self.used, 4 + 8 * size).load(Ordering::Relaxed);
        event.wrapping_sub(old) < self.depth
    }

    /// The block of the next request: the following one, or a random one.
    fn next_block(&self, index: u16) -> u64 {
        if self.sequential && index > 0 {
            self.random.set(self.random.get() + 1);
        } else {
            let next = self.random.get().wrapping_mul(6_364_136_223_846_793_005) + 1;
            self.random.set(next);
        }
        let seed = self.random.get();
        let mixed = if self.sequential { seed } else { seed >> 33 };
        mixed % (DISK_BYTES / u64::from(BLOCK_BYTES))
    }
}

/// A kernel in which nothing happens but the guest's turns. Each look at the clock takes 100 ns.
struct Turns {
    guest: Rc<Guest>,
    now_ns: Cell<u64>,
    kick: u64,
}

impl Poller for Turns {
    fn add(&mut self, _: BorrowedFd<'_>, _: Interest, cookie: u64) -> io::Result<()> {
        // The queue's is the last one.
        self.kick = cookie;
        Ok(())
    }

    fn modify(&mut self, _: BorrowedFd<'_>, _: Interest, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn delete(&mut self, _: BorrowedFd<'_>) -> io::Result<()> {
        Ok(())
    }

    fn wait(&mut self, events: &mut Vec<Event>, timeout_ns: Option<u64>) -> io::Result<()> {
        events.clear();
        if timeout_ns != Some(0) {
            self.now_ns.set(self.now_ns.get() + 5_000);
            if self.guest.guest_turn() {
                events.push(Event {
                    cookie: self.kick,
                    readiness: Readiness {
                        readable: true,
                        ..Readiness::default()
                    },
                });
            }
        }
        Ok(())
    }

    fn now_ns(&self) -> u64 {
        if !self.guest.blocking {
            self.guest.guest_turn();
        }
        self.now_ns.set(self.now_ns.get() + 100);
        self.now_ns.get()
    }
}

/// Memory for a record, as a front-end would share it.
fn record() -> InflightRegion {
    let words = InflightRegion::len_bytes(false, QUEUE_SIZE) / size_of::<AtomicU64>();
    let memory: Arc<[AtomicU64]> = (0..words).map(|_| AtomicU64::new(0)).collect();
    // SAFETY: as many bytes as a record has, all of them atomics, kept by the owner.
    unsafe {
        let host = NonNull::from(&memory[0]).cast();
        InflightRegion::new(host, false, QUEUE_SIZE, Arc::new(memory))
    }
}

/// A controller's first queue for commands, with a disk that has nothing to complain of any more.
fn scsi_queue(node: Arc<Node>) -> Result<DeviceSetup, Error> {
    let device = virtio_scsi::Device::new(virtio_scsi::DeviceOptions {
        request_queues: 1,
        queue_size: QUEUE_SIZE,
        initiator: TransportId::Sas(1),
    })?;
    let address = Address { target: 0, lun: 0 };
    let unit = Unit::new(UnitOptions::default(), node.geometry())?;
    device.add_unit_and_report(address, Arc::new(unit))?;
    Ok(DeviceSetup::Scsi(ScsiSetup {
        device: Arc::new(device),
        index: virtio_scsi::FIXED_QUEUES,
        disks: vec![ScsiDisk {
            address,
            node,
            stats: Arc::default(),
            reports: None,
        }],
    }))
}

/// The name is what is counted by it.
#[inline(never)]
fn iteration(iothread: &mut EventLoop<QueuesRunner>) -> io::Result<bool> {
    iothread.iterate()
}

fn main() -> Result<(), Error> {
    let load = Load::from_args().ok_or(USAGE)?;
    let memory = TestMemory::new(16 << 20);
    let features = RingFeatures {
        event_idx: true,
        ..RingFeatures::default()
    };
    let mut driver = DriverRing::new(&memory, QUEUE_SIZE, features);
    let guest = Rc::new(Guest::new(&load, &memory, &mut driver));
    let poller = Box::new(Turns {
        guest: guest.clone(),
        now_ns: Cell::new(0),
        kick: 0,
    });
    let polling = PollSettings {
        max_ns: if load.blocking { 0 } else { 1_000_000 },
        ..PollSettings::default()
    };
    let mut iothread = EventLoop::<QueuesRunner>::new(poller, polling, |_, remote| {
        let waker = remote.waker();
        let io = IoContext::new(BackendSettings::default(), Arc::new(move || waker.wake()))
            .map_err(io::Error::other)?;
        Ok::<_, std::io::Error>(QueuesRunner::new(remote, io))
    })?;
    let node = Node::open("disk", false, &load.node)?;
    let device = if load.scsi {
        scsi_queue(node)?
    } else {
        let device = Device::new(DeviceOptions::default(), node.geometry())?;
        DeviceSetup::Blk {
            device: Arc::new(device),
            node,
        }
    };
    let (reply, answer) = channel();
    let setup = Box::new(VringSetup {
        name: QueueName::new("counted", 0),
        device,
        queue: QueueSetup {
            memory: memory.guest_memory(),
            layout: driver.layout(),
            features,
            base: 0,
            inflight: load.recorded.then(record),
            log: None,
            descriptors: QueueFds {
                kick: Some(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?),
                call: Some(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?),
                err: None,
            },
            enabled: true,
        },
        fixed_buffers: load.fixed,
        stats: Arc::default(),
        reports: None,
    });
    iothread.remote().send(Message::Start(setup, reply))?;

    let mut iterations = 0_u64;
    while guest.answered.get() < load.requests {
        iteration(&mut iothread)?;
        iterations += 1;
        if iterations == 1 {
            answer.recv()??;
        }
    }
    println!("{} requests, {iterations} iterations", guest.answered.get());
    Ok(())
}
