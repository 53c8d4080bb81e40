//! Pauses of writes: from the SIGKILL of a server to the first write that a later one completes.

use std::fmt;
use std::time::{Duration, Instant};

use crate::guest::Guest;

#[derive(Default)]
pub struct Pauses {
    killed_at: Option<Instant>,
    /// Writes that were answered when a later server began.
    before: Option<u64>,
    lengths: Vec<Duration>,
}

impl Pauses {
    /// A server was killed.
    pub fn begin(&mut self) {
        self.killed_at = Some(Instant::now());
        self.before = None;
    }

    /// The guest has looked for answers while a server runs.
    pub fn observe(&mut self, guest: &Guest) {
        // The first look finds what the killed server has answered.
        let before = *self.before.get_or_insert(guest.writes);
        if guest.writes > before
            && let Some(killed_at) = self.killed_at.take()
        {
            self.lengths.push(killed_at.elapsed());
        }
    }
}

impl fmt::Display for Pauses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut sorted = self.lengths.clone();
        sorted.sort();
        let (Some(longest), Some(median)) = (sorted.last(), sorted.get(sorted.len() / 2)) else {
            return write!(f, "no pauses of writes");
        };
        let count = sorted.len();
        write!(
            f,
            "{count} pauses of writes, median {median:.1?}, longest {longest:.1?}"
        )
    }
}
