//! An io_uring, with its submission and completion queues and its registrations, and the trait that lets tests put another kernel
//! under the engine.
//!
//! A ring belongs to the thread that made it: no other may submit to it or flush its completions.

use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{Ordering, fence};

use io_uring::{IoUring, Probe, opcode, squeue};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use super::buffers::{BufferError, BufferTable};
use super::error::UringError;
use super::settings::UringSettings;
use super::setup::{self, RingKind, errno_of};

/// A ring under the engine.
///
/// # Safety
/// The engine releases buffers to their owners according to an implementation: every submitted entry completes exactly once
/// with its own user data, and after that nothing that it names is accessed.
pub unsafe trait Ring {
    /// How many entries it has room for, submitted or not.
    fn sq_entries(&self) -> u32;

    /// Appends an entry to those that are not submitted yet.
    ///
    /// # Safety
    /// There is room: fewer than [`entries`](Self::entries) are pushed and not completed. What the
    /// entry names is valid until its completion.
    unsafe fn push(&mut self, entry: &squeue::Entry);

    /// io_uring_enter(2): submits the `count` oldest entries, and returns how many were taken. With `flush` it flushes
    /// completions as well.
    ///
    /// # Errors
    /// Those of the manual page; nothing was taken.
    fn submit(&mut self, count: u32, flush: bool) -> Result<usize, Errno>;

    /// io_uring_enter(2) that flushes completions, which makes them visible. With `wait` it waits for one.
    ///
    /// # Errors
    /// Those of the manual page.
    fn make_completions_visible(&mut self, wait: bool) -> Result<(), Errno>;

    /// Whether there are completions that only [`make_completions_visible`](Self::make_completions_visible) makes visible: one load.
    fn has_unflushed_completions(&self) -> bool;

    /// Whether there are visible completions: two loads.
    fn has_completions(&self) -> bool;

    /// Takes the visible completions: user data and result.
    fn drain_completions(&mut self, each: impl FnMut(u64, i32));

    /// Whether the eventfd can be switched off and on without losing a completion.
    fn can_disable_eventfd(&self) -> bool;

    /// Switches the eventfd off or on, where that is possible. After switching it on the caller has to
    /// [`make_completions_visible`](Self::make_completions_visible), or it may miss an earlier completion.
    fn set_eventfd_disabled_if_possible(&mut self, quiet: bool);
}

/// Most registered files of a ring; others are named by their descriptors.
const MAX_FILES: u32 = 1024;

/// Places for registered memory, each of at most 1 GiB. The table is made on first use, and takes the kernel a pointer for
/// each place.
pub(super) const MAX_BUFFERS: u16 = 4096;

/// Operations of io_uring_register(2), which the crate offers only for the time of a borrow of the ring.
const IORING_REGISTER_RING_FDS: u32 = 20;
const IORING_UNREGISTER_RING_FDS: u32 = 21;
/// Flags of io_uring_enter(2).
const IORING_ENTER_GETEVENTS: u32 = 1;
const IORING_ENTER_REGISTERED_RING: u32 = 1 << 4;

/// `struct io_uring_rsrc_update` of `linux/io_uring.h`.
#[repr(C)]
struct RsrcUpdate {
    offset: u32,
    resv: u32,
    data: u64,
}

/// The kernel's ring.
pub struct KernelRing {
    ring: IoUring,
    kind: RingKind,
    event_fd: OwnedFd,
    /// The ring for io_uring_enter(2): a place in the thread's table of rings, or its descriptor, and the flag that says
    /// which.
    handle: (RawFd, u32),
    files: u32,
    /// The table of registered memory exists.
    has_buffers: bool,
    /// Makes the type `!Send`.
    _thread: PhantomData<*const ()>,
}

impl std::fmt::Debug for KernelRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KernelRing")
            .field("kind", &self.kind)
            .field("entries", &self.sq_entries())
            .field("files", &self.files)
            .finish_non_exhaustive()
    }
}

impl KernelRing {
    /// A ring for the calling thread.
    ///
    /// # Errors
    /// [`UringError`], whose text names cause and remedy.
    pub(super) fn new(settings: UringSettings) -> Result<Self, UringError> {
        let built = setup::build_best_ring(settings.max_events)?;
        Self::finish_setup(built, settings)
    }

