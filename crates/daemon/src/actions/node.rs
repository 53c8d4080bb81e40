//! Nodes from their options.
//!
//! OpenPlan a file may take as long as its disk or its server likes. What a monitor asks for is opened on a thread of
//! its own ([`OpenPlan`]), which touches nothing of what runs.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use block::{Faults, Node, NodeError, NodeOptions};
use options::{BlockdevOptions, Discard, Driver, FileOptions, NodeRef};

use rustix::fs::OFlags;

use crate::disk::aio::AioChoices;
use crate::disk::faults;
use crate::disk::handover::Handover;
use crate::failure::Failure;
use crate::state::node::OpenNode;
use crate::state::objects::Objects;

/// Opens a node when the program starts, and those written in place below it: all of them or none.
pub(crate) fn open(
    options: &BlockdevOptions,
    objects: &mut Objects,
    handover: &mut Handover,
) -> Result<(), Failure> {
    let opened = loop {
        match OpenPlan::plan(options, objects)?.open() {
            Err(error) if handover.waits_for(&error) => {}
            opened => break opened?,
        }
    };
    opened.finish(objects);
    Ok(())
}

/// The same of a node that the process before has opened.
pub(crate) fn restore(options: &BlockdevOptions, objects: &mut Objects) -> Result<(), Failure> {
    let mut opening = OpenPlan::plan(options, objects)?;
    opening.handed = std::mem::take(&mut objects.handed);
    let opened = opening.open_all();
    // Those of nodes to come.
    objects.handed = opening.handed;
    OpenedNodes {
        nodes: opened?,
        aio: opening.aio,
    }
    .finish(objects);
    Ok(())
}

/// A node that is to be opened, with all that this takes.
pub(crate) struct OpenPlan {
    options: BlockdevOptions,
    /// The node that is there already, if it is the one below all.
    below: Option<Arc<Node>>,
    /// What the process before has opened of it.
    handed: HashMap<String, OwnedFd>,
    aio: AioChoices,
}

impl OpenPlan {
    /// What there has to be is there.
    pub fn plan(options: &BlockdevOptions, objects: &Objects) -> Result<Self, Failure> {
        let below = match bottom_node(options) {
            BottomNode::There { below, active } => {
                objects.check_active_below(active, below)?;
                Some(objects.node(below)?)
            }
            BottomNode::File | BottomNode::Null => None,
        };
        Ok(OpenPlan {
            options: options.clone(),
            below,
            handed: HashMap::new(),
            aio: objects.aio.clone(),
        })
    }

    /// Whether a disk is asked, and may be slow to answer.
    pub fn may_block(&self) -> bool {
        matches!(bottom_node(&self.options), BottomNode::File)
    }

    /// The nodes that there will be.
    pub fn names(&self) -> Vec<String> {
        let mut names = vec![self.options.node_name.clone()];
        let mut options = &self.options;
        while let Some((_, NodeRef::Inline(inside))) = options.driver.child() {
            names.push(inside.node_name.clone());
            options = inside;
        }
        names
    }

    /// Opens them.
    pub fn open(mut self) -> Result<OpenedNodes, NodeError> {
        let nodes = self.open_all()?;
        let aio = self.aio;
        Ok(OpenedNodes { nodes, aio })
    }

    fn open_all(&mut self) -> Result<Vec<OpenNode>, NodeError> {
        let mut nodes = Vec::new();
        self.open_below(&self.options.clone(), None, &mut nodes)?;
        Ok(nodes)
    }
}

/// Nodes that were opened, and what was learnt of the host.
pub(crate) struct OpenedNodes {
    nodes: Vec<OpenNode>,
    aio: AioChoices,
}

impl OpenedNodes {
    /// They are there from now on.
    pub fn finish(self, objects: &mut Objects) {
        objects.nodes.extend(self.nodes);
        objects.aio.learn(self.aio);
    }
}

/// What a node and all those that are written into it are made of.
enum BottomNode<'a> {
    File,
    Null,
    /// A node that is there already; whether the one in front of it is active.
    There {
        below: &'a str,
        active: bool,
    },
}

fn bottom_node(options: &BlockdevOptions) -> BottomNode<'_> {
    match options.driver.child() {
        Some((_, NodeRef::Name(below))) => BottomNode::There {
            below,
            active: options.settings.active,
        },
        Some((_, NodeRef::Inline(inside))) => bottom_node(inside),
        None if options.driver.file().is_some() => BottomNode::File,
        None => BottomNode::Null,
    }
}

