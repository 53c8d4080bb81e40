//! The load generator: a number of requests that is always in flight, over a vhost-user-blk socket.
//!
//! [`Load`] says what to do, [`measure`] does it once on a connected socket and says what came of
//! it. How it is done: `plan` (what a request is to be), `driver` (the loop of a client thread),
//! `meter` (what it counts), `phases` (warm-up, the part that counts, the end).

mod driver;
mod latencies;
mod measured;
pub(crate) mod meter;
mod pattern;
pub(crate) mod phases;
mod plan;
pub mod raw;
mod started_server;
mod usage;
mod verify;

use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

pub use driver::{Driver, Waiting};
pub use latencies::latencies;
pub use measured::{Measured, Verified};
pub use meter::{Mark, Tally};
pub use pattern::{Order, Pattern, Walk};
pub use phases::{Phase, Span};
use phases::{Phases, Worker, conduct};
pub use plan::Plan;
use started_server::StartedServer;
pub use started_server::{scatter, touched_memory};
use usage::UsageSampler;
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
    /// How long requests take that are in flight at the end, as well: with a server that answers none of them in the part that
    /// counts, there would be no latency of those.
    pub in_flight: bool,
}

impl Load {
    /// Requests of 4 KiB at random places, of which so many percent are reads, through one queue.
    #[must_use]
    pub fn random(read_percent: u8, depth: u16, waiting: Waiting) -> Self {
        Load {
            pattern: Pattern {
                order: Order::Random,
                read_percent,
            },
            block_bytes: 4096,
            depth,
            queues: 1,
            waiting,
            threads: 1,
            cpus: Vec::new(),
            gives_way: false,
            detail: Detail::default(),
            span_bytes: 0,
            recorded: false,
            placement: Placement::Packed,
            form: Form::Plain,
        }
    }

    /// The blocks that it goes over, of a disk of so many bytes.
    ///
    /// # Errors
    /// [`Error::Unsuitable`] when it is larger than the disk, or a block is.
    pub fn blocks_of(&self, capacity_bytes: u64) -> Result<u64> {
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
        .map(|driver| driver.requests().block_bytes());
    let mut usage = UsageSampler::new(pid);
    let workers = workers(drivers, server, load);
    let threads = conduct(workers, times.warm_up, Span::Time(times.time), |phase| {
        usage.look(phase);
    })?;
    Ok(Measured {
        block_bytes: block_bytes.unwrap_or(load.block_bytes),
        threads,
        server: usage.used(),
    })
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
            let worker = move |phases: &Phases| {
                if let Some(cpu) = cpu {
                    pin(cpu)?;
                }
                if load.gives_way {
                    give_way()?;
                }
                let calls = drivers.iter().map(Driver::call_fd);
                let mut waiter = Waiter::new(calls, server)?;
                driver::run(drivers, &mut waiter, load.waiting, load.detail, phases)
            };
            Box::new(worker) as Worker<'_>
        })
        .collect()
}

/// Puts `load` on the server behind `stream`. `pid` is its process, if that is not the one that the kernel names.
///
/// # Errors
/// [`Error::Unsuitable`] when the disk is not one for this load; [`Error::Requests`] when a request
/// fails or is not answered; [`Error::Gone`] when the server ends; [`Error::Protocol`];
/// [`Error::Interrupted`].
pub fn measure(
    stream: UnixStream,
    load: &Load,
    times: Times,
    pid: Option<u32>,
) -> Result<Measured> {
    measure_disks(vec![stream], load, times, pid)
}

/// As [`measure`], on several disks of a server: the load has `queues` queues on each.
///
/// # Errors
/// As for [`measure`].
pub fn measure_disks(
    streams: Vec<UnixStream>,
    load: &Load,
    times: Times,
    pid: Option<u32>,
) -> Result<Measured> {
    let loads = vec![(streams, load)];
    let measured = measure_together(loads, times.warm_up, Span::Time(times.time), pid)?;
    let first = measured.into_iter().next();
    first.ok_or_else(|| Error::Requests("a load has no figures".to_owned()))
}

/// As [`measure`], with several loads at the same time, each on disks and threads of its own. The usage of the server is that of
/// all of them.
///
/// # Errors
/// As for [`measure`]; that of the span.
pub fn measure_together(
    loads: Vec<(Vec<UnixStream>, &Load)>,
    warm_up: Duration,
    span: Span<'_>,
    pid: Option<u32>,
) -> Result<Vec<Measured>> {
    let mut started = Vec::new();
    for (streams, load) in loads {
        let disks = streams
            .into_iter()
            .map(|stream| StartedServer::new(stream, load));
        started.push((disks.collect::<Result<Vec<_>>>()?, load));
    }
    let first = started.first().and_then(|(disks, _)| disks.first());
    let Some(first) = first else {
        return Err(Error::Unsuitable("there is no disk to load".to_owned()));
    };
    let pid = pid.or_else(|| first.session.server_pid());
    let mut drivers = Vec::new();
    for (disks, load) in &started {
        let mut of_load = Vec::new();
        for (number, disk) in (0..).zip(disks) {
            if load.pattern.writes() {
                disk.scatter();
            }
            let first = number * load.queues;
            let walk = |index| Walk::new(load.pattern, disk.blocks, first + index, load.queues);
            of_load.extend(disk.drivers(walk));
        }
        drivers.push(of_load);
    }
    let (mut all, mut threads_of) = (Vec::new(), Vec::new());
    for (drivers, (disks, load)) in drivers.iter_mut().zip(&started) {
        // When a server ends, it closes all its sockets.
        let socket = disks.first().unwrap_or(first).session.socket();
        let workers = workers(drivers, socket, load);
        threads_of.push(workers.len());
        all.extend(workers);
    }
    let mut usage = UsageSampler::new(pid);
    let tallies = conduct(all, warm_up, span, |phase| usage.look(phase))?;
    let (mut tallies, used) = (tallies.into_iter(), usage.used());
    drop(drivers);
    let mut measured = Vec::new();
    for ((disks, load), threads) in started.into_iter().zip(threads_of) {
        disks.into_iter().try_for_each(StartedServer::stop)?;
        measured.push(Measured {
            block_bytes: load.block_bytes,
            threads: tallies.by_ref().take(threads).collect(),
            server: used.clone(),
        });
    }
    Ok(measured)
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
    drive(&mut drivers, socket, load, without_warm_up(time), None)?;
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
    drive(drivers, server, load, without_warm_up(NEVER), None).map(drop)
}

fn without_warm_up(time: Duration) -> Times {
    Times {
        warm_up: Duration::ZERO,
        time,
        repetitions: 1,
    }
}
