//! The same load on the host itself: the file, no server, one thread.
//!
//! What a program on the host would get at best: requests prepared once, batches, completions read
//! in user space. Linux AIO and io_uring are driven through the daemon's own `engine` crate, so what
//! remains as the difference is what a server adds. `threads` is a pread(2) or pwrite(2) at a time in
//! each of as many threads as there are requests in flight.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use engine::{
    AioSettings, Completion, IoBackend, LinuxAio, Op, Request, Uring, UringSettings, uring::File,
};
use rustix::fs::{Mode, OFlags, SeekFrom, open, seek};

use super::driver::{ANSWER_LIMIT, Waiting};
use super::meter::{Meter, Tally};
use super::phases::{Phases, Worker, conduct};
use super::usage::UsageSampler;
use super::{Load, Measured, Walk};
use crate::aio::Aio;
use crate::client::{Kind, Layout, SharedMemory, Waiter, WakeReason};
use crate::cpus::pin;
use crate::error::{Error, Result};
use crate::random::Random;

/// Looks between two of the clock while nothing completes.
const LOOKS_PER_CHECK: u32 = 1 << 14;

/// Puts `load` on the file or device at `path`, past the page cache. Its queues become one: all
/// requests in flight are of one thread, which runs on the first of `cpus`.
///
/// # Errors
/// [`Error::Io`] when it cannot be opened; [`Error::Unsuitable`] when it is too small or the engine
/// cannot be had; [`Error::Requests`] when a request fails or is not answered.
pub fn measure(
    path: &Path,
    engine: Aio,
    load: &Load,
    cpus: &[usize],
    warm_up: Duration,
    time: Duration,
) -> Result<Measured> {
    let access = if load.pattern.writes() {
        OFlags::RDWR
    } else {
        OFlags::RDONLY
    };
    let flags = access | OFlags::DIRECT | OFlags::CLOEXEC;
    let file = open(path, flags, Mode::empty())
        .map_err(Error::io(format!("open {} for direct I/O", path.display())))?;
    let bytes = seek(&file, SeekFrom::End(0)).map_err(Error::io("ask for a file's size"))?;
    let blocks = load.blocks_of(bytes)?;
    let depth = usize::from(load.depth) * usize::from(load.queues);
    let buffers = Buffers::new(depth, load)?;
    let cpu = cpus.first().copied();
    let workers: Vec<Worker<'_>> = if engine == Aio::Threads {
        let slots = (0..u16::MAX).take(depth);
        let count = u16::try_from(depth).unwrap_or(u16::MAX);
        slots
            .map(|slot| {
                let walk = Walk::new(load.pattern, blocks, slot, count);
                let (file, buffers) = (&file, &buffers);
                let worker =
                    move |phases: &Phases| blocking(file, buffers, slot, walk, load, cpu, phases);
                Box::new(worker) as Worker<'_>
            })
            .collect()
    } else {
        let walk = Walk::new(load.pattern, blocks, 0, 1);
        let (file, buffers) = (&file, &buffers);
        let worker = move |phases: &Phases| {
            if let Some(cpu) = cpu {
                pin(cpu)?;
            }
            // Made by the thread that uses it, as io_uring wants it.
            let engine = Engine::new(engine, depth)?;
            submitting(file, buffers, engine, walk, load, phases)
        };
        vec![Box::new(worker)]
    };
    // The load runs in this process.
    let mut usage = UsageSampler::new(Some(std::process::id()));
    let threads = conduct(workers, warm_up, time, |phase| {
        usage.look(phase);
        Ok(())
    })?;
    Ok(Measured {
        block_bytes: load.block_bytes,
        threads,
        server: usage.used(),
    })
}

/// The data of each request in flight.
struct Buffers {
    memory: SharedMemory,
    stride: usize,
    block_bytes: usize,
}

impl Buffers {
    fn new(depth: usize, load: &Load) -> Result<Self> {
        let stride = Layout::whole_pages(load.block_bytes as usize);
        let memory = SharedMemory::new(stride * depth)?;
        let mut random = Random::new(1);
        for word in memory.u64s(0, stride / 8 * depth) {
            word.store(random.below(u64::MAX), Ordering::Relaxed);
        }
        Ok(Buffers {
            memory,
            stride,
            block_bytes: load.block_bytes as usize,
        })
    }

