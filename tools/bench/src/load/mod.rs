//! The load generator: a number of requests that is always in flight, over a vhost-user-blk socket.
//!
//! [`Load`] says what to do, [`measure`] does it once on connected sockets and says what came of it. How it is done: `plan` (what a
//! request is to be), `driver` (the loop of a client thread), `meter` (what it counts), `conductor` (warm-up, the part that counts, the
//! end).

mod conductor;
mod driver;
mod measured;
mod meter;
mod pattern;
mod phase;
mod plan;
pub mod raw;
mod started_server;
mod verify;

use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use conductor::{Worker, conduct};
pub use driver::{Driver, Waiting};
pub use measured::{Measured, ServerUsage};
pub use meter::Tally;
pub use pattern::{Pattern, Random, Walk};
use phase::Phases;
pub use plan::Plan;
use started_server::StartedServer;
pub use started_server::scatter;
pub use verify::{Verified, verify};

use crate::client::{Commands, Queue, SessionParameters, Waiter};
use crate::cpus::pin;
use crate::error::{Error, Result};

/// What to do to a disk.
#[derive(Clone, Debug)]
pub struct Load {
    /// Which blocks, and whether they are read or written.
    pub pattern: Pattern,
    /// Bytes of a request, a multiple of 512.
    pub block_bytes: u32,
    /// Requests in flight on each queue.
    pub depth: u16,
    /// Queues.
    pub queues: u16,
    /// How the client learns of completions.
    pub waiting: Waiting,
    /// Threads of the client, which share the queues; at least 1, at most one per queue.
    pub threads: u16,
    /// Processors that they run on, in turn; empty: wherever the kernel likes.
    pub cpus: Vec<usize>,
    /// Record how many had completed, this often.
    pub mark_interval: Option<Duration>,
    /// Only this much of the disk, from its beginning; 0: all.
    pub span_bytes: u64,
    /// The server has to record what is in flight.
    pub recorded: bool,
}

impl Load {
    /// Requests of 4 KiB at random places, of which so many percent are reads, through one queue.
    #[must_use]
    pub fn random(read_percent: u8, depth: u16, waiting: Waiting) -> Self {
        Load {
            pattern: Pattern {
                is_random: true,
                read_percent,
            },
            block_bytes: 4096,
            depth,
            queues: 1,
            waiting,
            threads: 1,
            cpus: Vec::new(),
            mark_interval: None,
            span_bytes: 0,
            recorded: false,
        }
    }

    /// The blocks that it goes over, of a disk of so many bytes.
    ///
    /// # Errors
    /// [`Error::Unsuitable`] when it is larger than the disk, or a block is.
    pub fn blocks_of(&self, capacity_bytes: u64) -> Result<u64> {
        let bytes = match self.span_bytes {
            0 => capacity_bytes,
            span => span,
        };
        let blocks = bytes / u64::from(self.block_bytes);
        if bytes > capacity_bytes || blocks == 0 {
            return Err(Error::Unsuitable(format!(
                "the disk has {capacity_bytes} bytes, not {}",
                bytes.max(self.block_bytes.into())
            )));
        }
        Ok(blocks)
    }

    fn suits(&self, agreed: &SessionParameters) -> Result<()> {
        let why = if self.pattern.writes() && agreed.read_only() {
            "the disk is read-only".to_owned()
        } else if !self.block_bytes.is_multiple_of(agreed.block_bytes) {
            format!(
                "requests of {} bytes are not made of the disk's blocks of {}",
                self.block_bytes, agreed.block_bytes
            )
        } else if u64::from(self.queues) > agreed.num_queues {
            let (has, wanted) = (agreed.num_queues, self.queues);
            format!("the server has {has} queues, not {wanted}")
        } else {
            return Ok(());
        };
        Err(Error::Unsuitable(why))
    }
}

/// When a load counts.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Load that does not count.
    pub warm_up: Duration,
    /// Load that counts.
    pub time: Duration,
    /// How often it is measured.
    pub repetitions: u32,
}

/// Runs the threads that drive `drivers`, which are there afterwards, and samples the usage of the process `pid`. `server` is the
/// socket to it.
///
/// # Errors
/// As for [`measure`].
pub fn drive<Q: Queue + Send, R: Commands + Send, P: Plan + Send>(
    drivers: &mut [Driver<Q, R, P>],
    server: BorrowedFd<'_>,
    load: &Load,
    times: Times,
    pid: Option<u32>,
) -> Result<Measured> {
    let block_bytes = drivers
        .first()
        .map_or(load.block_bytes, |driver| driver.requests().block_bytes());
    let threads = usize::from(load.threads).clamp(1, drivers.len().max(1));
    let per_thread = drivers.len().div_ceil(threads);
    let chunks = drivers.chunks_mut(per_thread).enumerate();
    let workers = chunks.map(|(index, drivers)| {
        let cpu = load.cpus.get(index % load.cpus.len().max(1)).copied();
        let worker = move |phases: &Phases| {
            cpu.map_or(Ok(()), |cpu| pin(&[cpu]))?;
            let calls = drivers.iter().map(Driver::call_fd);
            let mut waiter = Waiter::new(calls, Some(server))?;
            driver::run(drivers, &mut waiter, load, phases)
        };
        Box::new(worker) as Worker<'_>
    });
    conduct(workers.collect(), times, pid, block_bytes)
}

/// Puts `load` on disks of a server behind these sockets, on `queues` queues of each. `pid` is its process, if that is not the one
/// that the kernel names.
///
/// # Errors
/// [`Error::Unsuitable`] when the disk is not one for this load; [`Error::Requests`] when a request
/// fails or is not answered; [`Error::Gone`] when the server ends; [`Error::Protocol`];
/// [`Error::Interrupted`].
pub fn measure(
    streams: Vec<UnixStream>,
    load: &Load,
    times: Times,
    pid: Option<u32>,
) -> Result<Measured> {
    let disks = streams.into_iter();
    let disks = disks.map(|stream| StartedServer::new(stream, load));
    let disks = disks.collect::<Result<Vec<_>>>()?;
    let Some(first) = disks.first() else {
        return Err(Error::Unsuitable("there is no disk to load".to_owned()));
    };
    let mut drivers = Vec::new();
    for (number, disk) in (0..).zip(&disks) {
        if load.pattern.writes() {
            disk.scatter();
        }
        let walk = |index| {
            let number = number * load.queues + index;
            Walk::new(load.pattern, disk.blocks, number, load.queues)
        };
        drivers.extend(disk.drivers(walk));
    }
    // When a server ends, it closes all its sockets.
    let (socket, pid) = (
        first.session.socket(),
        pid.or_else(|| first.session.server_pid()),
    );
    let measured = drive(&mut drivers, socket, load, times, pid)?;
    drop(drivers);
    disks.into_iter().try_for_each(StartedServer::stop)?;
    Ok(measured)
}
