//! TaskTimers of async tasks on an iothread, sorted by deadline.

use std::collections::BTreeMap;
use std::task::Waker;

/// The key of a timer. TaskTimers are sorted by deadline, and then by the order in which they were added.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TimerKey {
    deadline_ns: u64,
    arrival: u64,
}

/// The timers of an iothread's async tasks, soonest first.
#[derive(Default)]
pub(super) struct TaskTimers {
    timers: BTreeMap<TimerKey, Waker>,
    arrivals: u64,
}

impl TaskTimers {
    /// Adds a timer that wakes a task at `deadline_ns`, unless it is [removed](Self::remove) before.
    pub fn add(&mut self, deadline_ns: u64, waker: Waker) -> TimerKey {
        self.arrivals += 1;
        let key = TimerKey {
            deadline_ns,
            arrival: self.arrivals,
        };
        self.timers.insert(key, waker);
        key
    }

    /// Removes a timer. It may have expired.
    pub fn remove(&mut self, key: TimerKey) {
        self.timers.remove(&key);
    }

    /// The deadline of the next timer.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        let (key, _) = self.timers.first_key_value()?;
        Some(key.deadline_ns)
    }

    /// Takes the next timer that is due.
    pub fn take_next_due(&mut self, now_ns: u64) -> Option<Waker> {
        self.next_deadline_ns().filter(|due| *due <= now_ns)?;
        self.timers.pop_first().map(|(_, waker)| waker)
    }
}
