//! State shared by the owner and the workers of a pool: the jobs on the way in, the completions on the
//! way out, and the count of threads, on which all decisions about starting and ending rest.
//!
//! Two locks, never held together: jobs and counts under one, completions under the other, so
//! that a worker which finishes does not meet one that looks for work.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Job, Wake};
use crate::{Completion, Errno};

pub(super) struct Shared<J> {
    work: Mutex<Work<J>>,
    /// Signalled when there is a job, or when an idle worker should look at the limits.
    work_available: Condvar,
    finished: Mutex<Vec<Completion>>,
    /// `finished` is not empty; written under its lock.
    has_finished: AtomicBool,
    wake: Wake,
    /// How long a worker over the minimum waits for work before it ends.
    idle_time: Duration,
}

struct Work<J> {
    jobs: VecDeque<J>,
    /// Threads that exist, or are about to.
    threads: u32,
    /// Of those, the ones that wait on `look`.
    idle: u32,
    min_threads: u32,
    max_threads: u32,
    closed: bool,
}

impl<J> Work<J> {
    /// There are more jobs than idle threads to take them, and room for another thread. Counted
    /// against the queue, because an idle thread that was signalled is idle until it runs.
    fn wants_thread(&self) -> bool {
        self.jobs.len() > self.idle as usize && self.threads < self.max_threads
    }
}

impl<J: Job> Shared<J> {
    pub(super) fn new(min_threads: u32, max_threads: u32, wake: Wake, idle_time: Duration) -> Self {
        Self {
            work: Mutex::new(Work {
                jobs: VecDeque::new(),
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
    pub(super) fn queue(&self, job: J) -> bool {
        let mut work = lock(&self.work);
        work.jobs.push_back(job);
        let start = work.wants_thread();
        if start {
            work.threads += 1;
        } else if work.idle > 0 {
            drop(work);
            self.work_available.notify_one();
        }
        start
    }

    /// Owner: true if a thread must be started to have the minimum; it is counted already.
    pub(super) fn reserve_min(&self) -> bool {
        let mut work = lock(&self.work);
        let start = work.threads < work.min_threads;
        work.threads += u32::from(start);
        start
    }

    /// Owner: the thread that was counted could not be started. Jobs that nobody is left to run
    /// complete with `EAGAIN`.
    pub(super) fn start_failed(&self) {
        let mut work = lock(&self.work);
        work.threads -= 1;
        let orphans = if work.threads == 0 {
            std::mem::take(&mut work.jobs)
        } else {
            VecDeque::new()
        };
        drop(work);
        for job in orphans {
            self.finish(Completion {
                token: job.token(),
                result: Err(Errno::AGAIN),
            });
        }
    }

    pub(super) fn set_limits(&self, min_threads: u32, max_threads: u32) {
        let mut work = lock(&self.work);
        work.min_threads = min_threads;
        work.max_threads = max_threads;
        drop(work);
        self.work_available.notify_all();
    }

    pub(super) fn threads(&self) -> u32 {
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
    pub(super) fn close(&self) {
        lock(&self.work).closed = true;
        self.work_available.notify_all();
    }

    /// Worker: the next job, after waiting for one. `None`: the worker is no longer counted, and
    /// must end.
    pub(super) fn next_job(&self) -> Option<J> {
        let mut work = lock(&self.work);
        let give_up = Instant::now() + self.idle_time;
        loop {
            // Before looking for a job: the others, at least one of them, take what is left.
            if work.threads > work.max_threads {
                break;
            }
            if let Some(job) = work.jobs.pop_front() {
                return Some(job);
            }
            let left = give_up.saturating_duration_since(Instant::now());
            if work.closed || (left.is_zero() && work.threads > work.min_threads) {
                break;
            }
            work.idle += 1;
            // A worker of the minimum has no reason to wake up by itself.
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
        let pass_on = !work.jobs.is_empty();
        drop(work);
        if pass_on {
            // The signal for that job may have been spent on this thread.
            self.work_available.notify_one();
        }
        None
    }

    /// Hands a completion to the owner.
    pub(super) fn finish(&self, completion: Completion) {
        let mut finished = lock(&self.finished);
        let first = finished.is_empty();
        finished.push(completion);
        self.has_finished.store(true, Ordering::Release);
        drop(finished);
        if first {
            (self.wake)();
        }
    }

    pub(super) fn has_finished(&self) -> bool {
        self.has_finished.load(Ordering::Acquire)
    }

    /// Owner: swaps the list of completions with an empty one.
    pub(super) fn take_finished(&self, spare: &mut Vec<Completion>) {
        let mut finished = lock(&self.finished);
        self.has_finished.store(false, Ordering::Relaxed);
        std::mem::swap(&mut *finished, spare);
    }
}

impl<J> fmt::Debug for Shared<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let work = lock(&self.work);
        f.debug_struct("Shared")
            .field("jobs", &work.jobs.len())
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
