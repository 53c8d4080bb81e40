//! The worker pool: threads for what the kernel cannot do asynchronously.
//!
//! A discard, a misaligned write or an open may block for an arbitrary time; on the iothread that would stop every guest
//! that it serves. Here a worker thread blocks instead. The pool is generic and knows nothing of what a job does; it has no
//! priorities and no cancellation. Disks share the threads fairly: see `fair_queue.rs`. Jobs of one disk *start* first in,
//! first out, and have no other order.
//!
//! One iothread owns the pool. Adding a job takes a lock, which is acceptable: a job that needs a thread costs more than a
//! lock. Checking for completions takes no lock.

mod error;
mod fair_queue;
mod shared;
mod worker;

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

pub use error::PoolError;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::{Completion, Errno, Full, IoBackend, Request};
use shared::PoolShared;

/// Default of the most threads of a pool.
pub const DEFAULT_MAX_THREADS: u32 = 64;

/// Largest maximum of threads of a pool: far above what any storage can use, and below what would exhaust a process.
pub const MAX_THREADS_LIMIT: u32 = 4096;

/// Bytes of a worker's stack. Jobs are system calls and little else; the room is for the report of a panic.
const STACK_BYTES: usize = 512 << 10;

/// How long a thread over the minimum waits for work before it ends.
const IDLE_TIME: Duration = Duration::from_secs(10);

/// Work that may block.
pub trait Job: Send + 'static {
    /// The token of the job, for its completion if [`run`](Self::run) panics or is not called. Must not panic.
    fn token(&self) -> u64;

    /// A number for the disk that the job is for: disks share the threads fairly. Must not panic.
    fn disk(&self) -> u64;

    /// Runs the job, on a worker. If it panics, the job completes with [`Errno::IO`].
    fn run(self) -> Completion;
}

/// A job that carries a request out.
pub trait RequestJob: Job {
    /// A file, as its requests name it.
    type File;

    /// A job for a request at its offset in the file.
    ///
    /// # Safety
    /// As for [`IoBackend::start_or_queue`].
    unsafe fn from_request(file: Self::File, request: Request) -> Self;
}

/// Worker threads take every request, and start at once. Their queue is bounded by what sources have in flight.
impl<J: RequestJob> IoBackend for Pool<J> {
    type File = J::File;

    fn room(&self) -> usize {
        usize::MAX
    }

    unsafe fn start_or_queue(&mut self, file: J::File, request: &Request) -> Result<(), Full> {
        // SAFETY: our caller promises the same.
        self.add_job(unsafe { J::from_request(file, *request) });
        Ok(())
    }

    fn submit(&mut self) {}

    #[inline]
    fn reap(&mut self, out: &mut Vec<Completion>) {
        self.take_completions(out);
    }

    #[inline]
    fn has_completions(&self) -> bool {
        self.has_finished()
    }
}

/// The owner's wake-up, which a worker calls when it adds the first completion to an empty list.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// Settings of a pool.
#[derive(Clone, Debug)]
pub struct PoolSettings {
    /// Threads that stay when there are no jobs.
    pub min_threads: u32,
    /// Most threads, `1..=MAX_THREADS_LIMIT`.
    pub max_threads: u32,
    /// Name of the threads; the kernel shows the first 15 bytes.
    pub name: String,
    /// The CPUs on which the threads may run; `None`: those of the owner.
    pub cpus: Option<CpuSet>,
    /// A function that each thread calls before its first job.
    pub begin: fn(),
}

impl Default for PoolSettings {
    fn default() -> Self {
        Self {
            min_threads: 0,
            max_threads: DEFAULT_MAX_THREADS,
            name: "worker".to_owned(),
            cpus: None,
            begin: || (),
        }
    }
}

/// A pool of threads, owned by one thread.
///
/// Dropping it runs all jobs that were added, and joins the threads; completions that were not reaped are lost.
#[derive(Debug)]
pub struct Pool<J: Job> {
    shared: Arc<PoolShared<J>>,
    /// Threads that may still run. Those that have ended are removed when another one is started.
    threads: Vec<JoinHandle<()>>,
    /// Empty between reaps; swapped with the list that workers append to.
    spare: Vec<Completion>,
    in_flight: usize,
    name: String,
    cpus: Option<CpuSet>,
    begin: fn(),
    stack_bytes: usize,
}

impl<J: Job> Pool<J> {
    /// A pool with its `min_threads` running. `wake` must be cheap and must not panic: it makes the owner call
    /// [`take_completions`](Self::take_completions), for instance through an eventfd. The owner itself may be the caller.
    ///
    /// # Errors
    /// [`PoolError`]: invalid limits, or a thread that could not be started.
    pub fn start(settings: PoolSettings, wake: Wake) -> Result<Self, PoolError> {
        Self::start_with_idle_time(settings, wake, IDLE_TIME)
    }

