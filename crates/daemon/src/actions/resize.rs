//! Disks that become larger or smaller while guests use them.
//!
//! No request ever passes the end of the file. To grow, the file goes first, then what exports let through,
//! then front-ends are told. To shrink, exports go first: then whatever their queues had taken before is
//! waited for, and only then the file is cut.

use std::sync::Arc;

use block::{Node, ResizeError};

use crate::devices::export_server::ExportFrontEnds;
use crate::disk::exported_disk::GuestDevice;
use crate::failure::Failure;
use crate::state::export::ExportState;
use crate::state::objects::Objects;

/// A node that gets another size, and with it all others that show the same disk to its end. They are reserved
/// until it is done.
pub(crate) struct Resize {
    node: Arc<Node>,
    /// Where the disk ends then.
    end: u64,
    changes: Vec<Change>,
}

/// A node of the disk, and what its size becomes.
struct Change {
    node: Arc<Node>,
    size: u64,
    exports: Vec<Shows>,
}

/// An export that shows it to guests.
struct Shows {
    guest_device: GuestDevice,
    /// None any more of one that ends.
    front_ends: Option<ExportFrontEnds>,
}

/// Finds what there is to do, and that it can be done.
pub(crate) fn plan(objects: &mut Objects, node: Arc<Node>, size: u64) -> Result<Resize, Failure> {
    let end = node.end_for(size)?;
    let changes = changes(objects, &node, end)?;
    let resize = Resize { node, end, changes };
    if resize.shrinks() {
        check_none_ends(objects, &resize)?;
    }
    objects.reserve(&resize.names(), "block_resize")?;
    Ok(resize)
}

impl Resize {
    /// All nodes that it changes.
    pub fn names(&self) -> Vec<String> {
        let names = self.changes.iter().map(|change| change.node.name());
        names.map(str::to_owned).collect()
    }

    fn shrinks(&self) -> bool {
        let mut changes = self.changes.iter();
        changes.any(|change| change.size < change.node.size())
    }

    /// Does it. This may wait for requests in flight.
    pub fn apply(&self) -> Result<(), ResizeError> {
        let shrinks = self.shrinks();
        if shrinks {
            self.shrink();
        }
        let moved = self.node.move_end(self.end);
        for Change {
            node,
            size,
            exports,
        } in &self.changes
        {
            if moved.is_ok() {
                node.set_size(*size);
            }
            for export in exports {
                // As large as the node is: after a failure also what was to shrink.
                let differs = export.guest_device.resize(node.size());
                if let Some(front_ends) = &export.front_ends
                    && export.guest_device.has_config()
                    && (differs || shrinks)
                {
                    front_ends.notify_config_changed();
                }
            }
        }
        moved?;
        let (node, bytes) = (self.node.name(), self.node.size());
        tracing::info!(node, bytes, "a node has another size");
        Ok(())
    }

    /// Lets nothing through behind the new ends any more, and returns when all that was let through is done.
    fn shrink(&self) {
        for Change { size, exports, .. } in &self.changes {
            for export in exports {
                export.guest_device.resize(*size);
            }
        }
        let exports = self.changes.iter().flat_map(|change| &change.exports);
        for front_ends in exports.filter_map(|export| export.front_ends.as_ref()) {
            front_ends.settle();
        }
    }
}

/// What every node of the disk has when that ends at `end`.
fn changes(objects: &Objects, node: &Node, end: u64) -> Result<Vec<Change>, ResizeError> {
    let nodes = objects.nodes.iter().map(|open| &open.node);
    nodes
        .filter(|other| other.shares_disk_with(node))
        .map(|node| {
            let mut exports = Vec::new();
            for export in &objects.exports {
                let shown = export.disks.iter().filter(|disk| disk.name == node.name());
                exports.extend(shown.map(|disk| Shows {
                    guest_device: disk.guest_device.clone(),
                    front_ends: export.front_ends(),
                }));
            }
            Ok(Change {
                node: node.clone(),
                size: node.size_within(end)?,
                exports,
            })
        })
        .collect()
}

/// What an export that ends still has in flight cannot be waited for.
fn check_none_ends(objects: &Objects, resize: &Resize) -> Result<(), Failure> {
    let names = resize.names();
    let ending = objects.exports.iter().find(|export| {
        matches!(export.state, ExportState::Ending(_))
            && names.iter().any(|name| export.options.shows(name))
    });
    match ending {
        None => Ok(()),
        Some(export) => Err(format!(
            "export '{}' still finishes what its front-end had asked for: try again after its \
             BLOCK_EXPORT_DELETED",
            export.options.id
        )
        .into()),
    }
}