    /// Completes the setup of a ring that was built: eventfd, table of files, number of workers, a first io_uring_enter(2).
    pub(super) fn finish_setup(
        built: (IoUring, RingKind),
        settings: UringSettings,
    ) -> Result<Self, UringError> {
        let (ring, kind) = built;
        let call = |call| move |errno| UringError::from_errno(call, settings.max_events, errno);
        let event_fd =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(call("eventfd"))?;
        let registered = ring.submitter().register_eventfd(event_fd.as_raw_fd());
        registered.map_err(|error| call("io_uring_register")(errno_of(&error)))?;
        let fd = ring.as_raw_fd();
        let mut this = Self {
            files: register_file_table(&ring),
            has_buffers: false,
            ring,
            kind,
            event_fd,
            handle: (fd, 0),
            _thread: PhantomData,
        };
        this.register_ring_fd();
        this.set_max_workers(settings.max_workers);
        this.set_eventfd_disabled_if_possible(true);
        // A seccomp filter may allow io_uring_setup and forbid io_uring_enter.
        this.make_completions_visible(false)
            .map_err(call("io_uring_enter"))?;
        Ok(this)
    }

    /// The eventfd that the kernel writes for completions, for a poller that watches it for edges.
    pub(super) fn event_fd(&self) -> BorrowedFd<'_> {
        self.event_fd.as_fd()
    }

    /// Sets the most threads that the kernel starts for requests that would block, for each of its two kinds.
    pub(super) fn set_max_workers(&mut self, max_workers: u32) {
        // Linux 5.15; older kernels have their own bounds.
        let mut workers = [max_workers; 2];
        let _ = self
            .ring
            .submitter()
            .register_iowq_max_workers(&mut workers);
    }

    /// Registers `fd` at place `index`. False: there is no such place, or the kernel refuses.
    pub(super) fn set_file_at(&mut self, index: u32, fd: RawFd) -> bool {
        let submitter = self.ring.submitter();
        index < self.files && submitter.register_files_update(index, &[fd]).is_ok()
    }

    /// Whether requests with several buffers may use registered memory (Linux 6.15).
    pub(super) fn supports_vectored_fixed(&self) -> bool {
        let mut probe = Probe::new();
        let probed = self.ring.submitter().register_probe(&mut probe);
        let codes = [opcode::ReadvFixed::CODE, opcode::WritevFixed::CODE];
        probed.is_ok() && codes.into_iter().all(|code| probe.is_supported(code))
    }

    /// Registers the ring with the thread, which saves each system call the look-up of the descriptor (Linux 5.18).
    fn register_ring_fd(&mut self) {
        let mut update = RsrcUpdate {
            offset: u32::MAX,
            resv: 0,
            data: self.ring.as_raw_fd().unsigned_abs().into(),
        };
        if self.register_or_unregister_ring_fd(IORING_REGISTER_RING_FDS, &mut update)
            && let Ok(index) = RawFd::try_from(update.offset)
        {
            self.handle = (index, IORING_ENTER_REGISTERED_RING);
        }
    }

    /// Registers or unregisters one ring with the thread, by io_uring_register(2).
    fn register_or_unregister_ring_fd(&mut self, operation: u32, update: &mut RsrcUpdate) -> bool {
        // SAFETY: both operations read and write one structure of this type.
        let ret = unsafe {
            libc::syscall(
                libc::SYS_io_uring_register,
                self.ring.as_raw_fd(),
                operation,
                &raw mut *update,
                1,
            )
        };
        ret == 1
    }

    /// io_uring_enter(2) on this ring.
    fn enter(&mut self, count: u32, min_complete: u32, flags: u32) -> Result<usize, Errno> {
        let (handle, registered) = self.handle;
        // SAFETY: without a signal mask or an extended argument the call reads nothing but the
        // entries of the ring, which are valid by the promise of `push`'s callers.
        let ret = unsafe {
            libc::syscall(
                libc::SYS_io_uring_enter,
                handle,
                count,
                min_complete,
                flags | registered,
                std::ptr::null::<libc::c_void>(),
                0_usize,
            )
        };
        usize::try_from(ret).map_err(|_| errno_of(&std::io::Error::last_os_error()))
    }
}

