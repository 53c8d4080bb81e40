//! The way of a source's requests through the graph of nodes, resolved once.
//!
//! A source (a queue, a host adapter) attaches to its node on its iothread and gets a [`Route`]: for each operation what
//! carries it out. So nothing on a request's way walks the graph or asks what kind of node there is. A route lasts
//! until it is [detached](crate::IoContext::detach); the nodes stay open at least as long.

pub(crate) mod gate;
pub(crate) mod mark;
pub(crate) mod task;

use std::rc::Rc;
use std::sync::Arc;

use engine::uring::File;

use self::gate::Gated;
use self::mark::Marked;
use self::task::TaskNode;
use crate::disk_file::DiskFile;
use crate::lease::Lease;
use crate::null_disk::NullOptions;
use engine::{Op, Request};

/// Which backend carries what it can of a file's requests; the worker threads do the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    /// None: worker threads do it all.
    Workers,
    /// Linux AIO.
    Native,
    /// The ring, which knows the file as this.
    Ring(File),
}

/// A place on a file or block device, and how this iothread reaches it.
#[derive(Clone)]
pub(crate) struct Target {
    /// Kept open by this.
    pub file: Arc<DiskFile>,
    pub carrier: Carrier,
    /// Where the node begins there, in bytes.
    pub base: u64,
    /// The space of zeroes may be given back.
    pub unmap: bool,
}

impl Target {
    /// A request to the node, as it is at its offset in the file.
    #[inline]
    pub fn request(&self, request: &Request) -> Request {
        let op = match request.op {
            Op::WriteZeroes { unmap } => Op::WriteZeroes {
                unmap: unmap && self.unmap,
            },
            op => op,
        };
        Request {
            op,
            fua: request.fua && !self.file.no_flush,
            offset: request.offset + self.base,
            ..*request
        }
    }
}

/// What carries out an operation of a route.
#[derive(Clone)]
pub(crate) enum Path {
    /// There is nothing to do: it completes at the next reap.
    Nothing,
    /// A null disk.
    Null(NullOptions),
    /// A backend, without anything in between: no allocation, no lock.
    File(Target),
    /// A place that is found without I/O, or else an async function.
    #[cfg_attr(not(test), expect(dead_code, reason = "no driver with a mapping yet"))]
    Lookup(Rc<dyn Lookup>),
    /// An async function on the iothread.
    Task(Rc<dyn TaskNode>),
    /// What another route says, once a gate lets the request pass.
    Gated(Rc<Gated>),
    /// What another route says, and a mark of what may have changed.
    Marked(Rc<Marked>),
}

/// Where all of a request is found.
#[cfg_attr(not(test), expect(dead_code, reason = "no driver with a mapping yet"))]
pub(crate) enum LookupResult {
    /// At this offset of the target.
    At(u64, Lease),
    /// Nowhere: it reads as zeroes.
    Zeroes,
}

/// A node with a mapping to places in a file. Its task is for what the lookup declines.
pub(crate) trait Lookup: TaskNode {
    /// Where a read or write is found; `None`: not without I/O, or not in one piece. The lease is taken while the mapping
    /// is locked.
    fn lookup(&self, request: &Request) -> Option<LookupResult>;

    /// What it finds is there.
    fn target(&self) -> &Target;
}

/// The way of one source's requests, on the iothread of that.
#[derive(Clone)]
pub(crate) struct Route {
    pub(crate) read: Path,
    pub(crate) write: Path,
    pub(crate) zeroes: Path,
    pub(crate) discard: Path,
    pub(crate) flush: Path,
    /// Files that this route has attached, for the end of it.
    pub(crate) files: Vec<Arc<DiskFile>>,
    /// Whether one request costs less than two for neighbours: not where none costs anything.
    pub(crate) merging_helps: bool,
    /// The disk under all filters; `None`: a null disk.
    pub(crate) disk: Option<Target>,
}

impl Route {
    #[inline]
    pub(crate) fn path(&self, op: Op) -> &Path {
        match op {
            Op::Read => &self.read,
            Op::Write => &self.write,
            Op::WriteZeroes { .. } => &self.zeroes,
            Op::Discard => &self.discard,
            Op::Flush => &self.flush,
        }
    }

    /// Memory that tasks on the way of a request need, beside that of the request.
    pub(crate) fn buffer_bytes(&self, request: &Request) -> usize {
        match self.path(request.op) {
            Path::Nothing | Path::Null(_) | Path::File(_) => 0,
            Path::Lookup(node) => node.buffer_bytes(request),
            Path::Task(node) => node.buffer_bytes(request),
            Path::Gated(gated) => gated.below.buffer_bytes(request),
            Path::Marked(marked) => marked.below.buffer_bytes(request),
        }
    }
}
