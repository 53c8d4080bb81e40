//! Nodes that are opened anew with other options, while guests use them.
//!
//! Everything that can fail comes first: the new openings are made beside the old ones, and take over their
//! image locks. Then they take the old ones' places, one export after the other: its queues finish what they have
//! taken, and go on with the new one.

use std::sync::Arc;

use block::{Node, NodeOptions};
use options::{BlockdevOptions, Discard, Driver, FileOptions, Locking, NodeRef};

use crate::Failure;
use crate::node::{self, locking};
use crate::objects::{Export, Objects};
use crate::shown::{FrontEnds, Shown, ShownDisk};

/// Nodes that are opened anew: all of them or none.
pub(crate) struct Reopen {
    renewed: Vec<Renewed>,
    /// All nodes of their disks: nothing else changes them until it is done.
    reserved: Vec<String>,
}

/// A node that takes the place of one.
struct Renewed {
    options: BlockdevOptions,
    old: Arc<Node>,
    node: Arc<Node>,
    exports: Vec<Shows>,
}

/// An export that shows it to guests.
struct Shows {
    node: Shown,
    /// None any more of one that ends.
    front_ends: Option<FrontEnds>,
}

/// Makes the new openings, and reserves the nodes. All options are as given; what a node's options do not say has its
/// default.
pub(crate) fn plan(objects: &mut Objects, wanted: &[BlockdevOptions]) -> Result<Reopen, Failure> {
    for options in wanted {
        if let Some(open) = objects.find_node(&options.node_name) {
            open.check_free()?;
            check_unchanged(&open.options.driver, &options.driver)?;
        }
    }
    let renewed = renew_all(objects, wanted)?;
    for Renewed { old, node, .. } in &renewed {
        let writer = |export: &&Export| shows(export, old) && export.options.writable;
        if node.read_only() && objects.exports.iter().any(|export| writer(&export)) {
            let name = node.name();
            return Err(
                format!("Read-only block node '{name}' cannot support read-write users").into(),
            );
        }
        for (_, disk) in shown(objects, old) {
            node.use_block_size(disk.form.logical_block_size())?;
        }
    }
    let of_these = |node: &Node| renewed.iter().any(|new| new.old.shares_disk_with(node));
    let nodes = objects.nodes.iter().map(|open| &open.node);
    let nodes = nodes.filter(|node| of_these(node));
    let reserved: Vec<String> = nodes.map(|node| node.name().to_owned()).collect();
    objects.reserve(&reserved, "blockdev-reopen")?;
    Ok(Reopen { renewed, reserved })
}

impl Reopen {
    /// The nodes that are reserved for it.
    pub fn reserved(&self) -> &[String] {
        &self.reserved
    }

    /// Lets the new openings take the old ones' places. This waits for requests in flight.
    pub fn carry_out(&self) -> Result<(), Failure> {
        for Renewed { old, .. } in &self.renewed {
            // Whoever reads only from now on will not flush it at the end.
            old.flush_blocking()
                .map_err(|error| format!("{}: flushing it failed: {error}", old.name()))?;
        }
        take_locks(&self.renewed)?;
        for Renewed { node, exports, .. } in &self.renewed {
            for export in exports {
                match &export.front_ends {
                    Some(front_ends) => front_ends.exchange(&export.node, node),
                    // What it still has to do it does with the old one.
                    None => export.node.set(node.clone()),
                }
            }
            tracing::info!(node = node.name(), "opened anew");
        }
        Ok(())
    }

    /// The old openings are closed.
    pub fn finish(self, objects: &mut Objects) {
        for Renewed { options, node, .. } in self.renewed {
            let mut nodes = objects.nodes.iter_mut();
            if let Some(open) = nodes.find(|open| open.node.name() == node.name()) {
                (open.options, open.node) = (options, node);
            }
        }
    }
}

fn shows(export: &Export, node: &Node) -> bool {
    export.options.shows(node.name())
}

/// The disks that exports show of a node.
fn shown<'a>(
    objects: &'a Objects,
    node: &'a Node,
) -> impl Iterator<Item = (&'a Export, &'a ShownDisk)> {
    objects.exports.iter().flat_map(move |export| {
        let disks = export.disks.iter();
        let disks = disks.filter(move |disk| disk.name == node.name());
        disks.map(move |disk| (export, disk))
    })
}

