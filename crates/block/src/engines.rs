//! The way of a request from an iothread to whatever carries it out.
//!
//! - Reads and writes that are aligned, or go through the page cache in a ring, and flushes: the
//!   disk's carrier, which is Linux AIO or the ring.
//! - Discards and zeroes of a disk that a ring carries: the ring, as far as it can.
//! - What the carrier cannot do (page cache without a ring, unaligned memory, parts of blocks, more
//!   segments than one system call takes): worker threads.
//! - What needs nothing done: complete at the next reap.
//!
//! One [`Engines`] belongs to one iothread; nothing here takes a lock or allocates for a request
//! that a carrier takes. An engine that is full says so, and the request stays in the guest's
//! ring until something has completed: the ring is the queue. Linux AIO and the ring are made when
//! the first disk wants them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use engine::uring::{File, RangeIo, RangeOp};
use engine::{
    AioSettings, AioStats, Completion, Full, Io, Op as IoOp, PoolError, PoolSettings,
    UringSettings, UringStats,
};
use rustix::thread::CpuSet;

use crate::aio::Aio;
use crate::attached::{Attached, Carrier};
use crate::faults::Wake;
use crate::filter::Filter;
use crate::job::{Call, Job, Work};
use crate::known_memory::KnownMemory;
use crate::lazy::Lazy;
use crate::no_wait::never_says;
use crate::node::{Backing, FdBacking, Node};
use crate::null::{self, NullQueue};
use crate::ranges::{self, After, Range, Ranges};
use crate::request::{Op, Request};
use crate::submits::Submits;
use crate::transfer::IOV_MAX;

#[cfg(feature = "simulation")]
pub(crate) use crate::simulation::{LinuxAio, Uring, Workers};
#[cfg(not(feature = "simulation"))]
pub(crate) use engine::{LinuxAio, Uring};
#[cfg(not(feature = "simulation"))]
type Workers = engine::Pool<Work>;

/// How the engines of one iothread are made.
#[derive(Clone, Debug, Default)]
pub struct EngineSettings {
    /// Linux AIO; its limits are the ring's as well.
    pub aio: AioSettings,
    /// The worker threads; the kernel's own for the ring are at most as many.
    pub pool: PoolSettings,
}