/// Opens a node of any driver. `below` is the node below it, if it has one; `file` opens a file or device; `faults` are those
/// that a filter had before, if it is opened anew.
pub(crate) fn open_one(
    options: &BlockdevOptions,
    below: Option<&Arc<Node>>,
    faults: Option<&Arc<Faults>>,
    file: impl FnOnce(
        &FileOptions,
        fn(block::FileOptions) -> NodeOptions,
    ) -> Result<Arc<Node>, NodeError>,
) -> Result<Arc<Node>, NodeError> {
    let name = &options.node_name;
    let unmap = options.settings.discard == Discard::Unmap;
    let below = || below.unwrap_or_else(|| unreachable!("a node with a child has one"));
    match &options.driver {
        Driver::File(of_file) => file(of_file, NodeOptions::File),
        Driver::HostDevice(of_device) => file(of_device, NodeOptions::HostDevice),
        Driver::NullCo(null) => {
            let null = NodeOptions::Null(block::NullOptions {
                size: null.size,
                read_zeroes: null.read_zeroes,
                latency_ns: null.latency_ns,
            });
            Node::open(name, options.settings.read_only, &null)
        }
        Driver::Raw { part, .. } => Node::window(
            name,
            below(),
            part.offset,
            part.size,
            options.settings.read_only,
            unmap,
        ),
        Driver::Blkdebug { injected, .. } => {
            let faults = faults
                .cloned()
                .unwrap_or_else(|| Faults::new(faults::rules(injected)));
            Ok(Node::filtered(
                name,
                below(),
                faults,
                options.settings.read_only,
                unmap,
            ))
        }
    }
}

impl OpenPlan {
    /// Opens a node that was written into `parent`, behind those that were written into it.
    fn open_below(
        &mut self,
        options: &BlockdevOptions,
        parent: Option<&str>,
        opened: &mut Vec<OpenNode>,
    ) -> Result<Arc<Node>, NodeError> {
        let below = match options.driver.child() {
            Some((_, child)) => Some(self.below(&options.node_name, child, opened)?),
            None => None,
        };
        let handed = self.handed.remove(&options.node_name);
        let aio = &mut self.aio;
        let node = open_one(options, below.as_ref(), None, |file, driver| match handed {
            None => open_fd(options, file, driver, aio),
            Some(fd) => take_over_fd(options, file, driver, aio, fd),
        })?;
        opened.push(OpenNode {
            options: options.clone(),
            node: node.clone(),
            parent: parent.map(str::to_owned),
            busy: None,
        });
        Ok(node)
    }

    /// The node below `parent`.
    fn below(
        &mut self,
        parent: &str,
        below: &NodeRef,
        opened: &mut Vec<OpenNode>,
    ) -> Result<Arc<Node>, NodeError> {
        match (below, &self.below) {
            (NodeRef::Inline(inside), _) => self.open_below(inside, Some(parent), opened),
            (NodeRef::Name(_), Some(below)) => Ok(below.clone()),
            (NodeRef::Name(_), None) => unreachable!("planned with the node below"),
        }
    }
}

/// Opens a file or block device.
pub(crate) fn open_fd(
    options: &BlockdevOptions,
    file: &FileOptions,
    driver: fn(block::FileOptions) -> NodeOptions,
    aio: &mut AioChoices,
) -> Result<Arc<Node>, NodeError> {
    let mut how = how(
        options,
        file,
        options.settings.cache_direct != Some(false),
        aio,
    );
    let name = &options.node_name;
    let open =
        |how: &block::FileOptions, read_only| Node::open(name, read_only, &driver(how.clone()));
    let mut opened = open(&how, options.settings.read_only);
    if let (Err(NodeError::NoDirectIo { path }), None) = (&opened, options.settings.cache_direct) {
        tracing::warn!(
            node = name, path = %path.display(),
            advice = "move the image to a file system with direct I/O, or set cache.direct=off",
            "this file system has no direct I/O: the page cache is used"
        );
        how.direct = false;
        how.aio = aio.choose(file.aio, &file.filename, false);
        opened = open(&how, options.settings.read_only);
    }
    match opened {
        Err(NodeError::ReadOnlyMedium { .. } | NodeError::Open { .. })
            if options.settings.auto_read_only && !options.settings.read_only =>
        {
            open(&how, true)
        }
        opened => opened,
    }
}

/// Goes on with what the process before has opened, as it has.
fn take_over_fd(
    options: &BlockdevOptions,
    file: &FileOptions,
    driver: fn(block::FileOptions) -> NodeOptions,
    aio: &mut AioChoices,
    fd: OwnedFd,
) -> Result<Arc<Node>, NodeError> {
    let flags = rustix::fs::fcntl_getfl(&fd).map_err(|error| NodeError::Io {
        path: file.filename.clone(),
        what: "fcntl",
        error: error.into(),
    })?;
    let how = how(options, file, flags.contains(OFlags::DIRECT), aio);
    let read_only = flags & OFlags::RWMODE == OFlags::RDONLY;
    Node::take_over(&options.node_name, read_only, &driver(how), fd)
}

/// How it is opened, with or without direct I/O.
fn how(
    options: &BlockdevOptions,
    file: &FileOptions,
    direct: bool,
    aio: &mut AioChoices,
) -> block::FileOptions {
    block::FileOptions {
        path: file.filename.clone(),
        direct,
        no_flush: options.settings.cache_no_flush,
        unmap: options.settings.discard == Discard::Unmap,
        aio: aio.choose(file.aio, &file.filename, direct),
        aio_max_batch: file.aio_max_batch,
        locking: match options.settings.active {
            true => locking(file.locking),
            false => block::Locking::Off,
        },
    }
}

pub(crate) fn locking(locking: options::Locking) -> block::Locking {
    match locking {
        options::Locking::Auto => block::Locking::Auto,
        options::Locking::On => block::Locking::On,
        options::Locking::Off => block::Locking::Off,
    }
}