/// Some options make a node what it is.
fn check_unchanged(old: &Driver, new: &Driver) -> Result<(), Failure> {
    let changed = match (old, new) {
        (Driver::File(old), Driver::File(new))
        | (Driver::HostDevice(old), Driver::HostDevice(new)) => [
            ("filename", old.filename != new.filename),
            ("locking", old.locking != new.locking),
            ("", false),
        ],
        (Driver::NullCo(old), Driver::NullCo(new)) => [
            ("size", old.size != new.size),
            ("read-zeroes", old.read_zeroes != new.read_zeroes),
            ("latency-ns", old.latency_ns != new.latency_ns),
        ],
        (Driver::Raw(old), Driver::Raw(new)) => [
            ("file.driver", matches!(new.file, NodeRef::Inline(_))),
            ("file", old.file.node_name() != new.file.node_name()),
            ("size", (old.offset, old.size) != (new.offset, new.size)),
        ],
        _ => [("driver", true), ("", false), ("", false)],
    };
    match changed.iter().find(|(_, changed)| *changed) {
        None => Ok(()),
        Some((option, _)) => Err(format!("Cannot change the option '{option}'").into()),
    }
}

/// The new nodes, and new windows onto them: nodes come behind those that they are parts of.
fn renew_all(objects: &mut Objects, wanted: &[BlockdevOptions]) -> Result<Vec<Renewed>, Failure> {
    let mut renewed: Vec<Renewed> = Vec::new();
    for index in 0..objects.nodes.len() {
        let open = &objects.nodes[index];
        let (old, below) = (open.node.clone(), open.below().map(str::to_owned));
        // Of two descriptions the last one counts.
        let described = wanted.iter().rev().find(|new| new.node_name == old.name());
        let below = renewed
            .iter()
            .find(|new| Some(new.node.name()) == below.as_deref())
            .map(|new| new.node.clone());
        if described.is_none() && below.is_none() {
            continue;
        }
        let options = described.unwrap_or(&open.options).clone();
        let node = match &options.driver {
            Driver::File(file) => open_unlocked(&options, file, NodeOptions::File, objects)?,
            Driver::HostDevice(file) => {
                open_unlocked(&options, file, NodeOptions::HostDevice, objects)?
            }
            Driver::NullCo(null) => {
                let null = block::NullOptions {
                    size: null.size,
                    read_zeroes: null.read_zeroes,
                    latency_ns: null.latency_ns,
                };
                Node::open(old.name(), options.read_only, &NodeOptions::Null(null))?
            }
            Driver::Raw(raw) => {
                let below = match below {
                    Some(below) => below,
                    None => objects.node(raw.file.node_name())?,
                };
                let unmap = options.discard == Discard::Unmap;
                Node::window(
                    old.name(),
                    &below,
                    raw.offset,
                    raw.size,
                    options.read_only,
                    unmap,
                )?
            }
        };
        // What the file has become outside is block_resize's to take over.
        node.set_size(old.size());
        let exports = shown(objects, &old).map(|(export, disk)| Shows {
            node: disk.node.clone(),
            front_ends: export.front_ends(),
        });
        let exports = exports.collect();
        renewed.push(Renewed {
            options,
            exports,
            old,
            node,
        });
    }
    Ok(renewed)
}

fn open_unlocked(
    options: &BlockdevOptions,
    file: &FileOptions,
    driver: fn(block::FileOptions) -> NodeOptions,
    objects: &mut Objects,
) -> Result<Arc<Node>, Failure> {
    let file = FileOptions {
        locking: Locking::Off,
        ..file.clone()
    };
    Ok(node::open_fd(options, &file, driver, &mut objects.aio)?)
}

/// The new nodes get the old ones' locks: all of them or none.
fn take_locks(renewed: &[Renewed]) -> Result<(), Failure> {
    let files = renewed.iter().filter_map(|new| match &new.options.driver {
        Driver::File(file) | Driver::HostDevice(file) => Some((new, file)),
        _ => None,
    });
    let mut taken: Vec<(&Renewed, &FileOptions)> = Vec::new();
    for (new, file) in files {
        let locking = locking(file.locking);
        if let Err(error) = new.node.take_locks(&new.old, &file.filename, locking) {
            for (new, file) in taken {
                let locking = node::locking(file.locking);
                // They had them a moment ago, and nobody else could take them.
                let _ = new.old.take_locks(&new.node, &file.filename, locking);
            }
            return Err(error.into());
        }
        taken.push((new, file));
    }
    Ok(())
}
