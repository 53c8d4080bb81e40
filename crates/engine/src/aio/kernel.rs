//! The Linux AIO system calls, and the trait that lets tests put another kernel under the engine.
//!
//! libaio is not used: there are only five system calls (and those that read and write), and its reader of the completion
//! ring would have to be bypassed anyway. Nothing here decides anything; errors are returned as the kernel reports them.

use std::ffi::c_long;
use std::fmt;
use std::ptr::{self, NonNull};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use std::os::fd::AsRawFd;

use super::abi::{
    IOCB_CMD_FDSYNC, IOCB_CMD_PREAD, IOCB_CMD_PREADV, IOCB_CMD_PWRITE, IOCB_CMD_PWRITEV, IoEvent,
    Iocb, RingHeader,
};

/// The kernel's name for an AIO context (`aio_context_t`).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ContextId(pub usize);

impl fmt::Debug for ContextId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ContextId({:#x})", self.0)
    }
}

/// A kernel under the engine.
///
/// # Safety
/// The engine reads memory by what an implementation returns. [`ring`](Self::ring) is `None` or
/// points to at least a [`RingHeader`], readable and writable until `destroy`; when its magic,
/// features and length are those of the kernel, then `nr` events follow it, and every event
/// between `head` and `tail` is written before `tail` is stored with release order. Once `destroy`
/// returned, no buffer of any accepted request is touched.
pub unsafe trait AioKernel {
    /// io_setup(2).
    ///
    /// # Errors
    /// `EAGAIN` over `fs.aio-max-nr`, `ENOSYS` without AIO, and others of the manual page.
    fn setup(&mut self, max_events: u32) -> Result<ContextId, Errno>;

    /// io_submit(2); returns how many of `iocbs`, from the first on, were accepted.
    ///
    /// # Errors
    /// Those of the manual page; they concern the first request, and none was accepted.
    ///
    /// # Safety
    /// The control blocks are valid for the call, and what they name is valid until completion.
    unsafe fn submit(&mut self, context: ContextId, iocbs: &[*mut Iocb]) -> Result<usize, Errno>;

    /// Carries out a control block without flags by pread(2), pwrite(2), preadv(2) or pwritev(2). Returns the bytes
    /// transferred, or a negative error number, as in [`IoEvent::res`].
    ///
    /// # Safety
    /// What the control block names is valid for the call.
    unsafe fn pread_or_pwrite(&mut self, iocb: &Iocb) -> i64;

    /// A monotonic clock, in nanoseconds.
    fn now_ns(&self) -> u64;

    /// io_getevents(2) without waiting; returns how many of `events` were filled.
    ///
    /// # Errors
    /// Those of the manual page.
    fn getevents(&mut self, context: ContextId, events: &mut [IoEvent]) -> Result<usize, Errno>;

    /// io_destroy(2): returns after the last request in flight has ended.
    fn destroy(&mut self, context: ContextId);

    /// The completion ring of `context`, if it is mapped in this process.
    fn ring(&self, context: ContextId) -> Option<NonNull<RingHeader>>;

    /// Whether `IOCB_CMD_FDSYNC` is supported; called once, before the first request.
    fn supports_fdsync(&mut self, context: ContextId) -> bool;
}

/// The kernel that this process runs on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Kernel;

// SAFETY: the context id is the address at which io_setup(2) mapped the ring (`fs/aio.c`,
// `ioctx_alloc`), it stays mapped until io_destroy(2), and io_destroy waits for all requests.
unsafe impl AioKernel for Kernel {
    fn setup(&mut self, max_events: u32) -> Result<ContextId, Errno> {
        let mut context: libc::c_ulong = 0;
        // SAFETY: the kernel writes one unsigned long to `context`, which must be zero before.
        let ret = unsafe {
            libc::syscall(
                libc::SYS_io_setup,
                libc::c_ulong::from(max_events),
                &raw mut context,
            )
        };
        syscall_result(ret)?;
        // An unsigned long is an address in this ABI: nothing is cut off.
        #[allow(clippy::cast_possible_truncation)]
        let id = context as usize;
        Ok(ContextId(id))
    }

