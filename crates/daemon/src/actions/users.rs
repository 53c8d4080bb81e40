//! The exports whose requests reach a node: they get new routes while they run, after the node's part of routes has changed.

use std::sync::Arc;

use block::{Faults, NoHangGuard, Node};

use crate::devices::export_server::ExportFrontEndHandle;
use crate::disk::exported_disk::NodeSlot;
use crate::error::BoxError;
use crate::state::DaemonObjects;
use crate::state::export;

/// An export whose requests reach a node, through one of its disks.
pub(crate) struct NodeUser {
    slot: NodeSlot,
    front_ends: ExportFrontEndHandle,
}

/// The exports whose requests reach the node, through filters and windows above it as well.
pub(super) fn users_of_node(objects: &DaemonObjects, node: &Node) -> Vec<NodeUser> {
    let users = objects.exports.iter().flat_map(|export| {
        let disks = export.disks.iter();
        let disks = disks.filter(|disk| disk.node.get().leads_through(node));
        disks.filter_map(|disk| {
            Some(NodeUser {
                slot: disk.node.clone(),
                front_ends: export.front_end_handle()?,
            })
        })
    });
    users.collect()
}

/// Gives all users new routes, and waits for requests on the old ones.
pub(super) fn reattach_users(users: &[NodeUser]) {
    let no_hang_guards = prevent_hangs(users);
    for NodeUser { slot, front_ends } in users {
        front_ends.renew_routes_and_wait(slot);
        // Those of queues that are about to stop.
        front_ends.wait_for_admitted_requests();
    }
    drop(no_hang_guards);
}

/// Lets all users go over to the target of a mirror, whose filter sends all requests there already, and waits for requests on the old
/// routes.
pub(super) fn move_users_to_target(users: &[NodeUser], target: &Arc<Node>) {
    let no_hang_guards = prevent_hangs(users);
    for NodeUser { slot, front_ends } in users {
        front_ends.go_over_to_node_and_wait(slot, target);
        front_ends.wait_for_admitted_requests();
    }
    drop(no_hang_guards);
}

/// Waits for the requests that the users have submitted so far.
pub(super) fn wait_for_requests_of_users(users: &[NodeUser]) {
    let no_hang_guards = prevent_hangs(users);
    for user in users {
        user.front_ends.wait_for_admitted_requests();
    }
    drop(no_hang_guards);
}

/// Requests that a filter makes hang would never complete.
fn prevent_hangs(users: &[NodeUser]) -> Vec<NoHangGuard> {
    let tops = users.iter().map(|user| user.slot.get());
    let filters = tops.flat_map(|top: Arc<Node>| {
        let filters = top.faults().into_iter().chain(top.faults_below());
        filters.cloned().collect::<Vec<_>>()
    });
    filters
        .map(|filter| Faults::release_and_prevent_hangs(&filter))
        .collect()
}

/// Refuses while an export of the node is draining.
pub(super) fn check_no_export_draining(
    objects: &DaemonObjects,
    node: &Node,
) -> Result<(), BoxError> {
    export::check_no_export_draining(&objects.exports, |export| {
        let mut disks = export.disks.iter();
        disks.any(|disk| disk.node.get().leads_through(node))
    })
}
