//! Locks of byte ranges of a disk, first come, first served, for writes that rewrite blocks.
//!
//! A write smaller than the disk's block reads the block, changes it and writes it back. Two such writes in one block, or
//! one beside a plain write, would undo each other. So on disks where that can happen every write locks its range, rounded
//! to blocks. Drivers that copy or move data need the same.
//!
//! Worker threads block until they have the range; tasks wait. Both are in one queue, first come, first served, so that
//! short ranges cannot starve a long one that they overlap.

use std::future::poll_fn;
use std::ops::Range;
use std::sync::PoisonError;
use std::task::{Context, Poll, Waker};

use crate::sync::{Condvar, Mutex, MutexGuard};

/// Locks of ranges of one file or node.
#[derive(Default)]
pub(crate) struct RangeLock {
    state: Mutex<RangeLockState>,
    released: Condvar,
}

/// The queue of claims, under the lock's mutex.
#[derive(Default)]
struct RangeLockState {
    arrivals: u64,
    /// Ranges that are locked or waited for, in order of arrival.
    claims: Vec<RangeClaim>,
}

/// A range that is locked, or waited for.
struct RangeClaim {
    arrival: u64,
    range: Range<u64>,
    /// The waker of a task that waits.
    waker: Option<Waker>,
}

impl RangeClaim {
    /// Whether both have a byte in common.
    fn overlaps(&self, range: &Range<u64>) -> bool {
        self.range.start < range.end && range.start < self.range.end
    }
}

impl RangeLockState {
    /// The index of a claim in the queue.
    fn claim_index(&self, arrival: u64) -> usize {
        self.claims.partition_point(|claim| claim.arrival < arrival)
    }

    /// Whether an earlier claim overlaps this one.
    fn must_wait(&self, arrival: u64) -> bool {
        let index = self.claim_index(arrival);
        let range = &self.claims[index].range;
        let mut earlier = self.claims[..index].iter();
        earlier.any(|other| other.overlaps(range))
    }
}

/// A locked range, or a place in the queue for one, until dropped.
pub(crate) struct RangeLockTicket<'a> {
    lock: &'a RangeLock,
    arrival: u64,
}

impl RangeLock {
    /// Locks a range, and blocks until no earlier claim overlaps it.
    pub fn lock_blocking(&self, range: Range<u64>) -> RangeLockTicket<'_> {
        let guard = self.claim(range);
        let mut state = self.lock_state();
        while state.must_wait(guard.arrival) {
            let released = self.released.wait(state);
            state = released.unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        guard
    }