    unsafe fn submit(&mut self, context: ContextId, iocbs: &[*mut Iocb]) -> Result<usize, Errno> {
        // SAFETY: the caller promises that the control blocks and what they name are valid.
        let ret =
            unsafe { libc::syscall(libc::SYS_io_submit, context.0, iocbs.len(), iocbs.as_ptr()) };
        syscall_result(ret)
    }

    unsafe fn pread_or_pwrite(&mut self, iocb: &Iocb) -> i64 {
        let call = match iocb.opcode {
            IOCB_CMD_PREAD => libc::SYS_pread64,
            IOCB_CMD_PWRITE => libc::SYS_pwrite64,
            IOCB_CMD_PREADV => libc::SYS_preadv,
            IOCB_CMD_PWRITEV => libc::SYS_pwritev,
            _ => return -i64::from(Errno::INVAL.raw_os_error()),
        };
        loop {
            // SAFETY: the caller promises that what the control block names is valid. All four take the same
            // arguments; the vectored ones have a second half of the offset, for 32-bit machines.
            let ret = unsafe {
                let (fd, at) = (iocb.fildes, iocb.offset);
                libc::syscall(call, fd, iocb.buf, iocb.nbytes, at, 0)
            };
            match syscall_result(ret) {
                Err(Errno::INTR) => {}
                Err(errno) => return -i64::from(errno.raw_os_error()),
                Ok(_) => return ret,
            }
        }
    }

    fn now_ns(&self) -> u64 {
        let now = clock_gettime(ClockId::Monotonic);
        let (seconds, ns) = (now.tv_sec.cast_unsigned(), now.tv_nsec.cast_unsigned());
        seconds * 1_000_000_000 + ns
    }

    fn getevents(&mut self, context: ContextId, events: &mut [IoEvent]) -> Result<usize, Errno> {
        getevents(context, 0, events)
    }

    fn destroy(&mut self, context: ContextId) {
        // SAFETY: takes no memory of ours; the ring is not read after this.
        let ret = unsafe { libc::syscall(libc::SYS_io_destroy, context.0) };
        debug_assert_eq!(ret, 0, "io_destroy of a context that we made");
    }

    fn ring(&self, context: ContextId) -> Option<NonNull<RingHeader>> {
        NonNull::new(ptr::with_exposed_provenance_mut(context.0))
    }

    fn supports_fdsync(&mut self, context: ContextId) -> bool {
        // The file must support fsync, or EINVAL would not tell anything about the kernel. Memory files do, and it touches
        // no disk.
        let Ok(file) = memfd_create("aio-fdsync-probe", MemfdFlags::CLOEXEC) else {
            return false;
        };
        let mut iocb = Iocb {
            opcode: IOCB_CMD_FDSYNC,
            fildes: file.as_raw_fd().cast_unsigned(),
            ..Iocb::default()
        };
        // SAFETY: one control block, alive for the call, without buffers.
        let accepted = unsafe { self.submit(context, &[&raw mut iocb]) } == Ok(1);
        if accepted {
            // Takes the completion, so that the first reap does not find it.
            while getevents(context, 1, &mut [IoEvent::default()]) == Err(Errno::INTR) {}
        }
        accepted
    }
}

/// io_getevents(2), which waits for at least `min` events; with zero it does not wait.
fn getevents(context: ContextId, min: usize, events: &mut [IoEvent]) -> Result<usize, Errno> {
    let now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let timeout = if min == 0 {
        &raw const now
    } else {
        ptr::null()
    };
    // SAFETY: the kernel writes at most `events.len()` events, and reads the timeout if there
    // is one.
    let ret = unsafe {
        libc::syscall(
            libc::SYS_io_getevents,
            context.0,
            min,
            events.len(),
            events.as_mut_ptr(),
            timeout,
        )
    };
    syscall_result(ret)
}

/// The result of a system call, from its return value: a count, or -1 and errno.
fn syscall_result(ret: c_long) -> Result<usize, Errno> {
    usize::try_from(ret)
        .map_err(|_| Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}
