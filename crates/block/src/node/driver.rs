//! The trait `Driver`: what a kind of node implements, above all the route of a source's requests to such a node.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use engine::Errno;

use super::{AttachContext, Node};
use crate::disk_file::DiskFile;
use crate::disk_file::allocation::Allocation;
use crate::faults::Faults;
use crate::rbd::RbdDisk;
use crate::route::Route;
use crate::throttle::ThrottleMember;

/// A driver: the part of a node that differs between kinds of nodes.
pub(crate) trait Driver: Send + Sync {
    /// The node below a filter or window, and the byte of it at which this node begins.
    fn below(&self) -> Option<(&Arc<Node>, u64)> {
        None
    }

    /// The file or device of a node that is one.
    fn file(&self) -> Option<&Arc<DiskFile>> {
        None
    }

    /// The image of a Ceph cluster of a node that is one.
    fn image(&self) -> Option<&Arc<RbdDisk>> {
        None
    }

    /// The export of an NBD server of a node that is one.
    fn nbd(&self) -> Option<&Arc<nbd::client::Disk>> {
        None
    }

    /// The descriptor that another process can take over.
    fn fd_for_handover(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// The faults of a filter that injects them.
    fn faults(&self) -> Option<&Arc<Faults>> {
        None
    }

    /// The membership in a throttle group of a filter that throttles.
    fn throttle(&self) -> Option<&Arc<ThrottleMember>> {
        None
    }

    /// The target of the backup of which the node is a snapshot.
    fn snapshot_target(&self) -> Option<&Arc<Node>> {
        None
    }

    /// As [`Node::allocations`]; `None`: the disk does not report them.
    ///
    /// # Errors
    /// The disk's.
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

    /// The route of a source's requests to `node`, on the source's iothread. This attaches the nodes below.
    fn attach_route(&self, node: &Node, cx: &mut AttachContext<'_>) -> Route;
}
