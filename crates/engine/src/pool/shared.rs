//! State that the owner and the threads of a worker pool share: jobs, completions, and the count of threads, which decides when
//! threads start and end. A job is *started* when a thread is free for it: one that waits, or one that the owner starts.
//!
//! There are two locks, never held together: one for jobs and counts, one for completions, so that a worker that finishes
//! does not contend with one that takes a job.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::fair_queue::FairQueue;
use super::{Job, Wake};
use crate::{Completion, Errno};

/// What the owner and the workers of a pool share.
pub(super) struct PoolShared<J> {
    work: Mutex<JobQueue<J>>,
    /// Signalled when there is a job, or when idle workers have to check the limits.
    work_available: Condvar,
    finished: Mutex<Vec<Completion>>,
    /// `finished` is not empty; written under its lock.
    has_finished: AtomicBool,
    wake: Wake,
    /// How long a worker over the minimum waits for work before it ends.
    idle_time: Duration,
}

/// Jobs that wait, and the threads for them: how many there are and may be.
struct JobQueue<J> {
    queue: FairQueue<J>,
    /// Jobs that were started and that no thread has taken yet; there is a thread for each.
    started: VecDeque<J>,
    /// Threads that exist or are being started.
    threads: u32,
    /// Threads that wait on `work_available`.
    idle: u32,
    min_threads: u32,
    max_threads: u32,
    closed: bool,
}

impl<J> JobQueue<J> {
    /// Starts the jobs for which there is, or may be, a free thread.
    fn start_jobs(&mut self) {
        while let Some(job) = self.queue.start_next() {
            self.started.push_back(job);
        }
    }

    /// Whether another thread is needed: for the minimum, or for a job that was started.
    fn needs_another_thread(&self) -> bool {
        self.threads < self.min_threads.max(self.queue.running_count())
    }
}

impl<J: Job> PoolShared<J> {
    /// State of a pool without threads and jobs.
    pub(super) fn new(min_threads: u32, max_threads: u32, wake: Wake, idle_time: Duration) -> Self {
        Self {
            work: Mutex::new(JobQueue {
                queue: FairQueue::new(max_threads),
                started: VecDeque::new(),
                threads: 0,
                idle: 0,
                min_threads,
                max_threads,
                closed: false,
            }),
            work_available: Condvar::new(),
            finished: Mutex::new(Vec::new()),
            has_finished: AtomicBool::new(false),
            wake,
            idle_time,
        }
    }

    /// Owner: queues a job. True if a thread must be started for it; it is counted already.
    pub(super) fn add_job_and_reserve_thread(&self, job: J) -> bool {
        let mut work = lock(&self.work);
        work.queue.push(job.disk(), job);
        work.start_jobs();
        let must_start = work.needs_another_thread();
        if must_start {
            work.threads += 1;
        } else if work.idle > 0 && !work.started.is_empty() {
            drop(work);
            self.work_available.notify_one();
        }
        must_start
    }

    /// Owner: true if a thread must be started, to have the minimum or for a job; it is counted already.
    pub(super) fn reserve_missing_thread(&self) -> bool {
        let mut work = lock(&self.work);
        let must_start = work.needs_another_thread();
        work.threads += u32::from(must_start);
        must_start
    }

    /// Owner: the thread that was counted could not be started. If there is no other thread, the jobs complete with `EAGAIN`.
    pub(super) fn uncount_thread_and_fail_orphans(&self) {
        let mut work = lock(&self.work);
        work.threads -= 1;
        let mut orphans = VecDeque::new();
        if work.threads == 0 {
            orphans.append(&mut work.started);
            orphans.extend(work.queue.remove_all());
        }
        drop(work);
        for job in orphans {
            self.add_completion(Completion {
                token: job.token(),
                result: Err(Errno::AGAIN),
            });
        }
    }

    /// Owner: changes the limits, and wakes idle workers, which end if there are too many.
    pub(super) fn set_limits(&self, min_threads: u32, max_threads: u32) {
        let mut work = lock(&self.work);
        work.min_threads = min_threads;
        work.max_threads = max_threads;
        work.queue.set_max_running(max_threads);
        work.start_jobs();
        drop(work);
        self.work_available.notify_all();
    }

    /// Number of threads that exist or are being started.
    pub(super) fn thread_count(&self) -> u32 {
        lock(&self.work).threads
    }

    #[cfg(test)]
    pub(super) fn all_idle(&self) -> bool {
        let work = lock(&self.work);
        work.idle == work.threads
    }

    #[cfg(test)]
    pub(super) fn finished_len(&self) -> usize {
        lock(&self.finished).len()
    }

    /// Owner: workers end when all jobs are done.
    pub(super) fn begin_shutdown(&self) {
        lock(&self.work).closed = true;
        self.work_available.notify_all();
    }

    /// Worker: waits for the next job, after one for the disk `ended`. `None`: the worker is no longer counted, and must end.
    pub(super) fn next_job(&self, ended: Option<u64>) -> Option<J> {
        let mut work = lock(&self.work);
        if let Some(disk) = ended {
            work.queue.end_one(disk);
            work.start_jobs();
        }
        let idle_end = Instant::now() + self.idle_time;
        loop {
            // Before taking a job: at least one other thread takes the jobs that are left.
            if work.threads > work.max_threads {
                break;
            }
            if let Some(job) = work.started.pop_front() {
                return Some(job);
            }
            let left = idle_end.saturating_duration_since(Instant::now());
            if work.closed || (left.is_zero() && work.threads > work.min_threads) {
                break;
            }
            work.idle += 1;
            // A worker of the minimum does not wake up by itself.
            work = if work.threads > work.min_threads {
                let wait = self.work_available.wait_timeout(work, left);
                wait.unwrap_or_else(PoisonError::into_inner).0
            } else {
                self.work_available
                    .wait(work)
                    .unwrap_or_else(PoisonError::into_inner)
            };
            work.idle -= 1;
        }
        work.threads -= 1;
        let has_jobs_left = !work.started.is_empty();
        drop(work);
        if has_jobs_left {
            // This thread may have consumed the signal for that job.
            self.work_available.notify_one();
        }
        None
    }

    /// Adds a completion for the owner.
    pub(super) fn add_completion(&self, completion: Completion) {
        let mut finished = lock(&self.finished);
        let was_empty = finished.is_empty();
        finished.push(completion);
        self.has_finished.store(true, Ordering::Release);
        drop(finished);
        if was_empty {
            (self.wake)();
        }
    }

    pub(super) fn has_finished(&self) -> bool {
        self.has_finished.load(Ordering::Acquire)
    }

    /// Owner: swaps the list of completions with an empty one.
    pub(super) fn take_completions(&self, spare: &mut Vec<Completion>) {
        let mut finished = lock(&self.finished);
        self.has_finished.store(false, Ordering::Relaxed);
        std::mem::swap(&mut *finished, spare);
    }
}

impl<J> fmt::Debug for PoolShared<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let work = lock(&self.work);
        f.debug_struct("PoolShared")
            .field("running", &work.queue.running_count())
            .field("threads", &work.threads)
            .field("idle", &work.idle)
            .field("min_threads", &work.min_threads)
            .field("max_threads", &work.max_threads)
            .finish_non_exhaustive()
    }
}

/// Nothing that can panic runs under these locks, so a poisoned one guards sound data.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
