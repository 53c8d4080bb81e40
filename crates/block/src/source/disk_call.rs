//! WorkerJob for a thread that may wait which is no request: a device asks for it beside the requests to its disk.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use engine::Errno;

use crate::disk_file::allocation::Allocation;
use crate::io::Call;
use crate::node::Node;

/// Something to be done for a unit that shows a disk.
pub enum DiskCall {
    /// Which parts of the disk have space?
    Allocations(AllocationQuery),
    /// Something that has nothing to do with the disk.
    Other(Call),
}

/// A question about the space of a disk, and where the answer goes.
#[derive(Clone, Debug)]
pub struct AllocationQuery {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// So many pieces are enough.
    pub most: usize,
    /// The answer.
    pub found: Arc<Mutex<Vec<Allocation>>>,
}

impl fmt::Debug for DiskCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DiskCall::Allocations(query) => query.fmt(f),
            DiskCall::Other(_) => f.write_str("Other"),
        }
    }
}

impl DiskCall {
    /// Does it, for this disk.
    ///
    /// # Errors
    /// The disk's, or of what was to be done.
    pub fn run(self, node: &Node) -> Result<(), Errno> {
        self.run_with(|offset, len, most| node.allocations(offset, len, most))
    }

    /// The same with another function in the place of [`Node::allocations`].
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    pub fn run_with(
        self,
        allocations: impl FnOnce(u64, u64, usize) -> Result<Vec<Allocation>, Errno>,
    ) -> Result<(), Errno> {
        match self {
            DiskCall::Allocations(query) => {
                let found = allocations(query.offset, query.len, query.most)?;
                *query.found.lock().unwrap_or_else(PoisonError::into_inner) = found;
                Ok(())
            }
            DiskCall::Other(call) => call(),
        }
    }
}
