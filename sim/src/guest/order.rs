//! In what order requests come to the kernel: what was in flight when a daemon was killed comes again in the order in which
//! it first came.

use std::collections::{BTreeMap, BTreeSet};

/// The order of a guest's requests.
#[derive(Debug, Default)]
pub struct Order {
    /// They have come in another order than they were taken, so that nothing is known any more.
    pub is_lost: bool,
    /// When each came for the first time.
    first: BTreeMap<u32, u64>,
    next: u64,
    /// Those that have come to this daemon.
    here: BTreeSet<u32>,
    /// Of each queue: the latest of those that came again.
    again: BTreeMap<usize, u64>,
}

impl Order {
    /// Another daemon goes on.
    pub fn begin(&mut self) {
        self.here.clear();
        self.again.clear();
    }

    /// A request has come.
    ///
    /// # Errors
    /// It comes behind one that had come later.
    pub fn came(&mut self, id: u32, queue: usize) -> Result<(), String> {
        if self.is_lost || !self.here.insert(id) {
            // What is left of it, or another try.
            return Ok(());
        }
        self.next += 1;
        let first = *self.first.entry(id).or_insert(self.next);
        if first == self.next {
            return Ok(());
        }
        match self.again.insert(queue, first) {
            Some(before) if before > first => Err(format!(
                "#{id} comes again, behind a request that had come later"
            )),
            _ => Ok(()),
        }
    }
}
