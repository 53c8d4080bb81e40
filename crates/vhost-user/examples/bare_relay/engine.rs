//! Linux AIO or io_uring, with the daemon's settings.

use std::error::Error;
use std::os::fd::{AsRawFd, BorrowedFd};

use engine::{
    AioSettings, Completion, Full, IoBackend, LinuxAio, Op, Request, Uring, UringSettings, uring,
};
use libc::iovec;

pub enum Engine {
    Aio(Box<LinuxAio>),
    Uring(Box<Uring>),
}

impl Engine {
    /// `native` or `io_uring`.
    pub fn new(name: &str) -> Result<Self, Box<dyn Error>> {
        Ok(match name {
            "native" => Engine::Aio(Box::new(LinuxAio::new(AioSettings::default())?)),
            "io_uring" => Engine::Uring(Box::new(Uring::new(UringSettings::default())?)),
            other => return Err(format!("{other}: native or io_uring is expected").into()),
        })
    }

    /// The eventfd that signals completions while the thread sleeps.
    pub fn eventfd(&self) -> BorrowedFd<'_> {
        match self {
            Engine::Aio(aio) => aio.eventfd(),
            Engine::Uring(uring) => uring.eventfd(),
        }
    }

    /// Reads into `buffer` from `offset` on; the completion has `token`.
    ///
    /// # Safety
    /// As for [`LinuxAio::start_or_queue`], and the file stays open until the completion.
    #[inline]
    pub unsafe fn read(
        &mut self,
        file: BorrowedFd<'_>,
        offset: u64,
        buffer: *mut iovec,
        len: u64,
        token: u64,
    ) -> Result<(), Full> {
        let request = Request {
            op: Op::Read,
            fua: false,
            offset,
            iov: buffer,
            iov_count: 1,
            len,
            token,
        };
        let fd = file.as_raw_fd();
        // SAFETY: the caller meets the requirements of both.
        unsafe {
            match self {
                Engine::Aio(aio) => aio.start_or_queue(fd, &request),
                Engine::Uring(uring) => uring.start_or_queue(uring::File::Descriptor(fd), &request),
            }
        }
    }

    #[inline]
    pub fn submit(&mut self) {
        match self {
            Engine::Aio(aio) => aio.submit(),
            Engine::Uring(uring) => uring.submit(),
        }
    }

    #[inline]
    pub fn has_completions(&self) -> bool {
        match self {
            Engine::Aio(aio) => aio.has_completions(),
            Engine::Uring(uring) => uring.has_completions(),
        }
    }

    #[inline]
    pub fn reap(&mut self, out: &mut Vec<Completion>) {
        match self {
            Engine::Aio(aio) => aio.reap(out),
            Engine::Uring(uring) => uring.reap(out),
        };
    }

    /// Prepares for the thread to sleep; true if there is a completion instead.
    pub fn prepare_to_block_and_recheck(&mut self) -> bool {
        match self {
            Engine::Aio(aio) => aio.has_completions(),
            Engine::Uring(uring) => uring.prepare_to_block_and_recheck(),
        }
    }
}
