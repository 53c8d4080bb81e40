//! Requests that nobody works on, and that wait for the clock: those to null disks with a latency, and those that
//! a filter holds back, possibly for ever.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::sync::Arc;

use crate::faults::{Fate, Faults};
use crate::node::Node;
use crate::request::Request;

/// Due when it is released, and not before.
pub(crate) const NEVER_NS: u64 = u64::MAX;

/// A request that a filter holds back.
pub(crate) struct Held {
    /// Where it goes.
    pub below: Arc<Node>,
    pub request: Request,
    /// What becomes of it.
    pub fate: Fate,
    /// Whoever releases it, and whether they have since it came.
    pub faults: Arc<Faults>,
    pub edition: u64,
}

impl Held {
    fn is_released(&self) -> bool {
        self.faults.edition() != self.edition
    }
}

/// What a request waits for the clock to become.
pub(crate) enum Due {
    /// The request to a null disk with this token is complete.
    Done(u64),
    /// This one goes on.
    Held(Box<Held>),
}

struct Entry {
    deadline_ns: u64,
    /// Of two that are due at the same time the first comes first.
    arrival: u64,
    due: Due,
}

impl Entry {
    fn key(&self) -> (u64, u64) {
        (self.deadline_ns, self.arrival)
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

/// The requests of one iothread that wait.
pub(crate) struct Waiting {
    /// Soonest first.
    entries: BinaryHeap<Reverse<Entry>>,
    arrivals: u64,
    /// How many of them are to null disks.
    null_disks: usize,
}

impl Waiting {
    /// With room for so many before it grows.
    pub fn new(capacity: usize) -> Self {
        Waiting {
            entries: BinaryHeap::with_capacity(capacity),
            arrivals: 0,
            null_disks: 0,
        }
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// How many are to null disks.
    #[inline]
    pub fn null_disks(&self) -> usize {
        self.null_disks
    }

    /// One more, until `deadline_ns`.
    pub fn push(&mut self, deadline_ns: u64, due: Due) {
        self.null_disks += usize::from(matches!(due, Due::Done(_)));
        self.arrivals += 1;
        self.entries.push(Reverse(Entry {
            deadline_ns,
            arrival: self.arrivals,
            due,
        }));
    }

    /// The next one that is due.
    pub fn take_due(&mut self, now_ns: u64) -> Option<Due> {
        let Reverse(next) = self.entries.peek()?;
        if next.deadline_ns > now_ns {
            return None;
        }
        let Reverse(Entry { due, .. }) = self.entries.pop()?;
        self.null_disks -= usize::from(matches!(due, Due::Done(_)));
        Some(due)
    }

    /// What somebody has released is due.
    pub fn look_for_released(&mut self) {
        self.release(|deadline_ns, held| deadline_ns == NEVER_NS && held.is_released());
    }

    /// All that is held back of the queue at this place is due.
    pub fn release_place(&mut self, place: u32) {
        self.release(|_, held| held.request.token >> 32 == u64::from(place));
    }

    fn release(&mut self, is_released: impl Fn(u64, &Held) -> bool) {
        let released = |entry: &Entry| matches!(&entry.due, Due::Held(held) if is_released(entry.deadline_ns, held));
        if !self.entries.iter().any(|Reverse(entry)| released(entry)) {
            return;
        }
        let mut entries = std::mem::take(&mut self.entries).into_vec();
        for Reverse(entry) in &mut entries {
            if released(entry) {
                entry.deadline_ns = 0;
            }
        }
        self.entries = entries.into();
    }

    /// When the next one is due by the clock.
    #[inline]
    pub fn next_deadline_ns(&self) -> Option<u64> {
        let Reverse(next) = self.entries.peek()?;
        Some(next.deadline_ns).filter(|deadline_ns| *deadline_ns != NEVER_NS)
    }
}
