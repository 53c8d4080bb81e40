//! Blocking work of a device on its disk that is no request: a query of allocated parts, or any function.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use engine::Errno;

use crate::disk_file::allocation::Allocation;
use crate::io::BlockingCall;
use crate::node::Node;

/// Blocking work of a unit on its disk.
pub enum DiskCall {
    /// Query of the allocated parts of the disk.
    Allocations(AllocationQuery),
    /// The same query, and other work if it has succeeded.
    AllocationsAnd(AllocationQuery, BlockingCall),
    /// Work that does not use the disk.
    Other(BlockingCall),
}

/// Query of the allocation of a range, with the place for its result.
#[derive(Clone, Debug)]
pub struct AllocationQuery {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Most pieces of the result.
    pub most: usize,
    /// The result.
    pub found: Arc<Mutex<Vec<Allocation>>>,
}

impl fmt::Debug for DiskCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DiskCall::Allocations(query) | DiskCall::AllocationsAnd(query, _) => query.fmt(f),
            DiskCall::Other(_) => f.write_str("Other"),
        }
    }
}

impl AllocationQuery {
    fn run(
        self,
        allocations: impl FnOnce(u64, u64, usize) -> Result<Vec<Allocation>, Errno>,
    ) -> Result<(), Errno> {
        let mut found = allocations(self.offset, self.len, self.most)?;
        Allocation::cut(&mut found, self.len);
        *self.found.lock().unwrap_or_else(PoisonError::into_inner) = found;
        Ok(())
    }
}

impl DiskCall {
    /// Runs the work on a disk.
    ///
    /// # Errors
    /// The error of the disk, or of the other work.
    pub fn run(self, node: &Node) -> Result<(), Errno> {
        self.run_with_allocations(|offset, len, most| node.allocations(offset, len, most))
    }

    /// Runs the work with another function in place of [`Node::allocations`].
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    pub fn run_with_allocations(
        self,
        allocations: impl FnOnce(u64, u64, usize) -> Result<Vec<Allocation>, Errno>,
    ) -> Result<(), Errno> {
        match self {
            DiskCall::Allocations(query) => query.run(allocations),
            DiskCall::AllocationsAnd(query, call) => {
                query.run(allocations)?;
                call()
            }
            DiskCall::Other(call) => call(),
        }
    }
}
