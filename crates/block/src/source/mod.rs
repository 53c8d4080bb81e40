//! The interface of devices to their disks: a source attaches to nodes here, learns the room, and submits requests.

mod disk_call;

pub use disk_call::{AllocationQuery, DiskCall};

use std::sync::Arc;

use engine::{Full, Op, Request};

use crate::io::{IoContext, Watch};
use crate::node::{AttachContext, Node};
use crate::route::{AttachedStorage, Route};
use crate::token;

/// A disk that a source is attached to, from [`IoContext::attach`] to [`IoContext::detach`].
pub struct AttachedDisk {
    pub(crate) node: Arc<Node>,
    pub(crate) route: Route,
}

impl AttachedDisk {
    /// The node of the disk.
    #[must_use]
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// The number by which it shares worker threads with other disks: that of its file, if it has one.
    #[must_use]
    pub fn number_among_workers(&self) -> u64 {
        match &self.route.disk {
            Some(target) => target.file.disk_number(),
            // Addresses are larger than the numbers of files.
            None => Arc::as_ptr(&self.node).addr() as u64,
        }
    }

    /// Whether a library with threads of its own carries out the requests: librbd.
    #[must_use]
    pub fn is_served_by_library(&self) -> bool {
        let mut storage = self.route.storage.iter();
        storage.any(
            |storage| matches!(storage, AttachedStorage::Network(disk) if !disk.uses_sockets()),
        )
    }
}

impl IoContext {
    /// Attaches a source of requests to `node` on this iothread, and makes the engines that its requests need. `watch`
    /// gets the descriptor of each engine that is made. The descriptor becomes readable when the engine has completed
    /// something, is to be watched for edges, and never needs to be read.
    ///
    /// An engine that the host does not have is no error: the log has one line with the cause and the remedy, and
    /// another backend carries the requests.
    pub fn attach(&mut self, node: &Arc<Node>, watch: Watch<'_>) -> AttachedDisk {
        let route = AttachContext::new(self, watch).attach_route(node);
        AttachedDisk {
            node: node.clone(),
            route,
        }
    }

    /// Detaches a source, none of whose requests are in flight.
    pub fn detach(&mut self, disk: AttachedDisk) {
        self.detach_route(&disk.route);
    }

    /// Counts a source as one more user of the guest memory that `key` names, which is pinned and registered with the
    /// ring while it has users. Where it cannot be registered, the log says so once, and requests go without.
    ///
    /// # Safety
    /// The `ranges` (address, length) stay mapped until as many users have left.
    pub unsafe fn register_memory_or_count_user(
        &mut self,
        disk: &AttachedDisk,
        key: usize,
        ranges: impl Iterator<Item = (usize, usize)>,
    ) {
        // SAFETY: our caller promises the same.
        unsafe { self.count_user_and_register_if_on_ring(&disk.route, key, ranges) };
    }

    /// How many requests to a disk are certain to be taken before the next reap. A source calls this before it takes a
    /// request out of the guest's ring.
    #[inline]
    #[must_use]
    pub fn room(&self, disk: &AttachedDisk) -> usize {
        self.room_on_route(&disk.route)
    }

    /// Submits a request. [`Full`]: retry after the next completion.
    ///
    /// # Errors
    /// [`Full`]; the request was not taken.
    ///
    /// # Safety
    /// Until the completion with the request's token has been reaped: the disk is kept attached, the list of segments
    /// stays in place and is touched by nothing else, and the memory that it names stays mapped (writable, for reads).
    #[inline]
    pub unsafe fn submit(&mut self, disk: &AttachedDisk, request: Request) -> Result<(), Full> {
        // SAFETY: our caller promises the same.
        unsafe { self.submit_to_handler(disk.route.handler(request.op), request) }
    }
}

/// Access of a device to the disks of its source, by index. A source with one disk has it at index 0.
///
/// Iothreads give [`SourceIo`] to their devices; tests of devices have other implementations.
pub trait DiskIo {
    /// How many requests to a disk are certain to be taken before the next completion. A device calls this before it takes a
    /// request off its ring.
    fn room(&self, disk: u32) -> usize;

    /// Whether merging adjacent requests pays on a disk.
    fn merging_helps(&self, _disk: u32) -> bool {
        true
    }

    /// Submits a request, for which there is room. Its token is a number of the device's, below 2^32.
    ///
    /// # Safety
    /// Until the device gets the completion: the list of segments stays in place and is touched by nothing else, and
    /// the memory that it names stays mapped (writable, for reads).
    unsafe fn submit(&mut self, disk: u32, request: Request);

    /// Runs blocking work on a disk. It completes as a request with this number does.
    fn submit_blocking_call(&mut self, disk: u32, call: DiskCall, number: u32);
}

/// The I/O of one source.
pub struct SourceIo<'a> {
    /// The I/O context of its iothread.
    pub io: &'a mut IoContext,
    /// Its disks. They are kept attached while requests are in flight.
    pub disks: &'a [AttachedDisk],
    /// The index of the source on its iothread.
    pub source_index: u32,
    /// The source's requests in flight, at least those that a backend has.
    pub in_flight: usize,
}

impl DiskIo for SourceIo<'_> {
    #[inline]
    fn room(&self, disk: u32) -> usize {
        let route = &self.disks[disk as usize].route;
        self.io.fair_room_on_route(route, self.in_flight)
    }

    #[inline]
    fn merging_helps(&self, disk: u32) -> bool {
        self.disks[disk as usize].route.merging_helps
    }

    #[inline]
    unsafe fn submit(&mut self, disk: u32, mut request: Request) {
        request.token |= token::new(self.source_index, 0);
        self.in_flight += 1;
        // Others have a length without data.
        let is_transfer = matches!(request.op, Op::Read | Op::Write);
        self.io
            .count_cost(if is_transfer { request.len } else { 0 });
        let handler = self.disks[disk as usize].route.handler(request.op);
        // SAFETY: our caller promises the same, and the disks are kept.
        let taken = unsafe { self.io.submit_to_handler(handler, request) };
        assert!(taken.is_ok(), "a device submits what there is room for");
    }

    fn submit_blocking_call(&mut self, disk: u32, call: DiskCall, number: u32) {
        let disk = &self.disks[disk as usize];
        let (node, disk) = (disk.node.clone(), disk.number_among_workers());
        let token = token::new(self.source_index, number);
        self.io
            .submit_blocking_call(disk, Box::new(move || call.run(&node)), token);
    }
}
