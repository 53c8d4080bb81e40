//! Routes: what carries out each operation of a source's requests, resolved once.
//!
//! A source (a queue, a host adapter) attaches to its node on its iothread and gets a [`Route`]. So no request walks the
//! graph of nodes or checks what kind a node is. A route lasts until it is [detached](crate::IoContext::detach); the nodes
//! stay open at least as long.
//!
//! Gates, marks, zero detection and tasks are part of a route, and tasks send requests down routes: these modules are one idea.

pub(crate) mod gate;
pub(crate) mod mark;
pub(crate) mod part;
pub(crate) mod task;
pub(crate) mod zero_detection;

use std::rc::Rc;
use std::sync::Arc;

use engine::uring::File;

use self::gate::GatedRoute;
use self::mark::MarkedRoute;
use self::task::TaskNode;
use crate::disk_file::DiskFile;
use crate::lease::Lease;
use crate::network::{NetworkDisk, NetworkTarget};
use crate::null_disk::NullOptions;
use engine::{Op, Request};

/// The backend that carries the requests of a file on an iothread; worker threads carry those that it cannot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    /// None: worker threads carry all requests.
    Workers,
    /// Linux AIO.
    Native,
    /// The ring, with its name for the file.
    Ring(File),
}

/// A part of a file or block device, and the backend that carries its requests on this iothread.
#[derive(Clone)]
pub(crate) struct FileTarget {
    /// The file, which stays open while the target exists.
    pub file: Arc<DiskFile>,
    pub carrier: Carrier,
    /// Where the node begins there, in bytes.
    pub base: u64,
    /// Writing zeroes may free space.
    pub unmap: bool,
}

impl FileTarget {
    /// Translates a request to the node into one at its offset in the file.
    #[inline]
    pub fn to_file_request(&self, request: &Request) -> Request {
        Request {
            op: request.op.limit_unmap(self.unmap),
            fua: request.fua && !self.file.no_flush,
            offset: request.offset + self.base,
            ..*request
        }
    }
}

/// What carries out one operation (reads, say) of a route.
#[derive(Clone)]
pub(crate) enum OpHandler {
    /// Nothing to do: the request completes at the next reap.
    Nothing,
    /// A null disk.
    Null(NullOptions),
    /// A backend, without anything in between: no allocation, no lock.
    File(FileTarget),
    /// A lookup that finds without I/O where the data lies, or else a task.
    #[cfg_attr(not(test), expect(dead_code, reason = "no driver with a mapping yet"))]
    Lookup(Rc<dyn MappedNode>),
    /// A disk behind a network: an image of a Ceph cluster, an export of an NBD server.
    Network(NetworkTarget),
    /// An async function on the iothread.
    Task(Rc<dyn TaskNode>),
    /// The route behind a gate.
    Gated(Rc<GatedRoute>),
    /// A route with a filter that lets most requests pass.
    Filtered(Rc<dyn Filter>),
    /// A route whose requests set marks.
    Marked(Rc<MarkedRoute>),
}

/// What a [`MappedNode`] knows without I/O: where the data of a whole request lies.
#[cfg_attr(not(test), expect(dead_code, reason = "no driver with a mapping yet"))]
pub(crate) enum LookupResult {
    /// At this offset of the target.
    At(u64, Lease),
    /// Nowhere: the range reads as zeroes.
    Zeroes,
}

/// The fast path of a node that maps its bytes to places in a file: finds, without I/O, where a request goes. The node's
/// task (it is a [`TaskNode`] as well) runs the requests that this declines.
pub(crate) trait MappedNode: TaskNode {
    /// Finds where a read or write goes in the file. `None` declines: finding it takes I/O, or the request is not in one
    /// piece of the file. The lease is taken while the mapping is locked.
    fn lookup(&self, request: &Request) -> Option<LookupResult>;

    /// The file to which the node maps its bytes.
    fn target(&self) -> &FileTarget;
}

/// A filter in front of a route that does nothing for most requests: those pass without a task.
pub(crate) trait Filter: TaskNode {
    /// Whether a request is for the route below alone.
    fn lets_pass(&self, request: &Request) -> bool;

    /// The route below.
    fn below(&self) -> &Route;
}

/// A disk that a route has attached to the iothread.
#[derive(Clone)]
pub(crate) enum AttachedStorage {
    /// A file or block device.
    File(Arc<DiskFile>),
    /// A disk behind a network.
    Network(Arc<dyn NetworkDisk>),
}

/// What carries out each operation of one source's requests, on the source's iothread.
#[derive(Clone)]
pub(crate) struct Route {
    pub(crate) read: OpHandler,
    pub(crate) write: OpHandler,
    pub(crate) zeroes: OpHandler,
    pub(crate) discard: OpHandler,
    pub(crate) flush: OpHandler,
    /// Files and disks that this route has attached, to be detached with it.
    pub(crate) storage: Vec<AttachedStorage>,
    /// Whether merging adjacent requests pays: not on a null disk, where no request costs anything.
    pub(crate) merging_helps: bool,
    /// The file or device under all filters; `None`: another disk.
    pub(crate) disk: Option<FileTarget>,
}

impl Route {
    /// The route with such handlers for all that changes data. A discard that does nothing stays so.
    pub(crate) fn with_changes_by(self, handler: impl Fn() -> OpHandler) -> Route {
        Route {
            write: handler(),
            zeroes: handler(),
            discard: match self.discard {
                OpHandler::Nothing => OpHandler::Nothing,
                _ => handler(),
            },
            ..self
        }
    }

    /// What carries out requests with this operation.
    #[inline]
    pub(crate) fn handler(&self, op: Op) -> &OpHandler {
        match op {
            Op::Read => &self.read,
            Op::Write => &self.write,
            Op::WriteZeroes { .. } => &self.zeroes,
            Op::Discard => &self.discard,
            Op::Flush => &self.flush,
        }
    }

    /// Bytes of buffer memory that tasks on this route need for a request.
    pub(crate) fn needed_buffer_bytes(&self, request: &Request) -> usize {
        match self.handler(request.op) {
            OpHandler::Nothing
            | OpHandler::Null(_)
            | OpHandler::File(_)
            | OpHandler::Network(_) => 0,
            OpHandler::Lookup(node) => node.needed_buffer_bytes(request),
            OpHandler::Task(node) => node.needed_buffer_bytes(request),
            OpHandler::Gated(gated) => gated.below.needed_buffer_bytes(request),
            OpHandler::Filtered(filter) => filter.needed_buffer_bytes(request),
            OpHandler::Marked(marked) => marked.below.needed_buffer_bytes(request),
        }
    }
}