impl BufferTable for KernelRing {
    unsafe fn register(&mut self, place: u16, buffer: &libc::iovec) -> Result<(), BufferError> {
        let submitter = self.ring.submitter();
        if !self.has_buffers {
            // Linux 5.19.
            let made = submitter.register_buffers_sparse(MAX_BUFFERS.into());
            made.map_err(|error| match errno_of(&error) {
                Errno::INVAL => BufferError::TooOld,
                errno => BufferError::from_errno(errno, buffer.iov_len),
            })?;
            self.has_buffers = true;
        }
        let buffers = std::slice::from_ref(buffer);
        // SAFETY: our caller promises that the memory is mapped.
        let registered = unsafe { submitter.register_buffers_update(place.into(), buffers, None) };
        registered.map_err(|error| BufferError::from_errno(errno_of(&error), buffer.iov_len))
    }

    fn unregister(&mut self, place: u16) {
        let nothing = libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        };
        let submitter = self.ring.submitter();
        // SAFETY: it names no memory.
        let taken = unsafe { submitter.register_buffers_update(place.into(), &[nothing], None) };
        debug_assert!(taken.is_ok(), "a place that was taken: {taken:?}");
    }
}

/// Makes an empty table of files, as large as allowed, and returns its size.
fn register_file_table(ring: &IoUring) -> u32 {
    // The kernel allows as many as the process may have open.
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let files = u32::try_from(limit).unwrap_or(u32::MAX).min(MAX_FILES);
    let submitter = ring.submitter();
    // Sparse tables need Linux 5.19; before that, a table of -1 does the same.
    let table = || submitter.register_files(&vec![-1; files as usize]);
    let made = submitter.register_files_sparse(files).or_else(|_| table());
    made.map_or(0, |()| files)
}

// SAFETY: the kernel completes what it took exactly once (completions that find no room wait in the kernel, which sets a
// flag), and accesses no buffer afterwards.
unsafe impl Ring for KernelRing {
    fn sq_entries(&self) -> u32 {
        self.ring.params().sq_entries()
    }

    #[inline]
    unsafe fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: the caller promises that what the entry names is valid.
        let pushed = unsafe { self.ring.submission().push(entry) };
        debug_assert!(pushed.is_ok(), "there are no more requests than entries");
    }

    fn submit(&mut self, count: u32, flush: bool) -> Result<usize, Errno> {
        let flags = if flush { IORING_ENTER_GETEVENTS } else { 0 };
        self.enter(count, 0, flags)
    }

    fn make_completions_visible(&mut self, wait: bool) -> Result<(), Errno> {
        self.enter(0, u32::from(wait), IORING_ENTER_GETEVENTS)
            .map(drop)
    }

    #[inline]
    fn has_unflushed_completions(&self) -> bool {
        // SAFETY: `&self` of a ring that one thread has: no other view of the queue exists now.
        let queue = unsafe { self.ring.submission_shared() };
        queue.taskrun() || queue.cq_overflow()
    }

    #[inline]
    fn has_completions(&self) -> bool {
        // SAFETY: as in `has_unflushed_completions`.
        !unsafe { self.ring.completion_shared() }.is_empty()
    }

    #[inline]
    fn drain_completions(&mut self, mut each: impl FnMut(u64, i32)) {
        for entry in self.ring.completion() {
            each(entry.user_data(), entry.result());
        }
    }

    /// Only where no other thread makes completions visible (Linux 6.2; the kind that is required here is of 6.6). Otherwise
    /// one may become visible without a check of the switch.
    fn can_disable_eventfd(&self) -> bool {
        self.kind == RingKind::Direct
    }

    fn set_eventfd_disabled_if_possible(&mut self, quiet: bool) {
        if !self.can_disable_eventfd() {
            return;
        }
        let queue = self.ring.completion();
        if quiet {
            queue.disable_eventfd();
        } else {
            queue.enable_eventfd();
            // The kernel puts a completion on its list and then reads the switch. We set the switch and then let the
            // kernel read its list.
            fence(Ordering::SeqCst);
        }
    }
}

impl Drop for KernelRing {
    fn drop(&mut self) {
        // Otherwise the thread's table would keep the ring, with its files, until the thread ends.
        if let (Ok(index), IORING_ENTER_REGISTERED_RING) =
            (u32::try_from(self.handle.0), self.handle.1)
        {
            let mut update = RsrcUpdate {
                offset: index,
                resv: 0,
                data: 0,
            };
            self.register_or_unregister_ring_fd(IORING_UNREGISTER_RING_FDS, &mut update);
        }
    }
}
