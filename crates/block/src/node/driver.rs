//! The interface between nodes and their drivers.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use engine::Errno;

use super::{AttachContext, Node};
use crate::disk_file::DiskFile;
use crate::disk_file::allocation::Allocation;
use crate::faults::Faults;
use crate::route::Route;

/// The part of a node that its driver implements.
pub(crate) trait Driver: Send + Sync {
    /// The node that this one shows a part of, or filters, and where it begins there in bytes.
    fn below(&self) -> Option<(&Arc<Node>, u64)> {
        None
    }

    /// The file or device, of a node that is one.
    fn file(&self) -> Option<&Arc<DiskFile>> {
        None
    }

    /// What another process can take over.
    fn opened(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// The faults, of a filter with faults.
    fn faults(&self) -> Option<&Arc<Faults>> {
        None
    }

    /// Which parts of a range have space of their own, in at most `most` pieces, which may be less than all; `None`: it
    /// does not say, and counts as having space. It may wait for the disk.
    ///
    /// # Errors
    /// What the disk says.
    fn allocations(
        &self,
        offset: u64,
        len: u64,
        most: usize,
    ) -> Result<Option<Vec<Allocation>>, Errno> {
        match self.below() {
            Some((below, base)) => below.allocations(offset + base, len, most).map(Some),
            None => Ok(None),
        }
    }

    /// The way of a source's requests to `node`, on the iothread of the source. The nodes below are attached by this.
    fn attach(&self, node: &Node, cx: &mut AttachContext<'_>) -> Route;
}
