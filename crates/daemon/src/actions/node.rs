//! Opening of nodes at the start of the daemon, by `blockdev-add`, and from the old process's descriptors in a live upgrade.
//!
//! Opening a file may block for as long as its disk or its server does not answer. A job of its own therefore opens the nodes of a
//! `blockdev-add` ([`OpenPlan`]); it does not touch the state.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use ::nbd::client::Negotiated;
use block::{Faults, Node, NodeError, NodeOptions};
use options::{BlockdevOptions, DetectZeroes, Discard, Driver, FileOptions, NbdOptions, NodeRef};

use rustix::fs::OFlags;

use crate::actions::nbd;
use crate::actions::rbd::ImageOpener;
use crate::control::MainThread;
use crate::disk::aio::AioChoices;
use crate::disk::bitmap_file::BitmapFile;
use crate::disk::faults;
use crate::disk::lock_retry::ImageLockRetry;
use crate::disk::locking::to_block_locking;
use crate::error::BoxError;
use crate::state::DaemonObjects;
use crate::state::node::OpenNode;
use crate::state::throttle_group::GroupsOfNewNodes;
use crate::state::tls::TlsOfNewNode;

/// A signal to stop has arrived while a node of the command line was being opened.
#[derive(Debug, thiserror::Error)]
#[error("stopped by a signal while node '{node}' was being opened")]
pub(crate) struct StoppedAtStart {
    node: String,
}

/// Time between two looks for a signal to stop while a cluster is waited for.
const STOP_POLL: Duration = Duration::from_millis(50);

/// Opens a node of the command line, with the nodes that are defined inside it: all of them or none. [`StoppedAtStart`] if a
/// signal to stop arrives while it waits for a cluster.
pub(crate) fn open_and_add_node_retrying_locks(
    options: &BlockdevOptions,
    control: &mut MainThread,
    lock_retry: &mut ImageLockRetry,
) -> Result<(), BoxError> {
    let opened = loop {
        let plan = OpenPlan::check_and_plan(options, &control.objects)?;
        let opened = match find_bottom_node(options) {
            BottomNode::Rbd(_) | BottomNode::Nbd(_) => open_unless_stopped(plan, control)?,
            _ => plan.open(),
        };
        match opened {
            Err(error) if lock_retry.wait_before_retry(&error) => {}
            opened => break opened?,
        }
    };
    opened.add_to_objects(&mut control.objects);
    Ok(())
}

