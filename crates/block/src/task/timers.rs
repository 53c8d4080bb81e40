//! Tasks that wait for the clock.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::task::Waker;

struct Timer {
    deadline_ns: u64,
    /// Of two that are due at the same time the first comes first.
    arrival: u64,
    waker: Waker,
}

impl Timer {
    fn key(&self) -> (u64, u64) {
        (self.deadline_ns, self.arrival)
    }
}

impl PartialEq for Timer {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Timer {}

impl PartialOrd for Timer {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Timer {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

/// The timers of an iothread's tasks, soonest first. One whose task has ended meanwhile wakes a task for nothing.
#[derive(Default)]
pub(super) struct Timers {
    heap: BinaryHeap<Reverse<Timer>>,
    arrivals: u64,
}

impl Timers {
    /// Wakes that task at `deadline_ns`, on the clock of the loop's timers.
    pub fn add(&mut self, deadline_ns: u64, waker: Waker) {
        self.arrivals += 1;
        self.heap.push(Reverse(Timer {
            deadline_ns,
            arrival: self.arrivals,
            waker,
        }));
    }

    /// When the next one is due.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse(timer)| timer.deadline_ns)
    }

    /// The next one that is due.
    pub fn take_due(&mut self, now_ns: u64) -> Option<Waker> {
        self.next_deadline_ns().filter(|due| *due <= now_ns)?;
        self.heap.pop().map(|Reverse(timer)| timer.waker)
    }
}