    /// A pool whose threads over the minimum end after `idle_time` without work.
    fn start_with_idle_time(
        settings: PoolSettings,
        wake: Wake,
        idle_time: Duration,
    ) -> Result<Self, PoolError> {
        let PoolSettings {
            min_threads,
            max_threads,
            name,
            cpus,
            begin,
        } = settings;
        check_limits(min_threads, max_threads)?;
        let mut pool = Self {
            shared: Arc::new(PoolShared::new(min_threads, max_threads, wake, idle_time)),
            threads: Vec::new(),
            spare: Vec::new(),
            in_flight: 0,
            name: name.replace('\0', "_"),
            cpus,
            begin,
            stack_bytes: STACK_BYTES,
        };
        pool.start_min_threads()?;
        Ok(pool)
    }

    /// Queues a job. Starts a thread if none is free for it, there are fewer than
    /// `max_threads`, and its disk has not its share of them yet. If there is no thread at all and none can be started, the job completes
    /// with [`Errno::AGAIN`] and is not run.
    pub fn add_job(&mut self, job: J) {
        self.in_flight += 1;
        if self.shared.add_job_and_reserve_thread(job) && self.start_counted_thread().is_err() {
            self.shared.uncount_thread_and_fail_orphans();
        }
    }

    /// Appends all completions to `out` and returns how many. Without any, this is one atomic load.
    pub fn take_completions(&mut self, out: &mut Vec<Completion>) -> usize {
        if !self.has_finished() {
            return 0;
        }
        self.shared.take_completions(&mut self.spare);
        let count = self.spare.len();
        out.append(&mut self.spare);
        self.in_flight -= count;
        count
    }

    /// Whether [`take_completions`](Self::take_completions) would find something: one atomic load, for polling.
    #[must_use]
    pub fn has_finished(&self) -> bool {
        self.shared.has_finished()
    }

    /// Number of jobs that were added and not reaped.
    #[must_use]
    pub fn in_flight_count(&self) -> usize {
        self.in_flight
    }

    /// Changes the limits. Threads over the new maximum end with their job.
    ///
    /// # Errors
    /// [`PoolError`]: invalid limits (then nothing changes), or a thread that could not be started to reach the new minimum
    /// (then the limits hold, and jobs will start it).
    pub fn set_limits(&mut self, min_threads: u32, max_threads: u32) -> Result<(), PoolError> {
        check_limits(min_threads, max_threads)?;
        self.shared.set_limits(min_threads, max_threads);
        self.start_min_threads()
    }

    /// Sets the CPUs of threads that are started from now on.
    pub fn set_new_thread_cpus(&mut self, cpus: CpuSet) {
        self.cpus = Some(cpus);
    }

    /// Number of threads that run or wait for work.
    #[must_use]
    pub fn thread_count(&self) -> u32 {
        self.shared.thread_count()
    }

    /// Starts threads until there are as many as the minimum, and one for each job that may run.
    fn start_min_threads(&mut self) -> Result<(), PoolError> {
        while self.shared.reserve_missing_thread() {
            if let Err(error) = self.start_counted_thread() {
                self.shared.uncount_thread_and_fail_orphans();
                return Err(PoolError::Start {
                    errno: Errno::from_io_error(&error).unwrap_or(Errno::AGAIN),
                });
            }
        }
        Ok(())
    }

    /// Starts a thread that `shared` has already counted.
    fn start_counted_thread(&mut self) -> std::io::Result<()> {
        self.threads.retain(|thread| !thread.is_finished());
        let shared = Arc::clone(&self.shared);
        let (cpus, begin) = (self.cpus, self.begin);
        let thread = thread::Builder::new()
            .name(self.name.clone())
            .stack_size(self.stack_bytes)
            .spawn(move || {
                if let Some(cpus) = &cpus {
                    // If these CPUs do not exist any more, the thread runs on those of the owner.
                    let _ = sched_setaffinity(None, cpus);
                }
                begin();
                worker::run_jobs(&shared);
            })?;
        self.threads.push(thread);
        Ok(())
    }
}

impl<J: Job> Drop for Pool<J> {
    fn drop(&mut self) {
        self.shared.begin_shutdown();
        for thread in self.threads.drain(..) {
            // A worker does not panic: jobs are run inside catch_unwind.
            let _ = thread.join();
        }
    }
}

/// Refuses limits that are out of range or contradict each other.
fn check_limits(min_threads: u32, max_threads: u32) -> Result<(), PoolError> {
    if !(1..=MAX_THREADS_LIMIT).contains(&max_threads) {
        return Err(PoolError::MaxThreads { max_threads });
    }
    if min_threads > max_threads {
        return Err(PoolError::MinOverMax {
            min_threads,
            max_threads,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
