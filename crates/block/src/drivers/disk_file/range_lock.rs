//! Ranges that are being rewritten.
//!
//! A write smaller than the disk's block is done by reading the block, changing it and writing it
//! back. Two of them in one block, or one beside a plain write, would undo each other, so on disks
//! where that can happen every write holds its range, rounded to blocks. Only worker threads wait
//! here. Who came first goes first: a long range is not starved by short ones that overlap it.

use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

#[derive(Default)]
pub(crate) struct RangeLock {
    state: Mutex<State>,
    released: Condvar,
}

#[derive(Default)]
struct State {
    arrivals: u64,
    /// Held and waited for alike, in order of arrival.
    claims: Vec<Claim>,
}

struct Claim {
    arrival: u64,
    range: Range<u64>,
}

/// Holds its range until dropped.
pub(crate) struct RangeGuard<'a> {
    lock: &'a RangeLock,
    arrival: u64,
}

impl RangeLock {
    /// Waits until nobody who came before wants a byte of the range.
    pub fn lock(&self, range: Range<u64>) -> RangeGuard<'_> {
        let mut state = self.state();
        state.arrivals += 1;
        let arrival = state.arrivals;
        state.claims.push(Claim {
            arrival,
            range: range.clone(),
        });
        let must_wait = |state: &mut State| {
            let earlier = state.claims.iter().take_while(|it| it.arrival < arrival);
            let mut ranges = earlier.map(|claim| &claim.range);
            ranges.any(|other| other.start < range.end && range.start < other.end)
        };
        drop(
            self.released
                .wait_while(state, must_wait)
                .unwrap_or_else(PoisonError::into_inner),
        );
        RangeGuard {
            lock: self,
            arrival,
        }
    }

    /// Nothing that can panic runs under the lock: a poisoned one guards sound data.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        // `retain` keeps the order.
        self.lock
            .state()
            .claims
            .retain(|claim| claim.arrival != self.arrival);
        self.lock.released.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Aio, EngineSettings, Engines, FileOptions, Locking, Node, NodeOptions, Op, Request,
    };
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc;

    impl RangeLock {
        fn claims(&self) -> usize {
            self.state().claims.len()
        }
    }

    #[test]
    fn overlapping_ranges_exclude_each_other() {
        let lock = RangeLock::default();
        let inside = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let (lock, inside) = (&lock, &inside);
                scope.spawn(move || {
                    for round in 0..500u64 {
                        // All of them contain byte 100.
                        let _guard = lock.lock(90 + thread..101 + round % 7);
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert_eq!(lock.claims(), 0);
    }

    #[test]
    fn neighbours_do_not_wait() {
        let lock = RangeLock::default();
        let _first = lock.lock(0..10);
        let _second = lock.lock(10..20);
    }

    #[test]
    fn who_waits_is_not_overtaken() {
        let lock = RangeLock::default();
        let (say, hear) = mpsc::channel();
        std::thread::scope(|scope| {
            let first = lock.lock(0..10);
            let claim = |range: Range<u64>, name: &'static str| {
                let (lock, say, before) = (&lock, say.clone(), lock.claims());
                scope.spawn(move || {
                    let _guard = lock.lock(range);
                    say.send(name).unwrap();
                });
                while lock.claims() == before {
                    std::thread::yield_now();
                }
            };
            claim(0..100, "long");
            // Nobody holds a byte of it, but the long range came first.
            claim(50..60, "short");
            assert!(hear.try_recv().is_err(), "both have to wait");
            drop(first);
        });
        assert_eq!(hear.try_iter().collect::<Vec<_>>(), ["long", "short"]);
    }

    /// Iothreads that share a disk meet here only for parts of blocks.
    #[test]
    fn aligned_direct_requests_do_not_ask() {
        for aio in [Aio::Native, Aio::IoUring] {
            aligned_direct_requests_do_not_ask_with(aio);
        }
    }

    fn aligned_direct_requests_do_not_ask_with(aio: Aio) {
        // Beside the test program: a file system that direct I/O is known to work on.
        let folder = std::env::current_exe().unwrap();
        let folder = tempfile::tempdir_in(folder.parent().unwrap()).unwrap();
        let path = folder.path().join("disk");
        std::fs::write(&path, vec![0; 1 << 16]).unwrap();
        let options = NodeOptions::File(FileOptions {
            path,
            direct: true,
            no_flush: false,
            unmap: true,
            aio,
            aio_max_batch: 0,
            locking: Locking::Off,
        });
        let node = Node::open("disk", false, &options).unwrap();
        let everything = node.file().unwrap().ranges.lock(0..u64::MAX);
        let mut memory = vec![0u8; 3 * 4096];
        let start = memory.as_mut_ptr().align_offset(4096);
        let mut iov = libc::iovec {
            iov_base: memory[start..].as_mut_ptr().cast(),
            iov_len: 4096,
        };
        let mut engines =
            Engines::new(EngineSettings::default(), std::sync::Arc::new(|| ())).unwrap();
        let route = engines.attach(&node, &mut |_| Ok(()));
        for (token, op) in (0..).zip([Op::Write, Op::Read, Op::Flush]) {
            let (len, iov_count) = if op == Op::Flush { (0, 0) } else { (4096, 1) };
            let request = Request {
                op,
                fua: false,
                offset: 0,
                len,
                iov: &raw mut iov,
                iov_count,
                token,
            };
            // SAFETY: the loop below waits for its end; list, memory and node are kept beyond it.
            unsafe { engines.submit(&route, request) }.unwrap();
            engines.flush_batch();
            let (begin, mut done) = (std::time::Instant::now(), Vec::new());
            while done.is_empty() && begin.elapsed().as_secs() < 60 {
                engines.reap(&mut done);
                std::thread::yield_now();
            }
            // Before anything ends the test: the end of the engines waits for workers.
            if done.is_empty() {
                drop(everything);
                panic!("{aio}: {op:?} waits for the lock");
            }
            assert_eq!(done[0].result, Ok(()));
        }
    }
}
