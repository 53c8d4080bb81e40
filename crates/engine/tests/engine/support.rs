//! Files, memory and engines for tests on the real kernel.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::ptr::NonNull;

use engine::aio::ContextId;
use engine::aio::abi::{IoEvent, Iocb, RingHeader};
use engine::{
    AioKernel, AioSettings, Completion, Errno, IoBackend, Kernel, LinuxAio, Op, Request, Uring,
    UringSettings, uring,
};
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};

pub const BLOCK: usize = 4096;

/// Memory that direct I/O accepts.
#[derive(Clone)]
#[repr(C, align(4096))]
pub struct Block(pub [u8; BLOCK]);

pub struct TempFile {
    file: File,
    pub name: tempfile::NamedTempFile,
}

impl TempFile {
    /// Opens the file with direct I/O where the file system supports it, since only then the kernel is asynchronous. The
    /// results are the same.
    pub fn new(bytes: u64) -> Self {
        let name = tempfile::NamedTempFile::new().unwrap();
        name.as_file().set_len(bytes).unwrap();
        let open = |flags| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .custom_flags(flags)
                .open(name.path())
        };
        let file = open(libc::O_DIRECT).or_else(|_| open(0)).unwrap();
        Self { file, name }
    }

    /// The same file through the page cache.
    pub fn cached(&self) -> File {
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(self.name.path())
            .unwrap()
    }

    pub fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

/// A request's memory: blocks, cut into `parts` buffers of whole sectors.
pub struct Buffers {
    pub blocks: Vec<Block>,
    pub iov: Vec<libc::iovec>,
}

impl Buffers {
    /// Blocks filled with `fill`, as `parts` buffers.
    pub fn new(blocks: usize, parts: usize, fill: u8) -> Self {
        let mut blocks = vec![Block([fill; BLOCK]); blocks];
        let total = blocks.len() * BLOCK;
        let base = blocks.as_mut_ptr().cast::<u8>();
        let part = total / parts / 512 * 512;
        let iov = (0..parts)
            .map(|i| libc::iovec {
                iov_base: base.wrapping_add(i * part).cast(),
                iov_len: if i + 1 == parts {
                    total - i * part
                } else {
                    part
                },
            })
            .collect();
        Self { blocks, iov }
    }

    /// A request to a file.
    pub fn io<F>(&mut self, op: Op, file: F, offset: u64, token: u64) -> (F, Request) {
        let request = Request {
            op,
            fua: false,
            offset,
            iov: self.iov.as_mut_ptr(),
            iov_count: u32::try_from(self.iov.len()).unwrap(),
            len: (self.blocks.len() * BLOCK) as u64,
            token,
        };
        (file, request)
    }

    pub fn bytes(&self) -> impl Iterator<Item = u8> {
        self.blocks.iter().flat_map(|block| block.0)
    }
}

pub fn ok(tokens: std::ops::Range<u64>) -> Vec<Completion> {
    tokens
        .map(|token| Completion {
            token,
            result: Ok(()),
        })
        .collect()
}

pub fn fill_of(token: u64) -> u8 {
    u8::try_from(token % 250).unwrap() + 1
}

/// An engine, in two variants: Linux AIO with the completion ring and without it, io_uring with registered files and without.
pub trait Engine: IoBackend<File: Copy> + Sized {
    /// Whether the first variant reaps without system calls, and the second one with them.
    const VARIANTS_REAP_DIFFERENTLY: bool;
    fn start(first_variant: bool) -> Self;
    fn file(&mut self, fd: RawFd, first_variant: bool) -> Self::File;
    fn completion_fd(&self) -> BorrowedFd<'_>;
    /// Requests that the kernel has, and that wait for it.
    fn unfinished(&self) -> (usize, usize);
    fn counts(&self) -> Counts;

    fn push(&mut self, (file, request): (Self::File, Request)) {
        // SAFETY: every test keeps its buffers until all completions were reaped, or the engine dropped.
        unsafe { self.start_or_queue(file, &request) }.unwrap();
    }

    /// Runs until nothing is in flight, as [`Loop::run`].
    fn run(&mut self) -> Vec<Completion> {
        Loop::new(self).run(self)
    }
}

/// What an engine has counted.
#[derive(Debug)]
pub struct Counts {
    pub completed: u64,
    pub resumed: u64,
    pub largest_batch: u64,
    pub getevents_calls: u64,
}

const MAX_EVENTS: u32 = 512;

pub const SETTINGS: UringSettings = UringSettings {
    max_events: MAX_EVENTS,
    max_batch: 0,
    max_workers: 4,
};

impl Engine for Uring {
    const VARIANTS_REAP_DIFFERENTLY: bool = false;

