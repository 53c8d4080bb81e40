//! The I/O context of one iothread: its backends, and the submission of requests to them.
//!
//! - Linux AIO or the ring, whichever carries the disk: aligned reads and writes, reads and writes through the page cache in
//!   a ring, flushes.
//! - [librbd](crate::rbd): requests to images of a Ceph cluster; [NBD](nbd::client): requests to exports of a server.
//! - Worker threads: requests that these cannot carry (page cache without a ring, unaligned memory, partial blocks, more
//!   segments than one system call takes).
//! - One of these, with a lease on the place: requests that a [lookup](crate::route::MappedNode) has mapped to a file.
//! - A [task](crate::route::task): requests of several steps, and those that wait at a [gate](crate::route::gate).
//! - None, complete at the next reap: requests that need no I/O.
//!
//! Nothing here takes a lock or allocates for a request that Linux AIO or the ring carries. A full backend refuses a
//! request, which then stays in the guest's ring until something has completed: the ring is the queue. Linux AIO and the
//! ring are made when the first disk needs them.

mod attach;
mod attached_files;
mod attached_network_disks;
mod guarded_requests;
pub(crate) mod job;
mod lazy_engine;
mod registered_memory;
mod settings;
#[cfg(feature = "simulation")]
pub(crate) mod simulated;
mod submit;
mod submit_counts;

pub(crate) use attach::Watch;
pub use job::BlockingCall;
pub use settings::BackendSettings;
pub use submit_counts::SubmitCounts;

use engine::{AioSettings, AioStats, Completion, IoBackend, PoolError, UringSettings, UringStats};

use self::attached_files::AttachedFiles;
use self::attached_network_disks::AttachedNetworkDisks;
use self::guarded_requests::GuardedRequests;
use self::job::{DiskBlockingCall, WorkerJob};
use self::lazy_engine::LazyEngine;
use self::registered_memory::UsedMemoryMaps;
use crate::null_disk::{self, NullQueue};
use crate::route::task::{Executor, Wake};
use crate::task_share::TaskRoomShare;

#[cfg(not(feature = "simulation"))]
pub(crate) use engine::{LinuxAio, Uring};
#[cfg(feature = "simulation")]
pub(crate) use simulated::{LinuxAio, Uring, Workers};
#[cfg(not(feature = "simulation"))]
pub(crate) type Workers = engine::Pool<WorkerJob>;

/// What passing a request to a worker thread costs, in bytes of a request that the kernel takes: the lock of the pool, and the
/// wake-up of a thread.
const WORKER_COST_BYTES: u64 = 256 << 10;

/// Additional cost of each request that the kernel takes while other files of the iothread wait, in the same unit.
const CALL_COST_BYTES: u64 = 32 << 10;

/// Additional cost of each byte that the kernel copies within the call meanwhile.
const COPIED_BYTE_FACTOR: u64 = 4;

/// The I/O of one iothread.
pub struct IoContext {
    aio: LazyEngine<LinuxAio>,
    ring: LazyEngine<Uring>,
    /// Blocking work.
    pub(crate) workers: Workers,
    /// See [`IoContext::submission_cost`].
    submission_cost: u64,
    pub(crate) null_queue: NullQueue,
    tasks: Executor,
    aio_share: TaskRoomShare,
    ring_share: TaskRoomShare,
    guarded: GuardedRequests,
    files: AttachedFiles,
    network: AttachedNetworkDisks,
    /// Called by other threads when they have completed something.
    wake: Wake,
    registered_memory: UsedMemoryMaps,
    /// What engines that have ended had submitted.
    ended_engines: SubmitCounts,
    aio_settings: AioSettings,
    ring_settings: UringSettings,
    /// The settings have changed since Linux AIO and the ring were made.
    settings_changed: bool,
    /// The simulator's kernel for Linux AIO.
    #[cfg(feature = "simulation")]
    pub(crate) kernel: Option<simulated::SimulatedKernel>,
    /// The simulator's ring.
    #[cfg(feature = "simulation")]
    pub(crate) simulated_ring: Option<Box<dyn simulated::SimulatedRing>>,
}

impl IoContext {
    /// Makes a context. Workers call `wake` when they have finished something.
    ///
    /// # Errors
    /// When the limits of the worker threads contradict each other.
    pub fn new(settings: BackendSettings, wake: Wake) -> Result<Self, PoolError> {
        let ring_settings = UringSettings {
            max_events: settings.aio.max_events,
            max_batch: settings.aio.max_batch,
            max_workers: settings.pool.max_threads,
        };
        Ok(IoContext {
            aio: LazyEngine::Unmade,
            ring: LazyEngine::Unmade,
            workers: Workers::start(settings.pool, wake.clone())?,
            submission_cost: 0,
            null_queue: NullQueue::new(),
            tasks: Executor::new(wake.clone()),
            aio_share: TaskRoomShare::default(),
            ring_share: TaskRoomShare::default(),
            guarded: GuardedRequests::default(),
            files: AttachedFiles::default(),
            network: AttachedNetworkDisks::new(),
            wake,
            registered_memory: UsedMemoryMaps::default(),
            ended_engines: SubmitCounts::default(),
            aio_settings: settings.aio,
            ring_settings,
            settings_changed: false,
            #[cfg(feature = "simulation")]
            kernel: None,
            #[cfg(feature = "simulation")]
            simulated_ring: None,
        })
    }