/// Opens an image on a thread, which is abandoned when a signal to stop arrives: its cluster may never answer.
fn open_unless_stopped(
    plan: OpenPlan,
    control: &MainThread,
) -> Result<Result<OpenedNodes, NodeError>, BoxError> {
    let node = plan.options.node_name.clone();
    let (sender, opened) = channel();
    let thread = thread::Builder::new().name(format!("open {node}"));
    // Sending fails only if the daemon is to stop.
    thread.spawn(move || drop(sender.send(plan.open())))?;
    loop {
        match opened.recv_timeout(STOP_POLL) {
            Ok(opened) => return Ok(opened),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(format!("opening node '{node}' panicked: see the log").into());
            }
            Err(RecvTimeoutError::Timeout) if control.has_received_stop_signal() => {
                return Err(StoppedAtStart { node }.into());
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

/// Restores a node from the descriptors of the old process in a live upgrade.
pub(crate) fn restore_and_add_node(
    options: &BlockdevOptions,
    objects: &mut DaemonObjects,
) -> Result<(), BoxError> {
    let mut plan = OpenPlan::check_and_plan(options, objects)?;
    plan.handover_fds = std::mem::take(&mut objects.handover_fds);
    plan.handover_exports = std::mem::take(&mut objects.handover_exports);
    let opened = plan.open_all();
    // The rest belongs to other nodes.
    objects.handover_fds = plan.handover_fds;
    objects.handover_exports = plan.handover_exports;
    OpenedNodes {
        nodes: opened?,
        aio: plan.aio,
    }
    .add_to_objects(objects);
    Ok(())
}

/// A node to open, with everything that this needs, so that it can be done on any thread.
pub(crate) struct OpenPlan {
    options: BlockdevOptions,
    /// The existing node at the bottom, if its options name one.
    below: Option<Arc<Node>>,
    images: ImageOpener,
    groups: GroupsOfNewNodes,
    tls: TlsOfNewNode,
    /// Descriptors of a live upgrade, by node.
    handover_fds: HashMap<String, OwnedFd>,
    /// The same of exports of NBD servers.
    handover_exports: HashMap<String, Negotiated>,
    aio: AioChoices,
}

impl OpenPlan {
    /// Plans to open this node. Checks that the nodes it refers to exist.
    pub fn check_and_plan(
        options: &BlockdevOptions,
        objects: &DaemonObjects,
    ) -> Result<Self, BoxError> {
        let mut bottom = options;
        let below = match find_bottom_node(options) {
            BottomNode::Existing { below, active } => {
                objects.check_active_node_not_above_inactive(active, below)?;
                Some(objects.require_unreserved_node(below)?)
            }
            BottomNode::Rbd(options) => {
                bottom = options;
                None
            }
            BottomNode::Nbd(export) => {
                nbd::check_may_connect(export)?;
                None
            }
            BottomNode::File | BottomNode::Null => None,
        };
        Ok(OpenPlan {
            options: options.clone(),
            below,
            images: ImageOpener::prepare(bottom, objects)?,
            groups: GroupsOfNewNodes::find(options, objects)?,
            tls: TlsOfNewNode::find(options, objects)?,
            handover_fds: HashMap::new(),
            handover_exports: HashMap::new(),
            aio: objects.aio_choices.clone(),
        })
    }

    /// Whether a file, a device or a disk behind a network is opened, which may block.
    pub fn may_block(&self) -> bool {
        let bottom = find_bottom_node(&self.options);
        matches!(
            bottom,
            BottomNode::File | BottomNode::Nbd(_) | BottomNode::Rbd(_)
        )
    }

    /// Names of all nodes that it opens.
    pub fn node_names(&self) -> Vec<String> {
        let mut names = vec![self.options.node_name.clone()];
        let mut options = &self.options;
        while let Some((_, NodeRef::Inline(inside))) = options.driver.child_with_key() {
            names.push(inside.node_name.clone());
            options = inside;
        }
        names
    }

    /// Opens the nodes.
    pub fn open(mut self) -> Result<OpenedNodes, NodeError> {
        let nodes = self.open_all()?;
        let aio = self.aio;
        Ok(OpenedNodes { nodes, aio })
    }

    /// Opens the nodes, each after the one below it.
    fn open_all(&mut self) -> Result<Vec<OpenNode>, NodeError> {
        let mut nodes = Vec::new();
        self.open_with_nodes_below(&self.options.clone(), None, &mut nodes)?;
        Ok(nodes)
    }
}

/// Nodes that were opened, and the backends that were probed for them.
pub(crate) struct OpenedNodes {
    nodes: Vec<OpenNode>,
    aio: AioChoices,
}

impl OpenedNodes {
    /// Adds the nodes to the state.
    pub fn add_to_objects(self, objects: &mut DaemonObjects) {
        objects.nodes.extend(self.nodes);
        objects.aio_choices.add_results_of_copy(self.aio);
    }
}

/// The bottom of a chain of nodes that are defined inside each other.
enum BottomNode<'a> {
    File,
    Nbd(&'a NbdOptions),
    Rbd(&'a BlockdevOptions),
    Null,
    /// An existing node; `active` is that of the node above it.
    Existing {
        below: &'a str,
        active: bool,
    },
}

/// Follows the options of nodes inside each other down to the last.
fn find_bottom_node(options: &BlockdevOptions) -> BottomNode<'_> {
    match options.driver.child_with_key() {
        Some((_, NodeRef::Name(below))) => BottomNode::Existing {
            below,
            active: options.settings.active,
        },
        Some((_, NodeRef::Inline(inside))) => find_bottom_node(inside),
        None => match &options.driver {
            Driver::File(_) | Driver::HostDevice(_) => BottomNode::File,
            Driver::Nbd(export) => BottomNode::Nbd(export),
            Driver::Rbd(_) => BottomNode::Rbd(options),
            _ => BottomNode::Null,
        },
    }
}

/// Opens a node of any driver. `below` is the node below it, if it has one; `images` opens images; `groups` has its throttle
/// group, `tls` encrypts its connections; `open_file` opens a file or device; `old` is the node if it is being reopened, whose
/// faults or membership it keeps.
pub(crate) fn open_node(
    options: &BlockdevOptions,
    below: Option<&Arc<Node>>,
    images: &ImageOpener,
    groups: &GroupsOfNewNodes,
    tls: &TlsOfNewNode,
    old: Option<&Node>,
    open_file: impl FnOnce(
        &FileOptions,
        fn(block::FileOptions) -> NodeOptions,
    ) -> Result<Arc<Node>, NodeError>,
) -> Result<Arc<Node>, NodeError> {
    let name = &options.node_name;
    let unmap = options.settings.discard == Discard::Unmap;
    let below = || below.unwrap_or_else(|| unreachable!("a node with a child has one"));
    let node = match &options.driver {
        Driver::File(file) => open_file(file, NodeOptions::File),
        Driver::HostDevice(file) => open_file(file, NodeOptions::HostDevice),
        Driver::Nbd(export) => nbd::open_export(options, export, tls, old),
        Driver::Rbd(image) => images.open(options, image),
        Driver::NullCo(null) => {
            let null = NodeOptions::Null(block::NullOptions {
                size: null.size,
                read_zeroes: null.read_zeroes,
                latency_ns: null.latency_ns,
            });
            Node::open(name, options.settings.read_only, &null)
        }
        Driver::Raw { part, .. } => Node::new_window(
            name,
            below(),
            part.offset,
            part.size,
            options.settings.read_only,
            unmap,
        ),
        Driver::Throttle { member, .. } => {
            let group = groups.group(&member.throttle_group);
            let read_only = options.settings.read_only;
            let old_member = old.and_then(Node::throttle).cloned();
            let node = match old_member.filter(|member| Arc::ptr_eq(member.group(), group)) {
                Some(member) => {
                    Node::new_throttle_of_member(name, below(), member, read_only, unmap)
                }
                None => Node::new_throttle(name, below(), group, read_only, unmap),
            };
            Ok(node)
        }
        Driver::Blkdebug { injected, .. } => {
            let faults = old
                .and_then(Node::faults)
                .cloned()
                .unwrap_or_else(|| Faults::new(faults::to_block_fault_rules(injected)));
            Ok(Node::new_filter(
                name,
                below(),
                faults,
                options.settings.read_only,
                unmap,
            ))
        }
        Driver::SnapshotAccess { .. } => match old {
            Some(_) => Err(NodeError::ReopenedSnapshot { node: name.clone() }),
            None => Node::new_snapshot(name, below()),
        },
    }?;
    match options.settings.detect_zeroes {
        DetectZeroes::Off => {}
        DetectZeroes::On => node.set_detect_zeroes(block::DetectZeroes::On),
        DetectZeroes::Unmap => node.set_detect_zeroes(block::DetectZeroes::Unmap),
    }
    Ok(node)
}

impl OpenPlan {
    /// Opens a node after the nodes that are defined inside it. It is defined inside `parent` itself, if there is one.
    fn open_with_nodes_below(
        &mut self,
        options: &BlockdevOptions,
        parent: Option<&str>,
        opened: &mut Vec<OpenNode>,
    ) -> Result<Arc<Node>, NodeError> {
        let below = match options.driver.child_with_key() {
            Some((_, child)) => Some(self.open_or_find_below(&options.node_name, child, opened)?),
            None => None,
        };
        let handover_fd = self.handover_fds.remove(&options.node_name);
        let is_handed_over = handover_fd.is_some();
        let handover_export = self.handover_exports.remove(&options.node_name);
        let aio = &mut self.aio;
        let node = match (&options.driver, handover_export) {
            (Driver::Nbd(export), Some(opened)) => {
                nbd::restore_export(options, export, &self.tls, opened)?
            }
            _ => open_node(
                options,
                below.as_ref(),
                &self.images,
                &self.groups,
                &self.tls,
                None,
                |file, driver| match handover_fd {
                    None => open_file_node_with_fallbacks(options, file, driver, aio),
                    Some(fd) => restore_file_node(options, file, driver, aio, fd),
                },
            )?,
        };
        opened.push(OpenNode {
            options: options.clone(),
            bitmap_file: open_bitmap_file(options, &node, is_handed_over)?,
            node: node.clone(),
            parent: parent.map(str::to_owned),
            reserved_by: None,
        });
        Ok(node)
    }

    /// Opens the node below `parent`, unless it exists already, and returns it.
    fn open_or_find_below(
        &mut self,
        parent: &str,
        below: &NodeRef,
        opened: &mut Vec<OpenNode>,
    ) -> Result<Arc<Node>, NodeError> {
        match (below, &self.below) {
            (NodeRef::Inline(inside), _) => {
                self.open_with_nodes_below(inside, Some(parent), opened)
            }
            (NodeRef::Name(_), Some(below)) => Ok(below.clone()),
            (NodeRef::Name(_), None) => unreachable!("planned with the node below"),
        }
    }
}

/// Opens the file of a node's persistent bitmaps, if it has one, and restores them.
fn open_bitmap_file(
    options: &BlockdevOptions,
    node: &Node,
    is_handed_over: bool,
) -> Result<Option<Arc<BitmapFile>>, NodeError> {
    let file = options.driver.file_options();
    let Some(path) = file.and_then(|file| file.bitmap_file.as_deref()) else {
        return Ok(None);
    };
    let file = match is_handed_over {
        true => BitmapFile::new_awaiting_handover(path),
        false => BitmapFile::open_and_restore(path, node).map_err(|reason| NodeError::Bitmaps {
            node: options.node_name.clone(),
            reason,
        })?,
    };
    Ok(Some(Arc::new(file)))
}

/// Opens a file or block device, with the fallbacks that its options allow: the page cache, and read-only.
pub(crate) fn open_file_node_with_fallbacks(
    options: &BlockdevOptions,
    file: &FileOptions,
    driver: fn(block::FileOptions) -> NodeOptions,
    aio: &mut AioChoices,
) -> Result<Arc<Node>, NodeError> {
    let mut file_options = block_file_options_choosing_aio(
        options,
        file,
        options.settings.cache_direct != Some(false),
        aio,
    );
    let name = &options.node_name;
    let open_with = |file_options: &block::FileOptions, read_only| {
        Node::open(name, read_only, &driver(file_options.clone()))
    };
    let mut opened = open_with(&file_options, options.settings.read_only);
    if let (Err(NodeError::NoDirectIo { path }), None) = (&opened, options.settings.cache_direct) {
        tracing::warn!(
            node = name, path = %path.display(),
            advice = "move the image to a file system with direct I/O, or set cache.direct=off",
            "this file system does not support direct I/O: using the page cache"
        );
        file_options.direct = false;
        file_options.aio = aio.choose_and_log_if_new(file.aio, &file.filename, false);
        opened = open_with(&file_options, options.settings.read_only);
    }
    match opened {
        Err(NodeError::ReadOnlyMedium { .. } | NodeError::Open { .. })
            if options.settings.auto_read_only && !options.settings.read_only =>
        {
            open_with(&file_options, true)
        }
        opened => opened,
    }
}

/// Makes a node of a file that the old process has opened in a live upgrade, with the flags that it was opened with.
fn restore_file_node(
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
    let file_options =
        block_file_options_choosing_aio(options, file, flags.contains(OFlags::DIRECT), aio);
    let read_only = flags & OFlags::RWMODE == OFlags::RDONLY;
    Node::open_handed_over_fd(&options.node_name, read_only, &driver(file_options), fd)
}

/// Options for opening a file, with or without direct I/O.
fn block_file_options_choosing_aio(
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
        aio: aio.choose_and_log_if_new(file.aio, &file.filename, direct),
        aio_max_batch: file.aio_max_batch,
        locking: match options.settings.active {
            true => to_block_locking(file.locking),
            false => block::Locking::Off,
        },
        force_share: options.settings.force_share,
    }
}