    fn start(_: bool) -> Self {
        Uring::new(SETTINGS).unwrap()
    }

    fn file(&mut self, fd: RawFd, registered: bool) -> uring::File {
        if registered {
            assert!(self.try_register_file(3, fd));
            return uring::File::Registered(3);
        }
        uring::File::Descriptor(fd)
    }

    fn completion_fd(&self) -> BorrowedFd<'_> {
        self.eventfd()
    }

    fn unfinished(&self) -> (usize, usize) {
        (self.in_flight_count(), self.pending_count())
    }

    fn counts(&self) -> Counts {
        let stats = self.stats();
        Counts {
            completed: stats.completed,
            resumed: stats.resumed,
            largest_batch: stats.largest_batch,
            getevents_calls: stats.getevents_calls,
        }
    }
}

impl Engine for LinuxAio<MaybeRing> {
    const VARIANTS_REAP_DIFFERENTLY: bool = true;

    fn start(ring: bool) -> Self {
        let settings = AioSettings {
            max_events: MAX_EVENTS,
            ..AioSettings::default()
        };
        let aio = LinuxAio::with_kernel(MaybeRing { ring }, settings).unwrap();
        assert_eq!(aio.uses_completion_ring(), ring);
        assert!(aio.supports_fdsync(), "every kernel since 4.18 has it");
        aio
    }

    fn file(&mut self, fd: RawFd, _: bool) -> RawFd {
        fd
    }

    fn completion_fd(&self) -> BorrowedFd<'_> {
        self.eventfd()
    }

    fn unfinished(&self) -> (usize, usize) {
        (self.in_flight_count(), self.pending_count())
    }

    fn counts(&self) -> Counts {
        let stats = self.stats();
        Counts {
            completed: stats.completed,
            resumed: stats.resumed,
            largest_batch: stats.largest_batch,
            getevents_calls: stats.getevents_calls,
        }
    }
}

/// An event loop that does not poll: it blocks whenever it may.
pub struct Loop {
    epoll: OwnedFd,
    pub waits: usize,
}

impl Loop {
    pub fn new(engine: &impl Engine) -> Self {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        let fd = engine.completion_fd();
        epoll::add(&epoll, fd, epoll::EventData::new_u64(0), flags).unwrap();
        Self { epoll, waits: 0 }
    }

    /// Runs until nothing is in flight; the completions in the order of their tokens.
    pub fn run(&mut self, engine: &mut impl Engine) -> Vec<Completion> {
        let mut out = Vec::new();
        let mut events = Vec::with_capacity(4);
        loop {
            engine.reap(&mut out);
            engine.submit();
            if engine.unfinished() == (0, 0) && !engine.has_completions() {
                out.sort_by_key(|completion| completion.token);
                return out;
            }
            assert!(!engine.needs_retry(), "nothing would wake us");
            if !engine.prepare_to_block_and_recheck() {
                self.waits += 1;
                let minute = Timespec {
                    tv_sec: 60,
                    tv_nsec: 0,
                };
                events.clear();
                match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&minute)) {
                    // The kernel wants the thread for a moment, to start a worker.
                    Err(Errno::INTR) => {}
                    polled => assert_eq!(polled, Ok(1), "a completion was not signalled"),
                }
            }
        }
    }
}

/// The kernel that this process runs on, optionally with a ring that cannot be read.
#[derive(Clone, Copy)]
pub struct MaybeRing {
    pub ring: bool,
}

// SAFETY: it does what the kernel does; a ring that is not shown is not read.
unsafe impl AioKernel for MaybeRing {
    fn setup(&mut self, max_events: u32) -> Result<ContextId, Errno> {
        Kernel.setup(max_events)
    }

    unsafe fn submit(&mut self, context: ContextId, iocbs: &[*mut Iocb]) -> Result<usize, Errno> {
        // SAFETY: our caller promises the same.
        unsafe { Kernel.submit(context, iocbs) }
    }

    unsafe fn pread_or_pwrite(&mut self, iocb: &Iocb) -> i64 {
        // SAFETY: our caller promises the same.
        unsafe { Kernel.pread_or_pwrite(iocb) }
    }

    fn now_ns(&self) -> u64 {
        Kernel.now_ns()
    }

    fn getevents(&mut self, context: ContextId, events: &mut [IoEvent]) -> Result<usize, Errno> {
        Kernel.getevents(context, events)
    }

    fn destroy(&mut self, context: ContextId) {
        Kernel.destroy(context);
    }

    fn ring(&self, context: ContextId) -> Option<NonNull<RingHeader>> {
        self.ring.then(|| Kernel.ring(context)).flatten()
    }

    fn supports_fdsync(&mut self, context: ContextId) -> bool {
        Kernel.supports_fdsync(context)
    }
}