    fn iovec(&self, slot: usize) -> libc::iovec {
        libc::iovec {
            iov_base: self
                .memory
                .host_pointer(slot * self.stride, self.block_bytes)
                .cast(),
            iov_len: self.block_bytes,
        }
    }
}

/// Either of the asynchronous engines.
enum Engine {
    Aio(Box<LinuxAio>),
    Uring(Box<Uring>),
}

impl Engine {
    fn new(engine: Aio, depth: usize) -> Result<Self> {
        let max_events = u32::try_from(depth).unwrap_or(u32::MAX);
        let unsuitable = |error: String| Error::Unsuitable(error);
        if engine == Aio::IoUring {
            let settings = UringSettings {
                max_events,
                ..UringSettings::default()
            };
            let uring = Uring::new(settings).map_err(|error| unsuitable(error.to_string()))?;
            return Ok(Engine::Uring(Box::new(uring)));
        }
        let settings = AioSettings {
            max_events,
            ..AioSettings::default()
        };
        let aio = LinuxAio::new(settings).map_err(|error| unsuitable(error.to_string()))?;
        Ok(Engine::Aio(Box::new(aio)))
    }

    /// What is watched while it is waited for.
    fn waiter(&self) -> Result<Waiter> {
        match self {
            Engine::Aio(aio) => Waiter::on(aio.eventfd()),
            Engine::Uring(uring) => Waiter::on(uring.eventfd()),
        }
    }

    /// # Safety
    /// As for [`LinuxAio::start_or_queue`], and the file stays open until then.
    #[inline]
    unsafe fn push(&mut self, fd: RawFd, request: &Request) -> Result<()> {
        // SAFETY: our caller's promise is the one that both want.
        let pushed = unsafe {
            match self {
                Engine::Aio(aio) => aio.start_or_queue(fd, request),
                Engine::Uring(uring) => uring.start_or_queue(File::Descriptor(fd), request),
            }
        };
        pushed.map_err(|full| Error::Requests(full.to_string()))
    }

    #[inline]
    fn submit(&mut self) {
        match self {
            Engine::Aio(aio) => aio.submit(),
            Engine::Uring(uring) => uring.submit(),
        }
    }

    #[inline]
    fn has_completions(&self) -> bool {
        match self {
            Engine::Aio(aio) => aio.has_completions(),
            Engine::Uring(uring) => uring.has_completions(),
        }
    }

    #[inline]
    fn reap(&mut self, out: &mut Vec<Completion>) {
        match self {
            Engine::Aio(aio) => aio.reap(out),
            Engine::Uring(uring) => uring.reap(out),
        };
    }

    /// The thread is about to sleep; true: better not.
    fn prepare_to_block(&mut self) -> bool {
        match self {
            Engine::Aio(aio) => aio.has_completions(),
            Engine::Uring(uring) => uring.prepare_to_block(),
        }
    }
}

