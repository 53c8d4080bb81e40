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
use crate::objects::{Export, ExportState, Objects};

/// A node that takes the place of one.
struct Renewed {
    /// Its place among the nodes.
    index: usize,
    options: BlockdevOptions,
    node: Arc<Node>,
}

/// Opens nodes anew, all of them or none. All options are as given; what a node's options do not say has its default.
pub(crate) fn reopen(objects: &mut Objects, wanted: Vec<BlockdevOptions>) -> Result<(), Failure> {
    for options in &wanted {
        let found = objects.nodes.iter();
        let mut found = found.filter(|open| open.node.name() == options.node_name);
        if let Some(open) = found.next() {
            check_unchanged(&open.options.driver, &options.driver)?;
        }
    }
    let renewed = renew_all(objects, &wanted)?;
    for Renewed { index, node, .. } in &renewed {
        let old = &objects.nodes[*index].node;
        let writer = |export: &&Export| shows(export, old) && export.options.writable;
        if node.read_only() && objects.exports.iter().any(|export| writer(&export)) {
            let name = node.name();
            return Err(
                format!("Read-only block node '{name}' cannot support read-write users").into(),
            );
        }
        for export in objects.exports.iter().filter(|export| shows(export, old)) {
            node.use_block_size(export.device.options().logical_block_size)?;
        }
        // Whoever reads only from now on will not flush it at the end.
        old.flush_blocking()
            .map_err(|error| format!("{}: flushing it failed: {error}", node.name()))?;
    }
    take_locks(objects, &renewed)?;
    for Renewed {
        index,
        options,
        node,
    } in renewed
    {
        for export in objects.exports.iter().filter(|export| shows(export, &node)) {
            let show = || export.node.set(node.clone());
            match &export.state {
                ExportState::Serving(server) => server.exchange(show),
                // What it still has to do it does with the old one.
                ExportState::Ending(_) => show(),
            }
        }
        tracing::info!(node = node.name(), "opened anew");
        let open = &mut objects.nodes[index];
        (open.options, open.node) = (options, node);
    }
    Ok(())
}

fn shows(export: &Export, node: &Node) -> bool {
    export.options.node_name == node.name()
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
        renewed.push(Renewed {
            index,
            options,
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
    Ok(node::open_fd(options, &file, driver, objects)?)
}

/// The new nodes get the old ones' locks: all of them or none.
fn take_locks(objects: &Objects, renewed: &[Renewed]) -> Result<(), Failure> {
    let files = renewed.iter().filter_map(|new| match &new.options.driver {
        Driver::File(file) | Driver::HostDevice(file) => Some((new, file)),
        _ => None,
    });
    let mut taken: Vec<(&Renewed, &FileOptions)> = Vec::new();
    for (new, file) in files {
        let old = &objects.nodes[new.index].node;
        if let Err(error) = new
            .node
            .take_locks(old, &file.filename, locking(file.locking))
        {
            for (new, file) in taken {
                let old = &objects.nodes[new.index].node;
                // They had them a moment ago, and nobody else could take them.
                let _ = old.take_locks(&new.node, &file.filename, locking(file.locking));
            }
            return Err(error.into());
        }
        taken.push((new, file));
    }
    Ok(())
}
