//! The way of a source's requests through the graph of nodes, resolved once.
//!
//! A source (a queue, a host adapter) attaches to its node on its iothread and gets a [`Route`]: for each operation what
//! carries it out. So nothing on a request's way walks the graph or asks what kind of node there is. A route lasts
//! until it is [detached](crate::Engines::detach); the nodes stay open at least as long.

use std::rc::Rc;
use std::sync::Arc;

use engine::uring::File;

use crate::node::{Backing, FdBacking};
use crate::null::NullOptions;
use crate::request::Op;
use crate::task::TaskNode;

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
    /// Keeps the file open. Never a filter or a null disk.
    backing: Arc<Backing>,
    pub carrier: Carrier,
    /// Where the node begins there, in bytes.
    pub base: u64,
    /// The space of zeroes may be given back.
    pub unmap: bool,
}

impl Target {
    /// `None`: the backing is not a file or device.
    pub fn new(backing: &Arc<Backing>, carrier: Carrier, base: u64, unmap: bool) -> Option<Self> {
        let target = Target {
            backing: backing.clone(),
            carrier,
            base,
            unmap,
        };
        matches!(**backing, Backing::Fd(_)).then_some(target)
    }

    /// The same from `offset` on.
    pub fn window(&self, offset: u64) -> Self {
        Target {
            base: self.base + offset,
            ..self.clone()
        }
    }

    /// The file or device.
    #[inline]
    pub fn file(&self) -> &FdBacking {
        match &*self.backing {
            Backing::Fd(file) => file,
            Backing::Null(_) | Backing::Filter(_) => unreachable!("checked when it was made"),
        }
    }
}

/// What carries out an operation of a route.
pub(crate) enum Path {
    /// There is nothing to do: it completes at the next reap.
    Nothing,
    /// A null disk.
    Null(NullOptions),
    /// A backend, without anything in between: no allocation, no lock.
    File(Target),
    /// An async function on the iothread.
    Task(Rc<dyn TaskNode>),
}

/// The way of one source's requests, on the iothread of that.
pub struct Route {
    pub(crate) read: Path,
    pub(crate) write: Path,
    pub(crate) zeroes: Path,
    pub(crate) discard: Path,
    pub(crate) flush: Path,
    /// Files that this route has attached, for the end of it.
    pub(crate) files: Vec<Arc<Backing>>,
    pub(crate) merging_helps: bool,
    /// The disk under all filters; `None`: a null disk.
    pub(crate) disk: Option<Target>,
}

impl Route {
    /// All operations on a null disk.
    pub(crate) fn null(options: NullOptions) -> Self {
        Route {
            read: Path::Null(options),
            write: Path::Null(options),
            zeroes: Path::Null(options),
            discard: Path::Null(options),
            flush: Path::Null(options),
            files: Vec::new(),
            merging_helps: false,
            disk: None,
        }
    }

    /// All operations by a task, which uses these files.
    pub(crate) fn task(
        node: &Rc<dyn TaskNode>,
        files: Vec<Arc<Backing>>,
        disk: Option<Target>,
    ) -> Self {
        Route {
            read: Path::Task(node.clone()),
            write: Path::Task(node.clone()),
            zeroes: Path::Task(node.clone()),
            discard: Path::Task(node.clone()),
            flush: Path::Task(node.clone()),
            files,
            merging_helps: false,
            disk,
        }
    }

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

    /// Whether one request costs less than two for neighbours: not where none costs anything.
    #[inline]
    #[must_use]
    pub fn merging_helps(&self) -> bool {
        self.merging_helps
    }
}
