//! The disks of a source of requests, as its device sees them.

use std::sync::Arc;

use engine::Request;

use super::{DiskCall, IoContext, token};
use crate::node::Node;
use crate::route::Route;

/// A disk that a source uses on its iothread, from [`IoContext::attach`] to [`IoContext::detach`].
pub struct AttachedDisk {
    pub(crate) node: Arc<Node>,
    pub(crate) route: Route,
}

impl AttachedDisk {
    /// The disk.
    #[must_use]
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }
}

/// The disks of a source, by their places among them. A source that has one disk has it at place 0.
///
/// [`SourceIo`] is what an iothread gives to its devices; other implementations are for tests of devices.
pub trait DiskIo {
    /// How many requests this disk takes for sure before the next completion. A device asks before it takes a request off
    /// its ring.
    fn room(&self, disk: u32) -> usize;

    /// Whether one request costs less than two for neighbours.
    fn merging_helps(&self, _disk: u32) -> bool {
        true
    }

    /// Takes a request; there was room. Its token is the device's number of it, below 2^32.
    ///
    /// # Safety
    /// Until the device gets the completion: the list of segments stays in place and is touched by nothing else, and
    /// the memory that it names stays mapped (writable, for reads).
    unsafe fn submit(&mut self, disk: u32, request: Request);

    /// Has something done with a disk on a thread that may wait. It completes as a request with this number does.
    fn call(&mut self, disk: u32, call: DiskCall, number: u32);
}

/// The I/O of one source.
pub struct SourceIo<'a> {
    /// Of its iothread.
    pub io: &'a mut IoContext,
    /// Its disks. They are kept attached while requests are in flight.
    pub disks: &'a [AttachedDisk],
    /// The place of the source on its iothread.
    pub place: u32,
}

impl DiskIo for SourceIo<'_> {
    #[inline]
    fn room(&self, disk: u32) -> usize {
        self.io.room(&self.disks[disk as usize])
    }

    #[inline]
    fn merging_helps(&self, disk: u32) -> bool {
        self.disks[disk as usize].route.merging_helps
    }

    #[inline]
    unsafe fn submit(&mut self, disk: u32, mut request: Request) {
        request.token |= token::new(self.place, 0);
        let path = self.disks[disk as usize].route.path(request.op);
        // SAFETY: our caller promises the same, and the disks are kept.
        let taken = unsafe { self.io.submit_on(path, request) };
        assert!(taken.is_ok(), "a device submits what there is room for");
    }

    fn call(&mut self, disk: u32, call: DiskCall, number: u32) {
        let node = self.disks[disk as usize].node.clone();
        let token = token::new(self.place, number);
        self.io.call(Box::new(move || call.run(&node)), token);
    }
}
