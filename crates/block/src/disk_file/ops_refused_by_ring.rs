//! The set of operations that a ring has refused for a file, so that worker threads carry them from then on.

use std::sync::atomic::{AtomicU8, Ordering};

use engine::Op;

/// Operations that the ring has refused for a file. Any iothread adds to them.
#[derive(Default)]
pub(crate) struct OpsRefusedByRing(AtomicU8);

impl OpsRefusedByRing {
    /// The bit of an operation; 0: a ring can always carry it.
    fn bit(op: Op) -> u8 {
        match op {
            Op::WriteZeroes { unmap: true } => 1,
            Op::WriteZeroes { unmap: false } => 2,
            Op::Discard => 4,
            Op::Flush | Op::Read | Op::Write => 0,
        }
    }

    /// Whether the ring has refused the operation.
    pub fn contains(&self, op: Op) -> bool {
        self.0.load(Ordering::Relaxed) & Self::bit(op) != 0
    }

    /// Notes that the ring has refused the operation.
    pub fn insert(&self, op: Op) {
        self.0.fetch_or(Self::bit(op), Ordering::Relaxed);
    }
}
