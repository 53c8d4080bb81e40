//! Changes of dirty bitmaps while guests use their nodes.
//!
//! Routes of nodes whose bitmaps do not record know nothing of bitmaps. So before the first bitmap of a node records, the queues
//! of its exports get new routes, and what they had submitted by the old ones is waited for: an answered command means that every
//! write from then on is recorded. Then all bitmaps of a command are switched at one moment. When the last bitmap of a node
//! has stopped to record, the queues get plain routes again.

use std::sync::Arc;

use block::dirty_bitmap::{self, BitmapAction, BitmapChange, SaveKind};
use block::{Faults, NoHangGuard, Node};

use crate::devices::export_server::ExportFrontEndHandle;
use crate::disk::bitmap_file::BitmapFile;
use crate::disk::exported_disk::NodeSlot;
use crate::error::BoxError;
use crate::state::export::check_no_export_draining;
use crate::state::objects::DaemonObjects;

/// Changes of bitmaps that were checked as far as the state allows.
pub(crate) struct BitmapPlan {
    actions: Vec<BitmapAction>,
    nodes: Vec<AffectedNode>,
    /// Files of persistent bitmaps, which may be others afterwards.
    files: Vec<(Arc<Node>, Arc<BitmapFile>)>,
    /// Names of the nodes that are reserved until it is done.
    reserved: Vec<String>,
}

/// A node whose bitmaps change, with its users.
struct AffectedNode {
    node: Arc<Node>,
    /// A bitmap begins to record, unless an earlier or later action prevents that.
    begins: bool,
    users: Vec<ExportedDiskToReattach>,
}

/// An export whose requests reach the node.
struct ExportedDiskToReattach {
    slot: NodeSlot,
    front_ends: ExportFrontEndHandle,
}

/// Plans changes of bitmaps of these nodes: `nodes` has those of the actions, in their order.
pub(crate) fn plan(
    objects: &DaemonObjects,
    nodes: &[Arc<Node>],
    actions: Vec<BitmapAction>,
) -> Result<BitmapPlan, BoxError> {
    let mut affected: Vec<AffectedNode> = Vec::new();
    for (node, action) in nodes.iter().zip(&actions) {
        let begins = matches!(
            action.change,
            BitmapChange::Add { enabled: true, .. } | BitmapChange::Enable(true)
        );
        let mut known = affected.iter_mut();
        if let Some(known) = known.find(|known| Arc::ptr_eq(&known.node, node)) {
            known.begins |= begins;
            continue;
        }
        affected.push(AffectedNode {
            node: node.clone(),
            begins,
            users: Vec::new(),
        });
    }
    for affected in &mut affected {
        if affected.begins && !affected.node.bitmaps().new_routes_record() {
            check_no_export_draining(&objects.exports, |export| {
                let mut disks = export.disks.iter();
                disks.any(|disk| disk.node.get().leads_through(&affected.node))
            })?;
        }
        affected.users = users_of_node(objects, &affected.node);
    }
    let opened = affected
        .iter()
        .filter_map(|affected| objects.find_node(affected.node.name()));
    let files = opened.filter_map(|open| Some((open.node.clone(), open.bitmap_file.clone()?)));
    Ok(BitmapPlan {
        files: files.collect(),
        actions,
        nodes: affected,
        reserved: Vec::new(),
    })
}

impl BitmapPlan {
    /// Whether queues get new routes, which waits for requests in flight, or files are written.
    pub fn may_wait(&self) -> bool {
        !self.files.is_empty()
            || self.nodes.iter().any(|affected| {
                let records = affected.node.bitmaps().new_routes_record();
                // The last bitmap that records may be removed.
                !affected.users.is_empty() && (records || affected.begins)
            })
    }

    /// Reserves all nodes of the disks, so that no other command exchanges their nodes meanwhile.
    pub fn reserve_nodes(&mut self, objects: &mut DaemonObjects) -> Result<(), BoxError> {
        let is_affected = |node: &Node| {
            let mut affected = self.nodes.iter();
            affected.any(|affected| affected.node.shares_disk_with(node))
        };
        let nodes = objects.nodes.iter().map(|open| &open.node);
        let nodes = nodes.filter(|node| is_affected(node));
        let names: Vec<String> = nodes.map(|node| node.name().to_owned()).collect();
        objects.reserve_nodes(&names, "change of dirty bitmaps")?;
        self.reserved = names;
        Ok(())
    }

    /// Names of the nodes that are reserved for it.
    pub fn reserved_node_names(&self) -> &[String] {
        &self.reserved
    }

    /// Carries it out, all of it or nothing, and saves which persistent bitmaps there are. This waits for requests in flight if
    /// it [may](Self::may_wait).
    pub fn carry_out(&self) -> Result<(), BoxError> {
        for affected in self.nodes.iter().filter(|affected| affected.begins) {
            affected.let_routes_record(true);
        }
        let switched = dirty_bitmap::switch(&self.actions);
        for affected in &self.nodes {
            if !affected.node.bitmaps().has_recording() {
                affected.let_routes_record(false);
            }
        }
        switched?;
        for (node, file) in &self.files {
            file.save(node, SaveKind::InUse).map_err(|error| {
                format!("the bitmaps are changed, but would not be there after a crash: {error}")
            })?;
        }
        Ok(())
    }
}

impl AffectedNode {
    /// Gives all users new routes, which record or do not, and waits for requests on the old ones.
    fn let_routes_record(&self, records: bool) {
        let bitmaps = self.node.bitmaps();
        if bitmaps.new_routes_record() == records {
            return;
        }
        bitmaps.let_new_routes_record(records);
        // Requests that a filter makes hang would never complete.
        let tops = self.users.iter().map(|user| user.slot.get());
        let filters = tops.flat_map(|top| {
            let filters = top.faults().into_iter().chain(top.faults_below());
            filters.cloned().collect::<Vec<_>>()
        });
        let no_hang_guards: Vec<NoHangGuard> = filters
            .map(|filter| Faults::release_and_prevent_hangs(&filter))
            .collect();
        for ExportedDiskToReattach { slot, front_ends } in &self.users {
            front_ends.exchange_node_and_wait(slot, &slot.get());
            // Those of queues that are about to stop.
            front_ends.wait_for_admitted_requests();
        }
        drop(no_hang_guards);
    }
}

/// The exports whose requests reach the node, through filters and windows above it as well.
fn users_of_node(objects: &DaemonObjects, node: &Node) -> Vec<ExportedDiskToReattach> {
    let users = objects.exports.iter().flat_map(|export| {
        let disks = export.disks.iter();
        let disks = disks.filter(|disk| disk.node.get().leads_through(node));
        disks.filter_map(|disk| {
            Some(ExportedDiskToReattach {
                slot: disk.node.clone(),
                front_ends: export.front_end_handle()?,
            })
        })
    });
    users.collect()
}
