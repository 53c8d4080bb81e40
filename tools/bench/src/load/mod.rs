//! The load generator: a number of requests that is always in flight, over a vhost-user-blk socket.
//!
//! [`Load`] says what to do, [`measure`] does it once on a connected socket and says what came of
//! it. How it is done: `plan` (what a request is to be), `driver` (the loop of a client thread),
//! `meter` (what it counts), `phases` (warm-up, the part that counts, the end).

mod driver;
mod during;
mod latencies;
mod measured;
pub(crate) mod meter;
mod pattern;
pub(crate) mod phases;
mod plan;
pub mod raw;
mod scsi;
mod started_server;
mod together;
mod usage;
mod verify;

use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use driver::Driver;
pub use driver::Waiting;
pub use during::measure_during;
pub(crate) use latencies::latencies;
pub use measured::{Measured, Verified};
pub use meter::{Mark, Tally};
pub use pattern::{Order, Pattern, Walk};
pub use phases::Episode;
use phases::{Phase, Phases, Worker, conduct};
use plan::Plan;
pub use scsi::{LsiRequestOptions, measure_lsi, measure_virtio_scsi};
use started_server::StartedServer;
pub use together::measure_together;
pub use usage::{Saturated, ServerUsage};
use verify::{Flush, ReadBack, Territory, WriteAndCheck};

use crate::client::{Commands, Form, Placement, Queue, SessionParameters, Waiter};
use crate::cpus::{give_way, pin};
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
    /// They run only when nothing else wants their processors.
    pub gives_way: bool,
    /// What is measured besides counts.
    pub detail: Detail,
    /// Only this much of the disk, from its beginning; 0: all.
    pub span_bytes: u64,
    /// The server has to record what is in flight.
    pub recorded: bool,
    /// How a virtio disk's requests lie in memory.
    pub placement: Placement,
    /// What they are beside reads and writes.
    pub form: Form,
}

/// What is measured besides counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Detail {
    /// How long each request takes.
    pub latency: bool,
    /// How many had completed, this often.
    pub mark_interval: Option<Duration>,
    /// The time between completions.
    pub gaps: bool,
    /// How long requests take that are in flight at the end, as well: with a server that answers none of them in the part that
    /// counts, there would be no latency of those.
    pub in_flight: bool,
}

impl Load {
    /// The blocks that it goes over, of a disk of so many bytes.
    fn blocks_of(&self, capacity_bytes: u64) -> Result<u64> {
        let bytes = match self.span_bytes {
            0 => capacity_bytes,
            span if span <= capacity_bytes => span,
            span => {
                return Err(Error::Unsuitable(format!(
                    "the disk has {capacity_bytes} bytes, not {span}"
                )));
            }
        };
        match bytes / u64::from(self.block_bytes) {
            0 => Err(Error::Unsuitable(format!(
                "the disk is too small: {bytes} bytes are no block of {}",
                self.block_bytes
            ))),
            blocks => Ok(blocks),
        }
    }

    fn suits(&self, agreed: &SessionParameters) -> Result<()> {
        let unsuitable = |why: String| Err(Error::Unsuitable(why));
        if self.pattern.writes() && agreed.read_only() {
            return unsuitable("the disk is read-only".to_owned());
        }
        if self.form == Form::Discards && !agreed.discard() {
            return unsuitable("the disk does not take discards".to_owned());
        }
        if !self.block_bytes.is_multiple_of(agreed.block_bytes) {
            return unsuitable(format!(
                "requests of {} bytes are not made of the disk's blocks of {}",
                self.block_bytes, agreed.block_bytes
            ));
        }
        if u64::from(self.queues) > agreed.num_queues {
            return unsuitable(format!(
                "the server has {} queues, not {}",
                agreed.num_queues, self.queues
            ));
        }
        Ok(())
    }
}

/// Runs the threads that drive `drivers`; they are there afterwards. `server` is the socket to it.
fn drive<Q: Queue + Send, R: Commands + Send, P: Plan + Send>(
    drivers: &mut [Driver<Q, R, P>],
    server: BorrowedFd<'_>,
    load: &Load,
    warm_up: Duration,
    time: Duration,
    observe: impl FnMut(Phase) -> Result<()>,
) -> Result<Vec<Tally>> {
    conduct(workers(drivers, server, load), warm_up, time, observe)
}

/// The threads that drive `drivers`.
fn workers<'d, Q: Queue + Send, R: Commands + Send, P: Plan + Send>(
    drivers: &'d mut [Driver<Q, R, P>],
    server: BorrowedFd<'d>,
    load: &'d Load,
) -> Vec<Worker<'d>> {
    let threads = usize::from(load.threads).clamp(1, drivers.len().max(1));
    let per_thread = drivers.len().div_ceil(threads);
    let chunks = drivers.chunks_mut(per_thread).enumerate();
    chunks
        .map(|(index, drivers)| {
            let cpu = load.cpus.get(index % load.cpus.len().max(1)).copied();
            let (waiting, detail, gives_way) = (load.waiting, load.detail, load.gives_way);
            let worker = move |phases: &Phases| {
                if let Some(cpu) = cpu {
                    pin(cpu)?;
                }
                if gives_way {
                    give_way()?;
                }
                let calls = drivers.iter().map(Driver::call_fd);
                let mut waiter = Waiter::new(calls, server)?;
                driver::run(drivers, &mut waiter, waiting, detail, phases)
            };
            Box::new(worker) as Worker<'_>
        })
        .collect()
}

