//! The asynchronous engines of a load without a server.

use std::os::fd::RawFd;

use engine::{
    AioSettings, Completion, IoBackend, LinuxAio, Request, Uring, UringSettings, uring::File,
};

use super::image_queues::ImageQueues;
use crate::aio::Aio;
use crate::client::Waiter;
use crate::error::{Error, Result};

/// One of the asynchronous engines, with what it reads and writes.
pub(super) enum Engine {
    Aio(Box<LinuxAio>, RawFd),
    Uring(Box<Uring>, RawFd),
    Images(ImageQueues),
}

impl Engine {
    /// For a file.
    pub fn on_file(engine: Aio, fd: RawFd, depth: usize) -> Result<Self> {
        let max_events = u32::try_from(depth).unwrap_or(u32::MAX);
        let unsuitable = |error: String| Error::Unsuitable(error);
        if engine == Aio::IoUring {
            let settings = UringSettings {
                max_events,
                ..UringSettings::default()
            };
            let uring = Uring::new(settings).map_err(|error| unsuitable(error.to_string()))?;
            return Ok(Engine::Uring(Box::new(uring), fd));
        }
        let settings = AioSettings {
            max_events,
            ..AioSettings::default()
        };
        let aio = LinuxAio::new(settings).map_err(|error| unsuitable(error.to_string()))?;
        Ok(Engine::Aio(Box::new(aio), fd))
    }

    /// What is watched while it is waited for.
    pub fn waiter(&self) -> Result<Waiter> {
        match self {
            Engine::Aio(aio, _) => Waiter::on(aio.eventfd()),
            Engine::Uring(uring, _) => Waiter::on(uring.eventfd()),
            Engine::Images(images) => Waiter::on(images.eventfd()),
        }
    }

    /// # Safety
    /// As for [`LinuxAio::start_or_queue`], and the file stays open until then. Before what the request points to is
    /// freed, [`drain`](Self::drain) has returned true and then the engine was dropped.
    #[inline]
    pub unsafe fn push(&mut self, request: &Request) -> Result<()> {
        // SAFETY: our caller's promise is the one that all of them want.
        let pushed = unsafe {
            match self {
                Engine::Aio(aio, fd) => aio.start_or_queue(*fd, request),
                Engine::Uring(uring, fd) => uring.start_or_queue(File::Descriptor(*fd), request),
                Engine::Images(images) => images.start(request),
            }
        };
        pushed.map_err(|full| Error::Requests(full.to_string()))
    }

    #[inline]
    pub fn submit(&mut self) {
        match self {
            Engine::Aio(aio, _) => aio.submit(),
            Engine::Uring(uring, _) => uring.submit(),
            Engine::Images(_) => {}
        }
    }

    #[inline]
    pub fn has_completions(&self) -> bool {
        match self {
            Engine::Aio(aio, _) => aio.has_completions(),
            Engine::Uring(uring, _) => uring.has_completions(),
            Engine::Images(images) => images.has_completions(),
        }
    }

    #[inline]
    pub fn reap(&mut self, out: &mut Vec<Completion>) {
        match self {
            Engine::Aio(aio, _) => aio.reap(out),
            Engine::Uring(uring, _) => uring.reap(out),
            Engine::Images(images) => images.reap(out),
        };
    }

    /// The thread is about to sleep; true: better not.
    pub fn prepare_to_block_and_recheck(&mut self) -> bool {
        match self {
            Engine::Uring(uring, _) => uring.prepare_to_block_and_recheck(),
            Engine::Aio(..) | Engine::Images(_) => self.has_completions(),
        }
    }

    /// Waits until the engine can be dropped together with what its requests point to. False: they are used even then,
    /// since the cluster does not answer; the host's own engines wait when they are dropped.
    pub fn drain(&mut self) -> bool {
        match self {
            Engine::Aio(..) | Engine::Uring(..) => true,
            Engine::Images(images) => images.drain(),
        }
    }
}
