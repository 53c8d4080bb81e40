//! Jobs that wait for a thread, by disk: the next free thread goes to the disk that runs the fewest jobs.
//!
//! A job that runs cannot be interrupted, and a discard may run for seconds. So no disk gets more than its [fair
//! share](crate::fair_share) of the threads, and another one finds a free thread however many jobs wait. Among disks that run
//! equally many, the one that got a thread last goes last. Jobs of one disk start first in, first out.

use std::collections::VecDeque;

use crate::fair_share::fair_room;

/// The jobs of one disk.
struct DiskJobs<J> {
    disk: u64,
    running: u32,
    waiting: VecDeque<J>,
}

/// The waiting jobs of a pool, and the count of those that run.
pub(super) struct FairQueue<J> {
    /// Disks with jobs, in turn: the last one got a thread last.
    disks: Vec<DiskJobs<J>>,
    /// Lists of disks that have no jobs any more; used again, so that a disk with one job at a time allocates nothing.
    spare: Vec<VecDeque<J>>,
    running: u32,
    max_running: u32,
}

impl<J> FairQueue<J> {
    /// An empty queue for so many threads.
    pub fn new(max_running: u32) -> Self {
        FairQueue {
            disks: Vec::new(),
            spare: Vec::new(),
            running: 0,
            max_running,
        }
    }

    /// Changes the number of threads.
    pub fn set_max_running(&mut self, max_running: u32) {
        self.max_running = max_running;
    }

    /// Number of jobs that were started and have not ended.
    pub fn running_count(&self) -> u32 {
        self.running
    }

    /// Adds a job.
    pub fn push(&mut self, disk: u64, job: J) {
        if let Some(jobs) = self.disks.iter_mut().find(|jobs| jobs.disk == disk) {
            return jobs.waiting.push_back(job);
        }
        let mut waiting = self.spare.pop().unwrap_or_default();
        waiting.push_back(job);
        self.disks.push(DiskJobs {
            disk,
            running: 0,
            waiting,
        });
    }

    /// Starts the next job, if a thread is free for it.
    pub fn start_next(&mut self) -> Option<J> {
        let candidates = self.disks.iter().enumerate();
        let candidates = candidates.filter(|(_, jobs)| !jobs.waiting.is_empty());
        let (index, jobs) = candidates.min_by_key(|(_, jobs)| jobs.running)?;
        let free = self.max_running.saturating_sub(self.running);
        if fair_room(free as usize, jobs.running as usize) == 0 {
            return None;
        }
        let mut jobs = self.disks.remove(index);
        let job = jobs.waiting.pop_front();
        jobs.running += 1;
        self.running += 1;
        self.disks.push(jobs);
        job
    }

    /// Counts a job of a disk that has ended.
    pub fn end_one(&mut self, disk: u64) {
        let Some(index) = self.disks.iter().position(|jobs| jobs.disk == disk) else {
            debug_assert!(false, "a job that was not started has ended");
            return;
        };
        self.running -= 1;
        let jobs = &mut self.disks[index];
        jobs.running -= 1;
        if jobs.running == 0 && jobs.waiting.is_empty() {
            self.spare.push(self.disks.remove(index).waiting);
        }
    }

    /// Removes all jobs that wait, and forgets those that were started: there is no thread.
    pub fn remove_all(&mut self) -> impl Iterator<Item = J> + use<J> {
        self.running = 0;
        std::mem::take(&mut self.disks)
            .into_iter()
            .flat_map(|jobs| jobs.waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::FairQueue;

    /// A queue with these jobs, each named by its disk and number.
    fn queue(threads: u32, jobs: &[(u64, u32)]) -> FairQueue<(u64, u32)> {
        let mut queue = FairQueue::new(threads);
        for &(disk, count) in jobs {
            (0..count).for_each(|number| queue.push(disk, (disk, number)));
        }
        queue
    }

    /// Starts all jobs that may be.
    fn start_all(queue: &mut FairQueue<(u64, u32)>) -> Vec<(u64, u32)> {
        std::iter::from_fn(|| queue.start_next()).collect()
    }

    #[test]
    fn a_single_thread_takes_turns_among_disks_and_jobs_of_a_disk_stay_in_order() {
        let mut queue = queue(1, &[(7, 3), (8, 2), (9, 1)]);
        let mut order = Vec::new();
        while let Some((disk, number)) = queue.start_next() {
            assert_eq!(queue.start_next(), None, "the thread is busy");
            order.push((disk, number));
            queue.end_one(disk);
        }
        assert_eq!(order, [(7, 0), (8, 0), (9, 0), (7, 1), (8, 1), (7, 2)]);
        assert_eq!(queue.running_count(), 0);
    }

    #[test]
    fn a_disk_that_comes_later_gets_as_many_threads_as_the_first() {
        let mut queue = queue(64, &[(1, 200)]);
        let mut running = start_all(&mut queue);
        (0..200).for_each(|number| queue.push(2, (2, number)));
        running.extend(start_all(&mut queue));
        // All jobs take equally long.
        for _ in 0..200 {
            let (disk, _) = running.remove(0);
            queue.end_one(disk);
            running.extend(start_all(&mut queue));
        }
        let first = running.iter().filter(|(disk, _)| *disk == 1).count();
        let second = running.len() - first;
        assert!(first.abs_diff(second) <= 1, "{first} and {second}");
    }

    /// A worker that ends a job takes one: a second one would have no thread.
    #[test]
    fn the_end_of_one_job_starts_one_at_most() {
        for threads in 1..20 {
            let mut queue = queue(threads, &[(1, 40), (2, 3), (3, 1), (4, 20), (5, 1)]);
            let mut running = start_all(&mut queue);
            let mut step = 0;
            while !running.is_empty() {
                step += 1;
                let (disk, _) = running.swap_remove((step * 7) % running.len());
                queue.end_one(disk);
                let started = start_all(&mut queue);
                assert!(started.len() <= 1, "{threads} threads: {started:?}");
                running.extend(started);
            }
            assert_eq!(queue.running_count(), 0);
            assert!(queue.remove_all().next().is_none(), "every job ran");
        }
    }
}
