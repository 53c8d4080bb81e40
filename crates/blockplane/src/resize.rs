//! Disks that become larger or smaller while guests use them.
//!
//! No request ever passes the end of the file. To grow, the file goes first, then what exports let through,
//! then front-ends are told. To shrink, exports go first: then whatever their queues had taken before is
//! waited for, and only then the file is cut.

use std::sync::Arc;

use block::{Node, ResizeError};

use crate::Failure;
use crate::objects::{Export, ExportState, Objects};

/// A node of the disk, and what its size becomes.
struct Change<'a> {
    node: &'a Arc<Node>,
    size: u64,
    /// Those that show it to guests.
    exports: Vec<&'a Export>,
}

/// Gives a node another size, and with it all others that show the same disk to its end.
pub(crate) fn resize(objects: &Objects, node: &Node, size: u64) -> Result<(), Failure> {
    let end = node.end_for(size)?;
    let changes = changes(objects, node, end)?;
    let shrinks = changes
        .iter()
        .any(|change| change.size < change.node.size());
    if shrinks {
        shrink(&changes)?;
    }
    let moved = node.move_end(end);
    for Change {
        node,
        size,
        exports,
    } in &changes
    {
        if moved.is_ok() {
            node.set_size(*size);
        }
        for export in exports {
            // As large as the node is: after a failure also what was to shrink.
            let differs = export.device.resize(node.size());
            if let ExportState::Serving(server) = &export.state
                && (differs || shrinks)
            {
                server.tell_config_changed();
            }
        }
    }
    moved?;
    tracing::info!(
        node = node.name(),
        bytes = node.size(),
        "a node has another size"
    );
    Ok(())
}

/// What every node of the disk has when that ends at `end`.
fn changes<'a>(
    objects: &'a Objects,
    node: &Node,
    end: u64,
) -> Result<Vec<Change<'a>>, ResizeError> {
    let nodes = objects.nodes.iter().map(|open| &open.node);
    nodes
        .filter(|other| other.shares_disk_with(node))
        .map(|node| {
            let shows = |export: &&Export| export.options.node_name == node.name();
            Ok(Change {
                node,
                size: node.size_within(end)?,
                exports: objects.exports.iter().filter(shows).collect(),
            })
        })
        .collect()
}

/// Lets nothing through behind the new ends any more, and returns when all that was let through is done.
fn shrink(changes: &[Change<'_>]) -> Result<(), Failure> {
    let exports = || changes.iter().flat_map(|change| &change.exports);
    let ending = exports().find(|export| matches!(export.state, ExportState::Ending(_)));
    if let Some(export) = ending {
        return Err(format!(
            "export '{}' still finishes what its front-end had asked for: try again after its \
             BLOCK_EXPORT_DELETED",
            export.options.id
        )
        .into());
    }
    for Change { size, exports, .. } in changes {
        for export in exports {
            export.device.resize(*size);
        }
    }
    for export in exports() {
        if let ExportState::Serving(server) = &export.state {
            server.settle();
        }
    }
    Ok(())
}
