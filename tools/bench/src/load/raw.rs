//! The same load on the host itself: the file, no server, one thread.
//!
//! What a program on the host would get at best: requests prepared once, batches, completions read
//! in user space. Linux AIO and io_uring are driven through the daemon's own `engine` crate, so what
//! remains as the difference is what a server adds. `threads` is a pread(2) or pwrite(2) at a time in
//! each of as many threads as there are requests in flight.

mod engine;
mod image_queues;
pub mod images;
mod submitting;

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, SeekFrom, open, seek};

use self::engine::Engine;
use self::submitting::submitting;
use super::meter::{Meter, Tally};
use super::phases::{Phases, Worker, conduct};
use super::usage::UsageSampler;
use super::{Load, Measured, Walk};
use crate::aio::Aio;
use crate::client::{Kind, Layout, SharedMemory};
use crate::cpus::pin;
use crate::error::{Error, Result};
use crate::random::Random;

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
    let buffers = Arc::new(Buffers::new(depth, load)?);
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
        let file = &file;
        let worker = move |phases: &Phases| {
            if let Some(cpu) = cpu {
                pin(cpu)?;
            }
            // Made by the thread that uses it, as io_uring wants it.
            let engine = Engine::on_file(engine, file.as_raw_fd(), depth)?;
            submitting(buffers, engine, vec![walk], load, load.waiting, phases)
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
    slots: usize,
    stride: usize,
    block_bytes: usize,
}

impl Buffers {
    fn new(slots: usize, load: &Load) -> Result<Self> {
        let stride = Layout::whole_pages(load.block_bytes as usize);
        let memory = SharedMemory::new(stride * slots)?;
        let mut random = Random::new(1);
        for word in memory.u64s(0, stride / 8 * slots) {
            word.store(random.below(u64::MAX), Ordering::Relaxed);
        }
        Ok(Buffers {
            memory,
            slots,
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
