//! Signals through Linux AIO, which never block.
//!
//! A request may name an eventfd that the kernel signals when the request completes (`IOCB_FLAG_RESFD`). The kernel adds to
//! the counter whatever the flags of the eventfd are, and leaves a full one as it is. The request here is a poll for an
//! eventfd of our own that is always readable, so it completes within io_submit(2). Such a signal costs about three times as
//! much as a write.

use std::cell::OnceCell;
use std::os::fd::{AsRawFd, OwnedFd};

use engine::aio::ContextId;
use engine::aio::abi::{IOCB_FLAG_RESFD, IoEvent, Iocb};
use engine::{AioKernel, Kernel};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

/// `IOCB_CMD_POLL`, Linux 4.19.
const IOCB_CMD_POLL: u16 = 5;

/// Readable: the events of an `IOCB_CMD_POLL` are those of poll(2).
const POLLIN: u64 = libc::POLLIN as u64;

thread_local! {
    /// `None`: it could not be created, and is not tried again.
    static CONTEXT: OnceCell<Option<AioContext>> = const { OnceCell::new() };
}

/// Signals an eventfd. Without Linux AIO it does not: the front-end, which made writes block, misses its signals.
#[cold]
pub fn signal(fd: &OwnedFd) {
    CONTEXT.with(|context| {
        let context = context.get_or_init(|| {
            AioContext::new()
                .inspect_err(|error| {
                    tracing::warn!(
                        %error,
                        advice = "fs.aio-max-nr limits the number of AIO contexts",
                        "no Linux AIO on this thread: a front-end whose eventfds block is not signalled"
                    );
                })
                .ok()
        });
        if let Some(context) = context {
            context.signal(fd);
        }
    });
}

/// A context of Linux AIO, for one request at a time.
struct AioContext {
    id: ContextId,
    /// Its counter is not zero, so it is readable.
    readable: OwnedFd,
}

impl AioContext {
    fn new() -> Result<Self, Errno> {
        Ok(AioContext {
            readable: eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            id: Kernel.setup(1)?,
        })
    }

    fn signal(&self, fd: &OwnedFd) {
        let mut iocb = Iocb {
            opcode: IOCB_CMD_POLL,
            fildes: self.readable.as_raw_fd().cast_unsigned(),
            buf: POLLIN,
            flags: IOCB_FLAG_RESFD,
            resfd: fd.as_raw_fd().cast_unsigned(),
            ..Iocb::default()
        };
        // An error means that the kernel has no memory: the signal is lost.
        // SAFETY: the control block is valid for the call, and names no memory.
        let _ = unsafe { Kernel.submit(self.id, &[&raw mut iocb]) };
        // Makes room for the next request; the event says nothing new.
        let _ = Kernel.getevents(self.id, &mut [IoEvent::default()]);
    }
}

impl Drop for AioContext {
    fn drop(&mut self) {
        Kernel.destroy(self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_signal_adds_one_and_a_full_counter_stays() {
        let fd = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        for _ in 0..1000 {
            signal(&fd);
        }
        assert_eq!(crate::take_count(&fd), 1000);
        rustix::io::write(&fd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        for _ in 0..3 {
            signal(&fd);
        }
        assert_eq!(crate::take_count(&fd), u64::MAX);
    }
}
