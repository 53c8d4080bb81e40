//! Resizing of disks while guests use them.
//!
//! No request ever reaches past the end of the file. To grow, the file is extended first, then the limit of the exports, then
//! front-ends are notified. To shrink, the limit of the exports comes first, then requests in flight complete, and only then the
//! file is truncated.

use std::sync::Arc;

use block::{Node, ResizeError};

use crate::devices::export_server::ExportFrontEndHandle;
use crate::disk::exported_disk::GuestDevice;
use crate::error::BoxError;
use crate::state::DaemonObjects;
use crate::state::export::check_no_export_draining;

/// A planned resize of a node, and of all other nodes of the same disk whose size follows. The nodes are reserved until it is
/// done.
pub(crate) struct ResizePlan {
    node: Arc<Node>,
    /// The new end of the disk, in bytes from its beginning.
    disk_end: u64,
    /// The disk has this end already: another client of its cluster has resized it.
    is_moved_already: bool,
    nodes: Vec<NodeResize>,
}

/// A node of the disk, its new size, and its users.
struct NodeResize {
    node: Arc<Node>,
    size: u64,
    users: Vec<ExportedDiskToResize>,
}

/// An export of a node, as one of its disks.
struct ExportedDiskToResize {
    guest_device: GuestDevice,
    /// `None` if the export is draining.
    front_ends: Option<ExportFrontEndHandle>,
}

/// Checks that the resize is possible, and reserves the nodes.
pub(crate) fn plan_and_reserve_nodes(
    objects: &mut DaemonObjects,
    node: Arc<Node>,
    size: u64,
) -> Result<ResizePlan, BoxError> {
    let disk_end = node.check_size_and_compute_disk_end_offset(size)?;
    let nodes = resizes_of_nodes_on_disk(objects, &node, disk_end)?;
    for resized in &nodes {
        objects.check_not_used_by_job(&resized.node)?;
    }
    let resize = ResizePlan {
        node,
        disk_end,
        is_moved_already: false,
        nodes,
    };
    if resize.is_shrinking() {
        let names = resize.node_names();
        check_no_export_draining(&objects.exports, |export| {
            names.iter().any(|name| export.options.exports_node(name))
        })?;
    }
    objects.reserve_nodes(&resize.node_names(), "block_resize")?;
    Ok(resize)
}

/// Plans to adopt the end of a disk that another client of its cluster has resized, and reserves the nodes.
pub(crate) fn plan_adoption_and_reserve_nodes(
    objects: &mut DaemonObjects,
    disk: Arc<Node>,
    disk_end: u64,
) -> Result<ResizePlan, BoxError> {
    let nodes = resizes_of_nodes_on_disk(objects, &disk, disk_end)?;
    for resized in &nodes {
        objects.check_not_used_by_job(&resized.node)?;
    }
    let resize = ResizePlan {
        node: disk,
        disk_end,
        is_moved_already: true,
        nodes,
    };
    objects.reserve_nodes(&resize.node_names(), "rbd resize")?;
    Ok(resize)
}

impl ResizePlan {
    /// Names of all nodes that it changes.
    pub fn node_names(&self) -> Vec<String> {
        let names = self.nodes.iter().map(|resize| resize.node.name());
        names.map(str::to_owned).collect()
    }

    /// Whether any of the nodes becomes smaller.
    fn is_shrinking(&self) -> bool {
        let mut nodes = self.nodes.iter();
        nodes.any(|resize| resize.size < resize.node.size())
    }

    /// Resizes the disk and the nodes. To shrink, this waits for requests in flight.
    pub fn apply(&self) -> Result<(), ResizeError> {
        let is_shrinking = self.is_shrinking();
        if is_shrinking {
            self.shrink_guest_devices_and_wait();
        }
        let result = match self.is_moved_already {
            true => Ok(()),
            false => self.node.set_file_or_image_end(self.disk_end),
        };
        for NodeResize { node, size, users } in &self.nodes {
            if result.is_ok() {
                node.record_new_size(*size);
            }
            for user in users {
                // The node's size: after a failure this undoes the limit of `shrink_guest_devices_and_wait`.
                let size_changed = user.guest_device.resize(node.size());
                if let Some(front_ends) = &user.front_ends
                    && user.guest_device.has_size_in_config_space()
                    && (size_changed || is_shrinking)
                {
                    front_ends.notify_virtio_config_changed();
                }
            }
        }
        result?;
        let (node, bytes) = (self.node.name(), self.node.size());
        tracing::info!(node, bytes, "node resized");
        Ok(())
    }

    /// Lowers the limit of the exports to the new sizes, and waits until all requests that were admitted before have completed.
    fn shrink_guest_devices_and_wait(&self) {
        for NodeResize { size, users, .. } in &self.nodes {
            for user in users {
                user.guest_device.resize(*size);
            }
        }
        let users = self.nodes.iter().flat_map(|resize| &resize.users);
        for front_ends in users.filter_map(|user| user.front_ends.as_ref()) {
            front_ends.wait_for_admitted_requests();
        }
    }
}

/// The nodes of a disk, and the size that each has when the disk ends at `disk_end`.
fn resizes_of_nodes_on_disk(
    objects: &DaemonObjects,
    node: &Node,
    disk_end: u64,
) -> Result<Vec<NodeResize>, ResizeError> {
    let nodes = objects.nodes.iter().map(|open| &open.node);
    nodes
        .filter(|other| other.shares_disk_with(node))
        .map(|node| {
            let mut users = Vec::new();
            for export in &objects.exports {
                let disks = export
                    .disks
                    .iter()
                    .filter(|disk| disk.node_name == node.name());
                users.extend(disks.map(|disk| ExportedDiskToResize {
                    guest_device: disk.guest_device.clone(),
                    front_ends: export.front_end_handle(),
                }));
            }
            Ok(NodeResize {
                node: node.clone(),
                size: node.size_if_disk_ends_at(disk_end)?,
                users,
            })
        })
        .collect()
}