    /// Locks a range for a task, on any iothread. The first poll takes a place in the queue; dropping the future leaves it.
    pub async fn lock_async(&self, range: Range<u64>) -> RangeLockTicket<'_> {
        let guard = self.claim(range);
        poll_fn(|cx| guard.poll_locked(cx)).await;
        guard
    }

    /// Takes a place in the queue for a range. The guard leaves it when it is dropped.
    fn claim(&self, range: Range<u64>) -> RangeLockTicket<'_> {
        let mut state = self.lock_state();
        state.arrivals += 1;
        let arrival = state.arrivals;
        state.claims.push(RangeClaim {
            arrival,
            range,
            waker: None,
        });
        RangeLockTicket {
            lock: self,
            arrival,
        }
    }

    /// Nothing that can panic runs under the lock: a poisoned one guards sound data.
    fn lock_state(&self) -> MutexGuard<'_, RangeLockState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RangeLockTicket<'_> {
    /// Ready when no earlier claim overlaps the range; wakes the task then.
    fn poll_locked(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.lock.lock_state();
        if !state.must_wait(self.arrival) {
            return Poll::Ready(());
        }
        let index = state.claim_index(self.arrival);
        state.claims[index].waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for RangeLockTicket<'_> {
    /// Leaves the queue, and wakes the later claims that overlap: they look again whether they have to wait.
    fn drop(&mut self) {
        let mut state = self.lock.lock_state();
        let index = state.claim_index(self.arrival);
        let RangeClaim { range, .. } = state.claims.remove(index);
        let later = state.claims[index..].iter_mut();
        let waiting = later.filter(|claim| claim.overlaps(&range));
        let wakers: Vec<Waker> = waiting.filter_map(|claim| claim.waker.take()).collect();
        drop(state);
        self.lock.released.notify_all();
        wakers.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
impl RangeLock {
    /// Ranges that are locked or waited for.
    pub fn claims(&self) -> usize {
        self.lock_state().claims.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Aio, Op, testing};
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc;

    use test_support::deadline::Deadline;

    #[test]
    fn a_waiting_range_is_not_overtaken() {
        let lock = RangeLock::default();
        let (say, hear) = mpsc::channel();
        std::thread::scope(|scope| {
            let first = lock.lock_blocking(0..10);
            let claim = |range: Range<u64>, name: &'static str| {
                let (lock, say, before) = (&lock, say.clone(), lock.claims());
                scope.spawn(move || {
                    let _guard = lock.lock_blocking(range);
                    say.send(name).unwrap();
                });
                while lock.claims() == before {
                    std::thread::yield_now();
                }
            };
            claim(0..100, "long");
            // It overlaps no locked range, but the long range came first.
            claim(50..60, "short");
            assert!(hear.try_recv().is_err(), "both have to wait");
            drop(first);
        });
        assert_eq!(hear.try_iter().collect::<Vec<_>>(), ["long", "short"]);
    }

    /// Polls a future until it is ready. The models of interleavings find lost wake-ups.
    fn run<T>(future: impl Future<Output = T>) -> T {
        let (mut future, deadline) = (std::pin::pin!(future), Deadline::default());
        let mut cx = Context::from_waker(Waker::noop());
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
                return output;
            }
            deadline.check("it gets the lock");
            std::thread::yield_now();
        }
    }

    /// Tasks of several iothreads, and workers.
    #[test]
    fn tasks_and_threads_exclude_each_other() {
        const BLOCKS: u8 = 8;
        let lock = RangeLock::default();
        let inside = [const { AtomicU32::new(0) }; BLOCKS as usize];
        let enter = |range: &Range<u8>| {
            for block in range.clone() {
                assert_eq!(inside[usize::from(block)].fetch_add(1, Ordering::SeqCst), 0);
            }
            std::thread::yield_now();
            for block in range.clone() {
                inside[usize::from(block)].fetch_sub(1, Ordering::SeqCst);
            }
        };
        std::thread::scope(|scope| {
            for thread in 0..4u8 {
                let (lock, enter) = (&lock, &enter);
                let blocks = (0..10).flat_map(|_| 0..200u8).map(move |round| {
                    let start = round.wrapping_mul(5).wrapping_add(thread * 3) % BLOCKS;
                    start..BLOCKS.min(start + 1 + round % 3)
                });
                scope.spawn(move || {
                    for blocks in blocks {
                        let range = blocks.start.into()..blocks.end.into();
                        let _guard = match thread {
                            0 => lock.lock_blocking(range),
                            _ => run(lock.lock_async(range)),
                        };
                        enter(&blocks);
                    }
                });
            }
        });
        assert_eq!(lock.claims(), 0);
    }

    #[test]
    fn a_task_that_stops_waiting_leaves_the_queue() {
        let lock = RangeLock::default();
        let mut cx = Context::from_waker(Waker::noop());
        let first = lock.lock_blocking(0..10);
        let mut second = Box::pin(lock.lock_async(5..15));
        let mut third = Box::pin(lock.lock_async(12..20));
        assert!(second.as_mut().poll(&mut cx).is_pending());
        assert!(
            third.as_mut().poll(&mut cx).is_pending(),
            "it does not overtake"
        );
        drop(second);
        assert!(third.as_mut().poll(&mut cx).is_ready());
        drop((first, third));
        assert_eq!(lock.claims(), 0);
    }

    /// Iothreads that share a disk use the lock only for partial blocks.
    #[test]
    fn aligned_direct_requests_take_no_lock() {
        // Beside the test program: a file system that direct I/O is known to work on.
        let program = std::env::current_exe().unwrap();
        let folder = tempfile::tempdir_in(program.parent().unwrap()).unwrap();
        for aio in [Aio::Native, Aio::IoUring] {
            let path = folder.path().join("disk");
            let node = testing::file_with_cache(&path, &[0; 1 << 16], aio, true);
            let (mut io, disk) = testing::attached(&node);
            // Unlocked before the end of `io`, which waits for workers, if a request waits for it.
            let file = node.underlying_file().unwrap().clone();
            let ranges = file.block_mode.range_lock();
            let _everything = ranges.lock_blocking(0..u64::MAX);
            for op in [Op::Write, Op::Read, Op::Flush] {
                let len = if op == Op::Flush { 0 } else { 4096 };
                testing::submit(&mut io, &disk, (op, 0), vec![0; len], 1);
                let done = testing::run_until_completed(&mut io, 1);
                assert_eq!(done[0].result, Ok(()), "{aio}: {op:?}");
            }
        }
    }
}
