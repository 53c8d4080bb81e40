//! The I/O of one iothread: its backends, and the routes of its sources to them.
//!
//! - Reads and writes that are aligned, or go through the page cache in a ring, and flushes: Linux AIO or the ring,
//!   whichever carries the disk.
//! - What that cannot do (page cache without a ring, unaligned memory, parts of blocks, more segments than one
//!   system call takes): worker threads.
//! - What a [lookup](crate::route::Lookup) finds at a place of a file: one of these, with a lease on the place.
//! - What is more than one of these: a [task](crate::task).
//! - What needs nothing done: complete at the next reap.
//!
//! Nothing here takes a lock or allocates for a request that Linux AIO or the ring carries. A backend that is full
//! says so, and the request stays in the guest's ring until something has completed: the ring is the queue. Linux AIO
//! and the ring are made when the first disk wants them.

mod attach;
mod leased;
mod submit;

pub(crate) use attach::AttachContext;
use leased::LeasedRequests;

use engine::{
    AioSettings, AioStats, Completion, PoolError, PoolSettings, UringSettings, UringStats,
};
use rustix::thread::CpuSet;

use crate::attached::Attached;
use crate::drivers::null_co::{self, NullQueue};
use crate::job::{Call, Work};
use crate::known_memory::KnownMemory;
use crate::lazy::Lazy;
use crate::submits::Submits;
use crate::task::{Executor, Wake};

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

/// The engines of one iothread.
pub struct Engines {
    aio: Lazy<LinuxAio>,
    ring: Lazy<Uring>,
    /// What engines have handed over that are gone.
    ended: Submits,
    known_memory: KnownMemory,
    attached: Attached,
    pub(crate) pool: Workers,
    pub(crate) null: NullQueue,
    tasks: Executor,
    leased: LeasedRequests,
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
            max_workers: settings.pool.max_threads,
        };
        Ok(Engines {
            aio: Lazy::Unmade,
            ring: Lazy::Unmade,
            ended: Submits::default(),
            known_memory: KnownMemory::default(),
            attached: Attached::default(),
            pool: Workers::new(settings.pool, wake.clone())?,
            null: NullQueue::new(),
            tasks: Executor::new(wake),
            leased: LeasedRequests::default(),
            aio_settings: settings.aio,
            ring_settings,
            #[cfg(feature = "simulation")]
            kernel: None,
            #[cfg(feature = "simulation")]
            simulated_ring: None,
            outdated: false,
        })
    }

    /// How many requests the engines that are there complete in one reap at most, workers not
    /// counted.
    #[must_use]
    pub fn most_completions(&self) -> usize {
        let aio = self.aio.get().map_or(0, LinuxAio::max_events);
        let ring = self.ring.get().map_or(0, Uring::max_events);
        aio as usize + ring as usize + 2 * null_co::CAPACITY
    }

    /// Has something done by a worker, which comes back as a request would. There is always room.
    pub fn call(&mut self, call: Call, token: u64) {
        self.pool.push(Work::Call(call, token));
    }

    /// The submit phase: hands pending requests to the kernel.
    #[inline(always)]
    pub fn flush_batch(&mut self) {
        if !self.tasks.is_empty() {
            self.run_tasks();
        }
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

    /// Whether the submit phase may have something to do. Null disks and worker threads do without.
    #[inline]
    #[must_use]
    pub fn submits_anything(&self) -> bool {
        self.aio.get().is_some() || self.ring.get().is_some() || !self.tasks.is_empty()
    }

    /// The reap phase: takes what has finished.
    #[inline]
    pub fn reap(&mut self, out: &mut Vec<Completion>) {
        if let Some(aio) = self.aio.get_mut() {
            aio.reap(out);
        }
        if let Some(ring) = self.ring.get_mut() {
            ring.reap(out);
        }
        if self.pool.has_completions() {
            self.pool.reap(out);
        }
        self.null.reap(out);
        if !self.leased.is_empty() {
            self.leased.end_those_of(out);
        }
        if !self.tasks.is_empty() {
            self.tasks.take_io(out);
            self.tasks.run();
            self.tasks.reap(out);
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
            || self.tasks.has_work()
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
        let deadlines = [self.null.next_deadline_ns(), self.tasks.next_deadline_ns()];
        deadlines.into_iter().flatten().min()
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
}
