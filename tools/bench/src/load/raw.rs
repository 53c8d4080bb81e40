//! The same load on the host itself: the file, no server, one thread with all requests in flight.
//!
//! What a program on the host would get at best: requests prepared once, batches, completions read
//! in user space. Linux AIO and io_uring are driven through the daemon's own `engine` crate, so what
//! remains as the difference is what a server adds.

use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Instant;

use engine::uring::File;
use engine::{AioSettings, IoBackend, LinuxAio, Op, Request, Uring, UringSettings};
use rustix::fs::{Mode, OFlags, SeekFrom, open, seek};

use super::conductor::{Worker, conduct};
use super::driver::{ANSWER_LIMIT, LOOKS_PER_CHECK, lost};
use super::meter::{Meter, Tally};
use super::phase::Phases;
use super::started_server::fill_randomly;
use super::{Load, Measured, Times, Waiting, Walk};
use crate::aio::Aio;
use crate::client::{Kind, Layout, SharedMemory, Waiter, WakeReason};
use crate::cpus::pin;
use crate::error::{Error, Result};

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
    times: Times,
) -> Result<Measured> {
    let access = match load.pattern.writes() {
        true => OFlags::RDWR,
        false => OFlags::RDONLY,
    };
    let flags = access | OFlags::DIRECT | OFlags::CLOEXEC;
    let file = open(path, flags, Mode::empty())
        .map_err(Error::io(format!("open {} for direct I/O", path.display())))?;
    let bytes = seek(&file, SeekFrom::End(0)).map_err(Error::io("ask for a file's size"))?;
    let walk = Walk::new(load.pattern, load.blocks_of(bytes)?, 0, 1);
    let depth = usize::from(load.depth) * usize::from(load.queues);
    let stride = Layout::whole_pages(load.block_bytes as usize);
    let buffers = SharedMemory::new(stride * depth)?;
    fill_randomly(buffers.u64s(0, stride / 8 * depth));
    let iovecs = (0..depth).map(|slot| libc::iovec {
        iov_base: buffers.host_pointer(slot * stride, stride).cast(),
        iov_len: load.block_bytes as usize,
    });
    let iovecs = SendIovecs(iovecs.collect());
    let worker = |phases: &Phases| {
        cpus.first().map_or(Ok(()), |&cpu| pin(&[cpu]))?;
        let fd = file.as_raw_fd();
        let max_events = u32::try_from(depth).unwrap_or(u32::MAX);
        let mut submission = Submission {
            iovecs,
            _buffers: buffers,
            walk,
            load,
        };
        // Made by the thread that uses it, as io_uring wants it.
        match engine {
            Aio::IoUring => {
                let settings = UringSettings {
                    max_events,
                    ..UringSettings::default()
                };
                let uring = Uring::new(settings).map_err(unsuitable)?;
                let waiter = Waiter::new([uring.eventfd()], None)?;
                submission.run((uring, File::Descriptor(fd)), waiter, phases)
            }
            Aio::Native | Aio::Threads => {
                let settings = AioSettings {
                    max_events,
                    ..AioSettings::default()
                };
                let aio = LinuxAio::new(settings).map_err(unsuitable)?;
                let waiter = Waiter::new([aio.eventfd()], None)?;
                submission.run((aio, fd), waiter, phases)
            }
        }
    };
    // The load runs in this process.
    let workers = vec![Box::new(worker) as Worker<'_>];
    conduct(workers, times, Some(std::process::id()), load.block_bytes)
}

fn unsuitable(error: impl std::error::Error) -> Error {
    Error::Unsuitable(error.to_string())
}

/// A segment for each slot.
struct SendIovecs(Vec<libc::iovec>);

// SAFETY: they name memory that is shared between threads.
unsafe impl Send for SendIovecs {}

/// What requests point to. The engine, which waits for what is in flight when it is dropped, is dropped before.
struct Submission<'l> {
    iovecs: SendIovecs,
    _buffers: SharedMemory,
    walk: Walk,
    load: &'l Load,
}

impl Submission<'_> {
    fn run<B: IoBackend<File: Copy>>(
        &mut self,
        (mut engine, file): (B, B::File),
        mut waiter: Waiter,
        phases: &Phases,
    ) -> Result<Tally> {
        let slots = self.iovecs.0.len();
        let mut meter = Meter::new(phases, None);
        let mut sent = vec![(Kind::Read, meter.begin()); slots];
        let mut completions = Vec::with_capacity(slots);
        let mut in_flight = slots;
        for (slot, (kind, _)) in sent.iter_mut().enumerate() {
            *kind = self.send(&mut engine, file, slot)?;
        }
        engine.submit();
        loop {
            if engine.has_completions() {
                let now_ns = meter.found();
                engine.reap(&mut completions);
                for completion in completions.drain(..) {
                    let slot = usize::try_from(completion.token).unwrap_or(usize::MAX);
                    let (kind, sent_ns) = sent[slot];
                    completion
                        .result
                        .map_err(|errno| Error::Requests(format!("a request failed: {errno}")))?;
                    meter.record(kind, sent_ns, now_ns);
                    in_flight -= 1;
                    if meter.again() {
                        sent[slot] = (self.send(&mut engine, file, slot)?, now_ns);
                        in_flight += 1;
                    }
                }
                engine.submit();
                meter.handled();
            } else if in_flight == 0 {
                meter.idle();
                return Ok(meter.finish());
            } else if self.load.waiting == Waiting::Polling {
                poll(&engine, &mut meter)?;
            } else if !engine.prepare_to_block_and_recheck()
                && waiter.wait(ANSWER_LIMIT)? == WakeReason::TimedOut
            {
                return Err(lost());
            }
        }
    }

    fn send<B: IoBackend<File: Copy>>(
        &mut self,
        engine: &mut B,
        file: B::File,
        slot: usize,
    ) -> Result<Kind> {
        let (block, kind) = self.walk.step();
        let len = u64::from(self.load.block_bytes);
        let request = Request {
            op: match kind {
                Kind::Write => Op::Write,
                _ => Op::Read,
            },
            fua: false,
            offset: block * len,
            iov: &raw mut self.iovecs.0[slot],
            iov_count: 1,
            len,
            token: slot as u64,
        };
        // SAFETY: the array and the buffers outlive the engine; each slot has one request at a time, so its entry has one user; the
        // caller's file stays open.
        let pushed = unsafe { engine.start_or_queue(file, &request) };
        let pushed = pushed.map_err(|full| Error::Requests(full.to_string()));
        pushed.map(|_| kind)
    }
}

/// Looks until something has completed.
fn poll(engine: &impl IoBackend, meter: &mut Meter<'_>) -> Result<()> {
    let (mut looks, since) = (0_u32, Instant::now());
    while !engine.has_completions() {
        looks = looks.wrapping_add(1);
        std::hint::spin_loop();
        if looks.is_multiple_of(LOOKS_PER_CHECK) {
            meter.idle();
            if since.elapsed() > ANSWER_LIMIT {
                return Err(lost());
            }
        }
    }
    Ok(())
}