    /// The most requests that complete in one reap, without those of worker threads.
    #[must_use]
    pub fn max_reaped_without_workers(&self) -> usize {
        let aio = self.aio.get().map_or(0, LinuxAio::max_events);
        let ring = self.ring.get().map_or(0, Uring::max_events);
        aio as usize + ring as usize + 2 * null_disk::CAPACITY
    }

    /// Runs blocking work on a worker thread, for a disk with this [number](crate::AttachedDisk::number_among_workers). It
    /// completes as a request with this token does. There is always room.
    pub fn submit_blocking_call(&mut self, disk: u64, call: BlockingCall, token: u64) {
        let call = DiskBlockingCall { call, disk, token };
        self.workers.add_job(WorkerJob::Call(call));
    }

    /// The submit phase: polls async tasks, and submits pending requests to the kernel.
    #[inline(always)]
    pub fn poll_tasks_and_submit(&mut self) {
        if !self.tasks.has_none_running_or_completed() {
            self.poll_tasks_and_submit_io();
        }
        if let Some(aio) = self.aio.get_mut() {
            aio.submit();
        }
        if let Some(ring) = self.ring.get_mut() {
            ring.submit();
        }
        self.network.submit();
    }

    /// Whether the submit phase may have something to do. Null disks and worker threads do not need it.
    #[inline]
    #[must_use]
    pub fn may_need_submit_phase(&self) -> bool {
        self.aio.get().is_some()
            || self.ring.get().is_some()
            || !self.network.is_empty()
            || !self.tasks.has_none_running_or_completed()
    }

    /// The reap phase: takes completions, and polls the async tasks that were woken.
    #[inline]
    pub fn reap_and_poll_tasks(&mut self, out: &mut Vec<Completion>) {
        if let Some(aio) = self.aio.get_mut() {
            aio.reap(out);
        }
        if let Some(ring) = self.ring.get_mut() {
            ring.reap(out);
        }
        self.workers.reap(out);
        self.null_queue.reap(out);
        self.network.reap(out);
        if !self.tasks.has_none_running_or_completed() {
            self.tasks.dispatch_io_completions(out);
            self.tasks.poll_due_and_woken();
            self.tasks.take_completed(out);
            if let Some(aio) = self.aio.get() {
                self.aio_share.reserve_part_for_refused_tasks(aio.room());
            }
            if let Some(ring) = self.ring.get() {
                self.ring_share.reserve_part_for_refused_tasks(ring.room());
            }
            self.network.reserve_room_for_refused_tasks();
        }
        if !self.guarded.is_empty() {
            self.guarded.drop_guards_of_completed(out);
        }
    }

    /// Whether something has finished, or an async task was woken; no system call.
    #[inline]
    #[must_use]
    pub fn has_completions_or_woken_tasks(&self) -> bool {
        self.aio.get().is_some_and(LinuxAio::has_completions)
            || self.ring.get().is_some_and(|ring| ring.has_completions())
            || self.null_queue.has_completions()
            || self.workers.has_completions()
            || self.network.has_completions()
            || self.tasks.has_runnable_or_completed()
    }

    /// Prepares for the loop to block: until the next reap, completions signal the descriptors that `attach` passed on.
    /// True: something has finished already.
    #[must_use]
    pub fn arm_eventfds_and_check_finished(&mut self) -> bool {
        if let Some(ring) = self.ring.get_mut() {
            ring.prepare_to_block_and_recheck();
        }
        self.has_completions_or_woken_tasks() || self.network.must_run_before_blocking()
    }

    /// Notes that one of the descriptors that `attach` passed on was ready.
    pub fn note_descriptor_event(&mut self) {
        self.network.note_event();
    }

    /// The time at which the next request completes by the clock alone (the loop's clock, nanoseconds).
    #[must_use]
    pub fn next_deadline_ns(&self) -> Option<u64> {
        let deadlines = [
            self.null_queue.next_timed_completion_ns(),
            self.tasks.next_deadline_ns(),
            self.network.next_deadline_ns(),
        ];
        deadlines.into_iter().flatten().min()
    }

    /// Whether requests wait that no completion will resume. The loop retries after a moment.
    #[must_use]
    pub fn needs_retry(&self) -> bool {
        self.aio.get().is_some_and(LinuxAio::needs_retry)
            || self.ring.get().is_some_and(|ring| ring.needs_retry())
            || self.network.needs_retry()
    }

    /// A measure of the time that this thread has spent on submissions: the bytes of all requests of sources,
    /// [`WORKER_COST_BYTES`] for each that a worker has got, and, if the iothread has other files, [`CALL_COST_BYTES`] for each that
    /// the kernel has got, and [`COPIED_BYTE_FACTOR`] for copies.
    #[inline]
    #[must_use]
    pub fn submission_cost(&self) -> u64 {
        self.submission_cost
    }

    /// Counts of what Linux AIO and the ring together have submitted to the kernel since the context was made.
    #[inline]
    #[must_use]
    pub fn submit_counts(&self) -> SubmitCounts {
        self.ended_engines
            .plus_engines(self.aio.get(), self.ring.get())
    }

    /// The counts of Linux AIO, if it is in use.
    #[must_use]
    pub fn aio_stats(&self) -> Option<AioStats> {
        self.aio.get().map(LinuxAio::stats)
    }

    /// The counts of the ring, if there is one.
    #[must_use]
    pub fn ring_stats(&self) -> Option<UringStats> {
        self.ring.get().map(Uring::stats)
    }
}
