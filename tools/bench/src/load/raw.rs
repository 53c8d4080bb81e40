//! The same load on the host itself: the file, no server, one thread.
//!
//! What a program on the host would get at best: requests prepared once, batches, completions read
//! in user space. Linux AIO and io_uring are driven through the daemon's own `engine` crate, so what
//! remains as the difference is what a server adds.

mod submitting;

use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::Ordering;

use engine::uring::File;
use engine::{AioSettings, LinuxAio, Uring, UringSettings};
use rustix::fs::{Mode, OFlags, SeekFrom, open, seek};

use self::submitting::submitting;
use super::phases::{Phases, Span, Worker, conduct};
use super::usage::UsageSampler;
use super::{Load, Measured, Times, Walk};
use crate::aio::Aio;
use crate::client::{Layout, SharedMemory, Waiter};
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
    times: Times,
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
    let walk = Walk::new(load.pattern, load.blocks_of(bytes)?, 0, 1);
    let depth = usize::from(load.depth) * usize::from(load.queues);
    let buffers = Buffers::new(depth, load)?;
    let cpu = cpus.first().copied();
    let worker = |phases: &Phases| {
        if let Some(cpu) = cpu {
            pin(cpu)?;
        }
        let fd = file.as_raw_fd();
        let max_events = u32::try_from(depth).unwrap_or(u32::MAX);
        // Made by the thread that uses it, as io_uring wants it.
        if engine == Aio::IoUring {
            let settings = UringSettings {
                max_events,
                ..UringSettings::default()
            };
            let uring = Uring::new(settings).map_err(|error| cannot_be_had(&error))?;
            let waiter = Waiter::on(uring.eventfd())?;
            submitting(
                buffers,
                (uring, File::Descriptor(fd)),
                waiter,
                walk,
                load,
                phases,
            )
        } else {
            let settings = AioSettings {
                max_events,
                ..AioSettings::default()
            };
            let aio = LinuxAio::new(settings).map_err(|error| cannot_be_had(&error))?;
            let waiter = Waiter::on(aio.eventfd())?;
            submitting(buffers, (aio, fd), waiter, walk, load, phases)
        }
    };
    // The load runs in this process.
    let mut usage = UsageSampler::new(Some(std::process::id()));
    let workers = vec![Box::new(worker) as Worker<'_>];
    let threads = conduct(workers, times.warm_up, Span::Time(times.time), |phase| {
        usage.look(phase);
    })?;
    Ok(Measured {
        block_bytes: load.block_bytes,
        threads,
        server: usage.used(),
    })
}

fn cannot_be_had(error: &dyn std::error::Error) -> Error {
    Error::Unsuitable(error.to_string())
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