/// One thread with all requests.
fn submitting(
    file: &OwnedFd,
    buffers: &Buffers,
    engine: Engine,
    mut walk: Walk,
    load: &Load,
    phases: &Phases,
) -> Result<Tally> {
    let depth = usize::from(load.depth) * usize::from(load.queues);
    let mut meter = Meter::new(phases, load.detail.latency);
    let mut iovecs: Vec<libc::iovec> = (0..depth).map(|slot| buffers.iovec(slot)).collect();
    let iovecs = iovecs.as_mut_ptr();
    // Declared after what its requests point to, so that it ends before that.
    let mut engine = engine;
    let mut waiter = engine.waiter()?;
    let mut sent = vec![(Kind::Read, 0); depth];
    let mut completions = Vec::with_capacity(depth);
    let mut in_flight = 0usize;
    let fd = file.as_raw_fd();
    let mut send = |engine: &mut Engine, slot: usize, now_ns: u64, sent: &mut [(Kind, u64)]| {
        let (block, kind) = walk.step();
        sent[slot] = (kind, now_ns);
        let request = Request {
            op: match kind {
                Kind::Write => Op::Write,
                _ => Op::Read,
            },
            fua: false,
            offset: block * u64::from(load.block_bytes),
            iov: iovecs.wrapping_add(slot),
            iov_count: 1,
            len: u64::from(load.block_bytes),
            token: slot as u64,
        };
        // SAFETY: the array and the buffers outlive the engine, whose end waits for its requests; each slot has one
        // request at a time, so its entry has one user; the caller's file stays open.
        unsafe { engine.push(fd, &request) }
    };
    let now_ns = meter.begin();
    for slot in 0..depth {
        send(&mut engine, slot, now_ns, &mut sent)?;
        in_flight += 1;
    }
    engine.submit();
    loop {
        if engine.has_completions() {
            let now_ns = meter.found();
            engine.reap(&mut completions);
            for completion in completions.drain(..) {
                let slot = usize::try_from(completion.token).unwrap_or(usize::MAX);
                let (kind, sent_ns) = sent[slot];
                if let Err(errno) = completion.result {
                    return Err(Error::Requests(format!("a request failed: {errno}")));
                }
                meter.record(kind, sent_ns, now_ns);
                in_flight -= 1;
                if meter.again() {
                    send(&mut engine, slot, now_ns, &mut sent)?;
                    in_flight += 1;
                }
            }
            engine.submit();
            meter.handled();
        } else if in_flight == 0 {
            meter.idle();
            return Ok(meter.finish());
        } else {
            wait(&mut engine, &mut waiter, load.waiting, &mut meter)?;
        }
    }
}

fn wait(
    engine: &mut Engine,
    waiter: &mut Waiter,
    waiting: Waiting,
    meter: &mut Meter<'_>,
) -> Result<()> {
    let lost = || Error::Requests(format!("the host has not answered for {ANSWER_LIMIT:?}"));
    if waiting == Waiting::Blocking {
        if !engine.prepare_to_block() && waiter.wait(ANSWER_LIMIT)? == WakeReason::TimedOut {
            return Err(lost());
        }
        return Ok(());
    }
    let mut looks = 0u32;
    let mut since = None;
    while !engine.has_completions() {
        looks = looks.wrapping_add(1);
        std::hint::spin_loop();
        if looks.is_multiple_of(LOOKS_PER_CHECK) {
            meter.idle();
            let since = since.get_or_insert_with(std::time::Instant::now);
            if since.elapsed() > ANSWER_LIMIT {
                return Err(lost());
            }
        }
    }
    Ok(())
}

/// One of many threads, with one request at a time.
fn blocking(
    file: &OwnedFd,
    buffers: &Buffers,
    slot: u16,
    mut walk: Walk,
    load: &Load,
    cpu: Option<usize>,
    phases: &Phases,
) -> Result<Tally> {
    if let Some(cpu) = cpu {
        pin(cpu)?;
    }
    let buffer = buffers.iovec(usize::from(slot));
    let fd = file.as_raw_fd();
    let mut meter = Meter::new(phases, load.detail.latency);
    let mut sent_ns = meter.begin();
    while meter.again() {
        let (block, kind) = walk.step();
        // A file is shorter than 2^63 bytes.
        let offset = (block * u64::from(load.block_bytes)).cast_signed();
        // SAFETY: the buffer is memory of `buffers`, which no other thread uses: one slot each.
        let moved = unsafe {
            match kind {
                Kind::Write => libc::pwrite(fd, buffer.iov_base, buffer.iov_len, offset),
                _ => libc::pread(fd, buffer.iov_base, buffer.iov_len, offset),
            }
        };
        if usize::try_from(moved) != Ok(buffer.iov_len) {
            let error = std::io::Error::last_os_error();
            return Err(Error::Requests(format!("a request failed: {error}")));
        }
        let now_ns = meter.found();
        meter.record(kind, sent_ns, now_ns);
        meter.handled();
        sent_ns = now_ns;
    }
    Ok(meter.finish())
}
