//! The whole way of a command through the LSI 53C895A, run by hand: for counting instructions.
//!
//! ```text
//! cargo build --release -p bench --example command_cost
//! valgrind --tool=callgrind --toggle-collect='*command_cost*counted*' \
//!     target/release/examples/command_cost 16 10000
//! ```
//!
//! (`cargo xtask instructions` does that for a table of depths.) One thread plays both sides: the guest's driver puts as many
//! commands as it may into its queue and posts a register write for each, and then the adapter has its turns, as on an
//! iothread that polls, until all are answered. The disk has done everything as soon as it is asked. Only the adapter's turns are
//! counted, from the bytes in its socket on; the kernel's share of reading these is not. It measures no nanoseconds and no
//! cache misses.

#![allow(clippy::print_stdout, reason = "printing is what it is for")]

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bench::client::lsi::{Bus, ChipQueue, ControlBlocks, MAX_DEPTH, Slot};
use bench::client::{Commands, Kind, Queue, SECTOR_BYTES, SharedMemory, introduce};
use block::{DiscardLimits, DiskCall, DiskIo, Geometry, Request, token};
use lsi_driver::program::program;
use lsi53c895a::adapter::{Adapter, Disk};
use scsi::{Unit, UnitOptions};
use vfio_user::Server;

const USAGE: &str = "usage: command_cost DEPTH COMMANDS [writes]
  DEPTH     commands that the guest has in flight: up to 64
  COMMANDS  in sum, of 64 KiB
  writes    they write, else they read";

const BLOCK_BYTES: u32 = 64 << 10;
const DISK_BYTES: u64 = 1 << 30;

type Error = Box<dyn std::error::Error>;

/// A disk that has done everything at once.
#[derive(Default)]
struct Done {
    slots: Vec<u32>,
}

impl DiskIo for Done {
    fn room(&self, _: u32) -> usize {
        usize::MAX
    }

    unsafe fn submit(&mut self, _: u32, request: Request) {
        self.slots.push(token::request_number(request.token));
    }

    fn submit_blocking_call(&mut self, _: u32, _: DiskCall, _: u32) {
        unreachable!("a driver that reads and writes asks for nothing that takes its time");
    }
}

/// The adapter's side of the socket.
struct Device {
    server: Server<Adapter>,
    disk: Done,
    now_ns: u64,
}

impl Device {
    fn new(socket: UnixStream) -> Result<Self, Error> {
        let geometry = Geometry {
            size: DISK_BYTES,
            logical_block_size: 512,
            physical_block_size: 512,
            min_io_size: 0,
            opt_io_size: 0,
            discard: DiscardLimits {
                max_bytes: u64::MAX,
                granularity: 512,
            },
        };
        let disk = Disk {
            target: 0,
            lun: 0,
            unit: Arc::new(Unit::new(UnitOptions::default(), geometry)?),
        };
        let mut server = Server::new(Adapter::new("counted", &[disk])?);
        if server.attach_connection(socket).is_err() {
            return Err("the socket cannot be used".into());
        }
        Ok(Device {
            server,
            disk: Done::default(),
            now_ns: 0,
        })
    }

    /// Turns, until there is nothing to do.
    fn turns(&mut self) {
        self.server.has_or_reads_message();
        loop {
            self.now_ns += 1000;
            self.server.device_and_host().0.advance_time(self.now_ns);
            let mut more = self.server.do_pending_work(self.now_ns);
            let adapter = self.server.device_and_host().0;
            if adapter.wants_submit() {
                adapter.submit_queued_requests(&mut self.disk);
            }
            for slot in self.disk.slots.drain(..) {
                adapter.complete_request(slot, Ok(()));
                more = true;
            }
            if !more {
                return;
            }
        }
    }

    /// The name is what is counted by it.
    #[inline(never)]
    fn counted(&mut self) {
        self.turns();
    }
}

fn main() -> Result<(), Error> {
    let mut args = std::env::args().skip(1);
    let mut number = || args.next()?.parse::<u64>().ok();
    let (Some(depth), Some(commands)) = (number(), number()) else {
        return Err(USAGE.into());
    };
    let depth = u16::try_from(depth).ok();
    let depth = depth.filter(|depth| (1..=MAX_DEPTH).contains(depth));
    let depth = depth.ok_or(USAGE)?;
    let kind = match args.next().as_deref() {
        None => Kind::Read,
        Some("writes") => Kind::Write,
        Some(_) => return Err(USAGE.into()),
    };

    let (guest_end, adapter_end) = UnixStream::pair()?;
    let mut device = Device::new(adapter_end)?;
    let memory = SharedMemory::new(ControlBlocks::memory_bytes(depth, BLOCK_BYTES))?;
    let program = program();
    // While the driver sets the chip up it waits for answers.
    let is_set_up = AtomicBool::new(false);
    let (mut queue, mut blocks) = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_set_up.load(Ordering::Acquire) {
                device.turns();
                std::thread::yield_now();
            }
        });
        let set_up = || {
            let slot = Slot::plug(guest_end, &memory)?;
            let mut blocks =
                ControlBlocks::prepare(&memory, &program, depth, BLOCK_BYTES, Bus::Shared)?;
            let mut queue = ChipQueue::start(slot, &memory, &program)?;
            introduce(&mut queue, &mut blocks)?;
            Ok::<_, bench::Error>((queue, blocks))
        };
        let set_up = set_up();
        is_set_up.store(true, Ordering::Release);
        set_up
    })?;

    let places = DISK_BYTES / u64::from(BLOCK_BYTES);
    let sectors = u64::from(BLOCK_BYTES / SECTOR_BYTES);
    let (mut sent, mut calls) = (0, 0);
    while sent < commands {
        for slot in 0..depth {
            let head = blocks.aim(slot.into(), kind, (sent % places) * sectors);
            queue.push(head)?;
            sent += 1;
        }
        let mut open = depth;
        while open > 0 {
            device.counted();
            calls += 1;
            for _ in 0..queue.completed() {
                blocks.completed(queue.pop())?;
                open -= 1;
            }
        }
    }
    println!("{sent} commands, {calls} times woken");
    Ok(())
}