/// Watches the descriptor of an engine, see [`Engines::attach`].
type Watch<'a> = &'a mut dyn FnMut(BorrowedFd<'_>) -> io::Result<()>;

/// The engines of one iothread.
pub struct Engines {
    aio: Lazy<LinuxAio>,
    ring: Lazy<Uring>,
    /// What engines have handed over that are gone.
    ended: Submits,
    known_memory: KnownMemory,
    ranges: Ranges,
    attached: Attached,
    pub(crate) pool: Workers,
    pub(crate) null: NullQueue,
    /// Places of queues whose requests no filter holds back.
    pub(crate) not_held: Vec<u32>,
    /// Makes the loop look.
    wake: Wake,
    aio_settings: AioSettings,
    ring_settings: UringSettings,
    /// What Linux AIO is to be made on.
    #[cfg(feature = "simulation")]
    pub(crate) kernel: Option<crate::simulation::Kernel>,
    /// And the ring.
    #[cfg(feature = "simulation")]
    pub(crate) simulated_ring: Option<Box<dyn crate::SimulatedRing>>,
    /// The settings are others than those that Linux AIO and the ring were made with.
    outdated: bool,
}

impl Engines {
    /// Makes them. `wake` is called by workers when they finished something.
    ///
    /// # Errors
    /// When the limits of the worker threads contradict each other.
    pub fn new(settings: EngineSettings, wake: Wake) -> Result<Self, PoolError> {
        let ring_settings = UringSettings {
            max_events: settings.aio.max_events,
            max_batch: settings.aio.max_batch,
            default_batch: settings.aio.default_batch,
            first_batch: settings.aio.first_batch,
            max_workers: settings.pool.max_threads,
        };
        Ok(Engines {
            aio: Lazy::Unmade,
            ring: Lazy::Unmade,
            ended: Submits::default(),
            known_memory: KnownMemory::default(),
            ranges: Ranges::default(),
            attached: Attached::default(),
            pool: Workers::new(settings.pool, wake.clone())?,
            null: NullQueue::new(),
            not_held: Vec::new(),
            wake,
            aio_settings: settings.aio,
            ring_settings,
            #[cfg(feature = "simulation")]
            kernel: None,
            #[cfg(feature = "simulation")]
            simulated_ring: None,
            outdated: false,
        })
    }

    /// A queue of `node`'s starts on this iothread: what its requests need is made. `watch` gets the
    /// descriptor of an engine that was made now. It becomes readable when the engine has
    /// completed something, is to be watched for edges, and never needs to be read.
    ///
    /// What cannot be had is no error: it is said once in the log, with what to do about it, and
    /// something else carries the requests.
    pub fn attach(&mut self, node: &Node, watch: Watch<'_>) {
        let backing = match &*node.backing {
            Backing::Fd(backing) => backing,
            Backing::Null(_) => return,
            Backing::Filter(filter) => {
                filter.faults.join(&self.wake);
                return self.attach(&filter.below, watch);
            }
        };
        if self.attached.add_queue(backing) {
            return;
        }
        let carrier = match backing.aio {
            Aio::IoUring if self.make_ring(watch) => Carrier::Ring(self.know(backing)),
            Aio::IoUring if backing.direct.is_some() && self.make_aio(watch) => Carrier::Native,
            Aio::Native if self.make_aio(watch) => Carrier::Native,
            _ => Carrier::Workers,
        };
        if carrier == Carrier::Native
            && let Some(aio) = self.aio.get_mut()
            && never_says(backing.fd.as_fd())
        {
            aio.watch(backing.raw_fd());
        }
        self.attached.insert(backing, node.backing.clone(), carrier);
    }

    /// A queue of `node`'s, with nothing in flight any more, leaves this iothread.
    pub fn detach(&mut self, node: &Node) {
        let backing = match &*node.backing {
            Backing::Fd(backing) => backing,
            Backing::Null(_) => return,
            Backing::Filter(filter) => {
                filter.faults.leave(&self.wake);
                return self.detach(&filter.below);
            }
        };
        match self.attached.remove_queue(backing) {
            Some(Carrier::Native) => {
                if let Some(aio) = self.aio.get_mut() {
                    aio.unwatch(backing.raw_fd());
                }
            }
            Some(Carrier::Ring(File::Registered(place))) => {
                if let Some(ring) = self.ring.get_mut() {
                    ring.unregister_file(place);
                }
            }
            Some(Carrier::Ring(File::Descriptor(_)) | Carrier::Workers) | None => {}
        }
    }

    /// A queue of `node`'s, which is attached, begins to use the guest memory that `key` names,
    /// which is pinned and known to the ring from then on. What cannot be is said once in the log, and its
    /// requests go as if it were not asked for.
    ///
    /// # Safety
    /// The `ranges` (address, length) stay mapped until as many users have left.
    pub unsafe fn join_memory(
        &mut self,
        node: &Node,
        key: usize,
        ranges: impl Iterator<Item = (usize, usize)>,
    ) {
        let carried = match node.disk().backing.as_ref() {
            Backing::Fd(backing) => matches!(self.attached.carrier(backing), Carrier::Ring(_)),
            Backing::Null(_) | Backing::Filter(_) => false,
        };
        let ring = self.ring.get_mut().filter(|_| carried);
        // SAFETY: our caller promises the same.
        unsafe { self.known_memory.join(ring, key, ranges) };
    }

    /// A queue has no request under way in that memory any more, and will have none.
    pub fn leave_memory(&mut self, key: usize) {
        self.known_memory.leave(self.ring.get_mut(), key);
    }

    /// How many requests the engines that are there complete in one reap at most, workers not
    /// counted.
    #[must_use]
    pub fn most_completions(&self) -> usize {
        let aio = self.aio.get().map_or(0, LinuxAio::max_events);
        let ring = self.ring.get().map_or(0, Uring::max_events);
        aio as usize + ring as usize + 2 * null::CAPACITY
    }

    /// Takes a request. [`Full`]: come again after the next completion.
    ///
    /// # Errors
    /// [`Full`], and nothing was taken.
    ///
    /// # Safety
    /// Until the completion with the request's token has been reaped: the node is kept and
    /// attached, the list of segments stays in place and is touched by nobody else, and the memory
    /// that it names stays mapped (writable, for reads).
    #[inline(always)]
    pub unsafe fn submit(&mut self, node: &Node, request: Request) -> Result<(), Full> {
        match &*node.backing {
            // SAFETY: our caller promises the same.
            Backing::Fd(backing) => unsafe { self.submit_to_file(node, backing, request) },
            Backing::Null(options) => {
                let Request {
                    op,
                    iov,
                    iov_count,
                    token,
                    ..
                } = request;
                // SAFETY: our caller promises that the segments are valid.
                unsafe { self.null.push(options, op, iov, iov_count, token) }
            }
            // SAFETY: our caller promises the same.
            Backing::Filter(filter) => unsafe { self.submit_filtered(node, filter, request) },
        }
    }

    /// Has something done by a worker, which comes back as a request would. There is always room.
    pub fn call(&mut self, call: Call, token: u64) {
        self.pool.push(Work::Call(call, token));
    }

    /// # Safety
    /// As for [`submit`](Self::submit).
    #[inline(never)]
    unsafe fn submit_to_file(
        &mut self,
        node: &Node,
        backing: &FdBacking,
        request: Request,
    ) -> Result<(), Full> {
        let nothing_to_do = match request.op {
            Op::Flush => backing.no_flush || node.read_only(),
            Op::Discard => !node.unmap(),
            Op::Read | Op::Write | Op::WriteZeroes { .. } => false,
        };
        if nothing_to_do {
            return self.null.complete(request.token);
        }
        let op = io_op(backing, node.base(), &request);
        match self.attached.carrier(backing) {
            Carrier::Native => {
                if let Some(aio) = self.aio.get_mut()
                    && let Some(op) = op
                    && (op != IoOp::Flush || aio.supports_fdsync())
                {
                    let io = io(op, backing.raw_fd(), node, &request);
                    // SAFETY: our caller promises more than `push` asks for.
                    unsafe { aio.push(io) }?;
                    if full_batch(backing, aio.pending()) {
                        aio.submit();
                    }
                    return Ok(());
                }
            }
            Carrier::Ring(file) => {
                if let Some(ring) = self.ring.get_mut()
                    && let Some(op) = op
                {
                    let io = io(op, file, node, &request);
                    // SAFETY: our caller promises more than `push` asks for.
                    unsafe { ring.push(io) }?;
                    if full_batch(backing, ring.pending()) {
                        ring.submit();
                    }
                    return Ok(());
                }
                if matches!(request.op, Op::Discard | Op::WriteZeroes { .. }) {
                    // SAFETY: our caller promises the same.
                    return unsafe { self.submit_range(node, backing, file, request) };
                }
            }
            Carrier::Workers => {}
        }
        // SAFETY: our caller promises the same.
        self.pool
            .push(Work::Request(unsafe { Job::new(node, request) }));
        Ok(())
    }

    /// How many requests to `node` are taken for sure before the next reap. The submitter asks
    /// before it takes a request out of the guest's ring.
    #[inline]
    #[must_use]
    pub fn room(&self, node: &Node) -> usize {
        let backing = match &*node.backing {
            Backing::Fd(backing) => backing,
            Backing::Null(options) => return self.null.room(options.latency_ns),
            Backing::Filter(filter) => return self.room_behind(filter),
        };
        let room = match self.attached.carrier(backing) {
            Carrier::Native => self.aio.get().map(LinuxAio::room),
            Carrier::Ring(_) => self.ring.get().map(Uring::room),
            Carrier::Workers => None,
        };
        room.unwrap_or(usize::MAX).min(self.null.room(0))
    }

    #[cold]
    fn room_behind(&self, filter: &Filter) -> usize {
        self.room(&filter.below).min(self.null.room(0))
    }

    /// The submit phase: hands pending requests to the kernel.
    #[inline(always)]
    pub fn flush_batch(&mut self) {
        if let Some(aio) = self.aio.get_mut()
            && aio.pending() > 0
        {
            aio.submit();
        }
        if let Some(ring) = self.ring.get_mut()
            && ring.pending() > 0
        {
            ring.submit();
        }
    }

    /// Whether anything carries requests to the kernel. Null disks and worker threads do without.
    #[inline]
    #[must_use]
    pub fn has_carriers(&self) -> bool {
        self.aio.get().is_some() || self.ring.get().is_some()
    }

    /// The reap phase: takes what has finished.
    #[inline]
    pub fn reap(&mut self, out: &mut Vec<Completion>) {
        if self.has_carriers() {
            self.reap_carriers(out);
        }
        if self.pool.has_completions() {
            self.pool.reap(out);
        }
        if !self.null.waiting.is_empty() {
            self.reap_waiting(out);
        }
        self.null.reap(out);
    }

    /// Out of line: those who have only null disks do without its registers.
    #[inline(never)]
    fn reap_carriers(&mut self, out: &mut Vec<Completion>) {
        if let Some(aio) = self.aio.get_mut() {
            aio.reap(out);
        }
        if let Some(ring) = self.ring.get_mut() {
            ring.reap(out);
            self.reap_ranges(out);
        }
    }

    /// Whether something has finished; no syscall.
    #[inline]
    #[must_use]
    pub fn has_completions(&self) -> bool {
        self.aio.get().is_some_and(LinuxAio::has_completions)
            || self.ring.get().is_some_and(Uring::has_completions)
            || self.null.has_completions()
            || self.pool.has_completions()
    }

    /// The loop is about to block: from now to the next reap, the descriptors that `attach` handed
    /// out tell of completions. True: something has finished already.
    #[must_use]
    pub fn prepare_to_block(&mut self) -> bool {
        if let Some(ring) = self.ring.get_mut() {
            ring.arm();
        }
        self.has_completions()
    }

    /// When the next request completes by the clock alone (the loop's clock, nanoseconds).
    #[must_use]
    pub fn next_deadline_ns(&self) -> Option<u64> {
        self.null.next_deadline_ns()
    }

    /// Whether requests wait that no completion will set going: the kernel was short of memory
    /// when nothing was in flight. The loop comes back after a moment.
    #[must_use]
    pub fn needs_retry(&self) -> bool {
        let aio = self.aio.get();
        let ring = self.ring.get();
        aio.is_some_and(|aio| aio.blocked() && aio.in_flight() == 0)
            || ring.is_some_and(|ring| ring.blocked() && ring.in_flight() == 0)
    }

    /// Changes the batch limit; 0 is the default.
    pub fn set_aio_max_batch(&mut self, max_batch: u32) {
        self.aio_settings.max_batch = max_batch;
        self.ring_settings.max_batch = max_batch;
        if let Some(aio) = self.aio.get_mut() {
            aio.set_max_batch(max_batch);
        }
        if let Some(ring) = self.ring.get_mut() {
            ring.set_max_batch(max_batch);
        }
    }

    /// Changes how many requests Linux AIO and the ring have in flight, each. An engine that is there
    /// keeps its number until it [is made anew](Self::renew).
    pub fn set_aio_max_events(&mut self, max_events: u32) {
        self.outdated |= self.aio_settings.max_events != max_events;
        self.aio_settings.max_events = max_events;
        self.ring_settings.max_events = max_events;
    }

    /// Ends Linux AIO and the ring if they are to be made anew, and no disk uses them: the next one that
    /// [is attached](Self::attach) makes them. True: the descriptors that were watched are of no
    /// use any more.
    pub fn renew(&mut self) -> bool {
        if !self.outdated || !self.attached.is_empty() {
            return false;
        }
        self.outdated = false;
        self.ended = self.submits();
        self.aio = Lazy::Unmade;
        self.ring = Lazy::Unmade;
        true
    }

    /// Changes how many worker threads stay, and are there at most; of the kernel's own for the ring
    /// there are at most as many. Threads that are too many end with their job.
    ///
    /// # Errors
    /// When the limits contradict each other (nothing changes then), or a thread cannot be started.
    pub fn set_worker_limits(&mut self, min: u32, max: u32) -> Result<(), PoolError> {
        let set = self.pool.set_limits(min, max);
        if !matches!(set, Ok(()) | Err(PoolError::Start { .. })) {
            return set;
        }
        self.ring_settings.max_workers = max;
        if let Some(ring) = self.ring.get_mut() {
            ring.set_max_workers(max);
        }
        set
    }

    /// Where worker threads may run that are started from now on.
    pub fn set_worker_cpus(&mut self, cpus: CpuSet) {
        self.pool.set_cpus(cpus);
    }

    /// What Linux AIO and the ring have handed over to the kernel, together and since the beginning.
    #[inline]
    #[must_use]
    pub fn submits(&self) -> Submits {
        self.ended.and(self.aio.get(), self.ring.get())
    }

    /// What Linux AIO has counted, if there is one.
    #[must_use]
    pub fn aio_stats(&self) -> Option<AioStats> {
        self.aio.get().map(LinuxAio::stats)
    }

    /// What the ring has counted, if there is one.
    #[must_use]
    pub fn ring_stats(&self) -> Option<UringStats> {
        self.ring.get().map(Uring::stats)
    }

    fn make_aio(&mut self, watch: Watch<'_>) -> bool {
        let settings = self.aio_settings;
        // Only if there is none: to end a context takes the kernel many milliseconds, in which this thread waits.
        let make = || {
            #[cfg(feature = "simulation")]
            let made =
                LinuxAio::with_kernel(crate::simulation::the_only(&mut self.kernel), settings);
            #[cfg(not(feature = "simulation"))]
            let made = LinuxAio::new(settings);
            made.map_err(|error| error.to_string())
        };
        let watch = |aio: &LinuxAio| watch(aio.eventfd());
        let without = "no Linux AIO: worker threads do all I/O";
        self.aio.make(make, watch, without)
    }

    fn make_ring(&mut self, watch: Watch<'_>) -> bool {
        let settings = self.ring_settings;
        let make = || {
            #[cfg(feature = "simulation")]
            let made = crate::simulation::make_ring(&mut self.simulated_ring, settings);
            #[cfg(not(feature = "simulation"))]
            let made = Uring::new(settings);
            made.map_err(|error| error.to_string())
        };
        let watch = |ring: &Uring| watch(ring.eventfd());
        let without = "no io_uring: something else does its I/O";
        self.ring.make(make, watch, without)
    }

    /// How the ring is to call a disk's file: by its place in the table, if that has one for it.
    fn know(&mut self, backing: &FdBacking) -> File {
        let (place, fd) = (backing.id.number(), backing.raw_fd());
        let ring = self.ring.get_mut();
        if ring.is_some_and(|ring| ring.register_file(place, fd)) {
            File::Registered(place)
        } else {
            File::Descriptor(fd)
        }
    }

    /// # Safety
    /// As for [`submit`](Self::submit).
    #[cold]
    unsafe fn submit_range(
        &mut self,
        node: &Node,
        backing: &FdBacking,
        file: File,
        request: Request,
    ) -> Result<(), Full> {
        let range = ranges::range(node, backing, &request);
        if range == Range::Nothing {
            return self.null.complete(request.token);
        }
        // SAFETY: our caller promises the same.
        let job = unsafe { Job::new(node, request) };
        match (range, self.ring.get_mut()) {
            (Range::Ring(op, offset, len), Some(ring)) => {
                if ring.room() == 0 {
                    return Err(Full);
                }
                let token = self.ranges.keep(job, op);
                ring.push_range(RangeIo {
                    op,
                    file,
                    offset,
                    len,
                    token,
                })
            }
            _ => {
                self.pool.push(Work::Request(job));
                Ok(())
            }
        }
    }

    fn reap_ranges(&mut self, out: &mut Vec<Completion>) {
        let Some(ring) = self.ring.get_mut() else {
            return;
        };
        while let Some(Completion { token, result }) = ring.take_range() {
            match self.ranges.answered(token, result) {
                Some(After::Done(token, result)) => out.push(Completion { token, result }),
                Some(After::Flush(job)) => {
                    let file = match job.backing().map(|backing| self.attached.carrier(backing)) {
                        Some(Carrier::Ring(file)) if ring.room() > 0 => file,
                        _ => {
                            self.pool.push(Work::Request(job));
                            continue;
                        }
                    };
                    let op = RangeOp::Flush;
                    let flush = RangeIo {
                        op,
                        file,
                        offset: 0,
                        len: 0,
                        token: self.ranges.keep(job, op),
                    };
                    let pushed = ring.push_range(flush);
                    debug_assert!(pushed.is_ok(), "there was room");
                }
                Some(After::Worker(job)) => self.pool.push(Work::Request(job)),
                None => debug_assert!(false, "an answer to nothing"),
            }
        }
    }
}

/// Whether a node's own limit makes it time to submit.
#[inline]
fn full_batch(backing: &FdBacking, pending: usize) -> bool {
    let max_batch = backing.aio_max_batch as usize;
    max_batch != 0 && pending >= max_batch
}

#[inline(always)]
fn io<F>(op: IoOp, fd: F, node: &Node, request: &Request) -> Io<F> {
    Io {
        op,
        fd,
        offset: request.offset + node.base(),
        iov: request.iov,
        iov_count: request.iov_count,
        len: request.len,
        token: request.token,
    }
}

/// What a carrier is to do; `None` when it cannot without blocking.
#[inline(always)]
fn io_op(backing: &FdBacking, base: u64, request: &Request) -> Option<IoOp> {
    let op = match request.op {
        Op::Read => IoOp::Read,
        // Beside writes of partial blocks every write is done by a worker, under the range lock.
        Op::Write if !backing.block_mode.partial() => IoOp::Write {
            dsync: request.fua && !backing.no_flush,
        },
        Op::Flush => return Some(IoOp::Flush),
        Op::Write | Op::Discard | Op::WriteZeroes { .. } => return None,
    };
    fits(backing, base, request).then_some(op)
}

/// Whether the kernel takes a transfer as it is.
#[inline(always)]
fn fits(backing: &FdBacking, base: u64, request: &Request) -> bool {
    if !(1..=IOV_MAX).contains(&(request.iov_count as usize)) {
        return false;
    }
    // Through the page cache (which only the ring does) everything fits.
    let Some(direct) = backing.direct else {
        return true;
    };
    // SAFETY: `Engines::submit`'s caller vouches for the list.
    let iov = unsafe { std::slice::from_raw_parts(request.iov, request.iov_count as usize) };
    direct.fits(base + request.offset, request.len, iov)
}