/// Puts `load` on the server behind `stream`: for `warm_up`, which does not count, then for `time`.
/// `server` is its process, if that is not the one that the kernel names.
///
/// # Errors
/// [`Error::Unsuitable`] when the disk is not one for this load; [`Error::Requests`] when a request
/// fails or is not answered; [`Error::Gone`] when the server ends; [`Error::Protocol`];
/// [`Error::Interrupted`].
pub fn measure(
    stream: UnixStream,
    load: &Load,
    warm_up: Duration,
    time: Duration,
    server: Option<u32>,
) -> Result<Measured> {
    measure_disks(vec![stream], load, warm_up, time, server)
}

/// As [`measure`], on all disks of a server: the load has `queues` queues on each.
///
/// # Errors
/// As for [`measure`]; [`Error::Unsuitable`] without a disk.
pub fn measure_disks(
    streams: Vec<UnixStream>,
    load: &Load,
    warm_up: Duration,
    time: Duration,
    server: Option<u32>,
) -> Result<Measured> {
    let disks = streams
        .into_iter()
        .map(|stream| StartedServer::new(stream, load));
    let disks = disks.collect::<Result<Vec<_>>>()?;
    let Some(first) = disks.first() else {
        return Err(Error::Unsuitable("there is no disk to load".to_owned()));
    };
    if load.pattern.writes() {
        disks.iter().for_each(StartedServer::scatter);
    }
    let pid = server.or_else(|| first.session.server_pid());
    let mut drivers = Vec::new();
    for (number, disk) in (0..).zip(&disks) {
        let first = number * load.queues;
        let walk = |index| Walk::new(load.pattern, disk.blocks, first + index, load.queues);
        drivers.extend(disk.drivers(walk));
    }
    let mut usage = usage::UsageSampler::new(pid);
    // When the server ends, it closes all its sockets.
    let socket = first.session.socket();
    let threads = drive(&mut drivers, socket, load, warm_up, time, |phase| {
        usage.look(phase);
        Ok(())
    })?;
    drop(drivers);
    for disk in disks {
        disk.stop()?;
    }
    Ok(Measured {
        block_bytes: load.block_bytes,
        threads,
        server: usage.used(),
    })
}

/// Writes blocks that know where they belong, checks those that it reads meanwhile, and reads back
/// all at the end, each through another queue than the one that wrote it. All data on the disk, or
/// the part of it that the load goes over, is lost.
///
/// # Errors
/// [`Error::Mismatch`] for the first difference; others as for [`measure`].
pub fn verify(stream: UnixStream, load: &Load, time: Duration, seed: u64) -> Result<Verified> {
    let load = &Load {
        detail: Detail::default(),
        ..load.clone()
    };
    let attached = StartedServer::new(stream, load)?;
    let blocks = attached.blocks / u64::from(load.queues);
    if blocks < 2 * u64::from(load.depth) {
        return Err(Error::Unsuitable(format!(
            "{blocks} blocks per queue are too few for {} requests in flight",
            load.depth
        )));
    }
    let territory = |index: u16| {
        let first = blocks * u64::from(index);
        Territory::new(seed, first, blocks, load.block_bytes)
    };
    let plan = |index| {
        let walk = Walk::new(load.pattern, blocks, index, load.queues);
        WriteAndCheck::new(walk, territory(index), load.depth)
    };
    let mut drivers = attached.drivers(plan);
    let socket = attached.session.socket();
    drive(&mut drivers, socket, load, Duration::ZERO, time, |_| Ok(()))?;
    let mut verified = Verified::default();
    let mut territories = Vec::new();
    let mut flushing = Vec::new();
    for driver in drivers {
        let first = territories.is_empty();
        let flush = Flush::new(first && attached.session.agreed().flush());
        let (driver, plan) = driver.exchange(flush);
        verified.writes += plan.writes;
        verified.checked += plan.checked;
        territories.push(plan.territory);
        flushing.push(driver);
    }
    drive_to_end(&mut flushing, socket, load)?;
    // Each is read by a queue that did not write it.
    territories.rotate_left(1);
    let reading = flushing.into_iter().zip(territories);
    let mut reading: Vec<_> = reading
        .map(|(driver, territory)| driver.exchange(ReadBack::new(territory, load.depth)).0)
        .collect();
    drive_to_end(&mut reading, socket, load)?;
    for driver in reading {
        verified.read_back += driver.exchange(Flush::new(false)).1.checked;
    }
    attached.stop()?;
    Ok(verified)
}

/// For plans that come to an end by themselves.
fn drive_to_end<Q: Queue + Send, R: Commands + Send, P: Plan + Send>(
    drivers: &mut [Driver<Q, R, P>],
    server: BorrowedFd<'_>,
    load: &Load,
) -> Result<()> {
    const NEVER: Duration = Duration::from_secs(1 << 30);
    drive(drivers, server, load, Duration::ZERO, NEVER, |_| Ok(())).map(drop)
}
