//! Reopening of nodes with other options, or above other nodes, while guests use them.
//!
//! Everything that can fail comes first: a job opens the new nodes beside the old ones ([`ReopenPlan`]), since a disk or its server
//! may be slow, and transfers the image locks to them. Then they replace the old nodes in one export after the other: its queues
//! complete their requests in flight, and use the new node for the next.

mod fixed_options;

use std::sync::Arc;

use block::{Faults, GuestBlockMode, NoHangGuard, Node, NodeError, NodeOptions};
use options::{BlockdevOptions, Driver, FileOptions, Locking};

use crate::actions::rbd::ImageOpener;
use crate::actions::{jobs, node};
use crate::devices::export_server::ExportFrontEndHandle;
use crate::disk::aio::AioChoices;
use crate::disk::exported_disk::{ExportedDisk, GuestDevice, NodeSlot};
use crate::disk::faults;
use crate::disk::locking::to_block_locking;
use crate::error::BoxError;
use crate::state::DaemonObjects;
use crate::state::export::Export;
use crate::state::node::OpenNode;
use crate::state::throttle_group::GroupsOfNewNodes;
use crate::state::tls::TlsOfNewNode;
use fixed_options::check_fixed_options_unchanged;

/// Nodes to reopen, all of them or none. Nothing has changed yet.
pub(crate) struct ReopenPlan {
    nodes: Vec<PlannedNode>,
    /// Names of all nodes of their disks, which are reserved until it is done.
    reserved: Vec<String>,
    aio: AioChoices,
    /// Nodes that jobs copy.
    job_sources: Vec<Arc<Node>>,
}

/// A node to reopen.
struct PlannedNode {
    options: BlockdevOptions,
    /// The command gives these options, and does not only reopen it because a node below it is reopened.
    has_new_options: bool,
    old: Arc<Node>,
    old_locking: Locking,
    /// The node below it, if that is not reopened.
    below: Option<Arc<Node>>,
    images: ImageOpener,
    groups: GroupsOfNewNodes,
    tls: TlsOfNewNode,
    users: Vec<ExportedDiskToSwitch>,
}

/// New nodes, opened beside the old ones that they are to replace.
pub(crate) struct ReopenedNodes {
    nodes: Vec<ReopenedNode>,
    /// Of the exports, at nodes that may be below the new ones and stay if the reopening fails.
    block_modes: Vec<GuestBlockMode>,
    aio: AioChoices,
}

/// A new node, and the old one that it replaces.
struct ReopenedNode {
    options: BlockdevOptions,
    has_new_options: bool,
    old: Arc<Node>,
    old_locking: Locking,
    node: Arc<Node>,
    users: Vec<ExportedDiskToSwitch>,
}

/// An export of a node, as one of its disks.
struct ExportedDiskToSwitch {
    slot: NodeSlot,
    guest_device: GuestDevice,
    /// `None` if the export is draining.
    front_ends: Option<ExportFrontEndHandle>,
}

/// Plans what to open, and reserves the nodes. Options of a node that are not given have their defaults, not their old values.
pub(crate) fn plan_and_reserve_nodes(
    objects: &mut DaemonObjects,
    wanted: &[BlockdevOptions],
) -> Result<ReopenPlan, BoxError> {
    for options in wanted {
        if let Some(open) = objects.find_node(&options.node_name) {
            open.check_not_reserved()?;
            check_fixed_options_unchanged(&open.options.driver, &options.driver)?;
        }
    }
    let planned = plan_nodes_and_those_above(objects, wanted)?;
    for new in &planned {
        objects.check_not_used_by_job(&new.old)?;
    }
    let shares_planned_disk =
        |node: &Node| planned.iter().any(|new| new.old.shares_disk_with(node));
    let nodes = objects.nodes.iter().map(|open| &open.node);
    let nodes = nodes.filter(|node| shares_planned_disk(node));
    let mut reserved: Vec<String> = nodes.map(|node| node.name().to_owned()).collect();
    let below = planned.iter().filter_map(|new| new.below.as_ref());
    reserved.extend(below.map(|below| below.name().to_owned()));
    objects.reserve_nodes(&reserved, "blockdev-reopen")?;
    Ok(ReopenPlan {
        nodes: planned,
        reserved,
        aio: objects.aio_choices.clone(),
        job_sources: objects.sources_of_jobs(),
    })
}

impl ReopenPlan {
    /// Names of the nodes that are reserved for it.
    pub fn reserved_node_names(&self) -> &[String] {
        &self.reserved
    }

    /// Opens the new nodes, and checks that they fit their exports. This waits for the disks.
    pub fn open_check_and_configure_new_nodes(mut self) -> Result<ReopenedNodes, BoxError> {
        let mut reopened: Vec<ReopenedNode> = Vec::new();
        for planned in self.nodes {
            let node = planned.open_without_locks(&reopened, &mut self.aio)?;
            planned.check_size_unchanged(&node, &reopened)?;
            jobs::check_leads_to_sources(&planned.old, &node, &self.job_sources)?;
            // If another program has resized the file, only block_resize adopts the new size.
            node.record_new_size(planned.old.size());
            reopened.push(ReopenedNode {
                options: planned.options,
                has_new_options: planned.has_new_options,
                old: planned.old,
                old_locking: planned.old_locking,
                node,
                users: planned.users,
            });
        }
        let mut block_modes = Vec::new();
        for ReopenedNode { node, users, .. } in &reopened {
            if node.read_only() && users.iter().any(|user| user.guest_device.is_writable()) {
                let name = node.name();
                return Err(format!(
                    "Read-only block node '{name}' cannot support read-write users"
                )
                .into());
            }
            for user in users {
                block_modes.push(user.guest_device.try_set_block_size_of(node)?);
            }
        }
        let aio = self.aio;
        Ok(ReopenedNodes {
            nodes: reopened,
            block_modes,
            aio,
        })
    }
}

impl PlannedNode {
    /// Opens the new node. If the node below is reopened as well, it is opened above the new one.
    fn open_without_locks(
        &self,
        reopened: &[ReopenedNode],
        aio: &mut AioChoices,
    ) -> Result<Arc<Node>, BoxError> {
        let options = &self.options;
        let child = options.driver.child_with_key();
        let below = child.map(|(_, child)| self.node_below(reopened, child.node_name()));
        let (images, groups, tls) = (&self.images, &self.groups, &self.tls);
        let old = Some(&*self.old);
        let node = node::open_node(options, below, images, groups, tls, old, |file, driver| {
            open_file_without_locks(options, file, driver, aio)
        })?;
        if let Some(file) = options.driver.file_options()
            && node.image_id() != self.old.image_id()
        {
            return Err(format!(
                "{} is no longer the file that node '{}' has open: move that file back to this name, or add a node for the new one",
                file.filename.display(),
                self.old.name(),
            )
            .into());
        }
        node.share_bitmaps_of(&self.old);
        Ok(node)
    }

    /// Refuses another node below if that would change the size.
    fn check_size_unchanged(&self, node: &Node, reopened: &[ReopenedNode]) -> Result<(), BoxError> {
        let Some((option, child)) = self.options.driver.child_with_key() else {
            return Ok(());
        };
        let below = self.node_below(reopened, child.node_name());
        if self.old.shares_disk_with(below) || node.size() == self.old.size() {
            return Ok(());
        }
        Err(format!(
            "Node '{}' has {} bytes and would have {} with '{option}': '{}'; resize that node first",
            self.old.name(),
            self.old.size(),
            node.size(),
            child.node_name(),
        )
        .into())
    }

    /// The node of that name below it: the new one if that is reopened.
    fn node_below<'a>(&'a self, reopened: &'a [ReopenedNode], name: &str) -> &'a Arc<Node> {
        let mut nodes = reopened.iter().map(|new| &new.node);
        let below = nodes.find(|node| node.name() == name);
        let Some(below) = below.or(self.below.as_ref()) else {
            unreachable!("planned with the node below");
        };
        below
    }
}

impl ReopenedNodes {
    /// Replaces the old nodes in all exports. This waits for requests in flight. If it fails, nothing has changed.
    pub fn switch_exports(&self) -> Result<(), BoxError> {
        self.flush_old_nodes()?;
        transfer_image_locks(&self.nodes)?;
        // Requests that a filter makes hang would never complete, also in filters that are removed. Queues keep admitting requests
        // until their node is replaced, so the filters let requests pass until then.
        let filters = self.nodes.iter().flat_map(|ReopenedNode { old, .. }| {
            let own = old.faults().into_iter();
            own.chain(old.faults_below())
        });
        let no_hang_guards: Vec<NoHangGuard> =
            filters.map(Faults::release_and_prevent_hangs).collect();
        self.wait_for_writes_without_range_locks();
        self.exchange_nodes();
        self.set_rules_of_faults();
        drop(no_hang_guards);
        Ok(())
    }

    fn flush_old_nodes(&self) -> Result<(), BoxError> {
        for ReopenedNode { old, .. } in self.nodes.iter().filter(|new| new.options.settings.active)
        {
            // A node that is read-only from now on is not flushed at shutdown.
            old.flush_blocking()
                .map_err(|error| format!("{}: flushing it failed: {error}", old.name()))?;
        }
        Ok(())
    }

    /// Writes that were admitted before any guest wrote parts of blocks hold no lock of their range.
    fn wait_for_writes_without_range_locks(&self) {
        if self.nodes.iter().any(|new| new.node.has_partial_blocks()) {
            let users = self.nodes.iter().flat_map(|new| &new.users);
            let front_ends = users.filter_map(|user| user.front_ends.as_ref());
            front_ends.for_each(ExportFrontEndHandle::wait_for_admitted_requests);
        }
    }

    fn exchange_nodes(&self) {
        for ReopenedNode { node, users, .. } in &self.nodes {
            for user in users {
                match &user.front_ends {
                    Some(front_ends) => front_ends.exchange_node_and_wait(&user.slot, node),
                    // Its requests in flight keep the old node.
                    None => user.slot.set(node.clone()),
                }
            }
            tracing::info!(node = node.name(), "node reopened");
        }
    }

    fn set_rules_of_faults(&self) {
        for new in self.nodes.iter().filter(|new| new.has_new_options) {
            if let (Driver::Blkdebug { injected, .. }, Some(faults)) =
                (&new.options.driver, new.node.faults())
            {
                faults.release_hanging_and_set_rules(Some(faults::to_block_fault_rules(injected)));
            }
        }
    }

    /// Puts the new nodes into the state, and closes the old ones.
    pub fn replace_nodes_in_objects(self, objects: &mut DaemonObjects) {
        self.block_modes.into_iter().for_each(GuestBlockMode::keep);
        objects.aio_choices.add_results_of_copy(self.aio);
        for ReopenedNode { options, node, .. } in self.nodes {
            let mut nodes = objects.nodes.iter_mut();
            if let Some(open) = nodes.find(|open| open.node.name() == node.name()) {
                (open.options, open.node) = (options, node);
            }
        }
        // Nodes are described in this order in a live upgrade, and one may be above a younger one now.
        let order = sort_bottom_up(&objects.nodes, |open| {
            open.child_node_name().map(str::to_owned)
        });
        if let Ok(order) = order {
            let names: Vec<String> = order
                .iter()
                .map(|open| open.node.name().to_owned())
                .collect();
            let new_index =
                |open: &OpenNode| names.iter().position(|name| name == open.node.name());
            objects.nodes.sort_by_key(new_index);
        }
    }
}

/// The exported disks of a node.
fn exports_and_disks_of_node<'a>(
    objects: &'a DaemonObjects,
    node: &'a Node,
) -> impl Iterator<Item = (&'a Export, &'a ExportedDisk)> {
    objects.exports.iter().flat_map(move |export| {
        let disks = export.disks.iter();
        let disks = disks.filter(move |disk| disk.node_name == node.name());
        disks.map(move |disk| (export, disk))
    })
}

/// The nodes whose options are given, and all nodes above them, bottom up.
fn plan_nodes_and_those_above(
    objects: &DaemonObjects,
    wanted: &[BlockdevOptions],
) -> Result<Vec<PlannedNode>, BoxError> {
    let mut planned: Vec<PlannedNode> = Vec::new();
    // If a node is given twice, the last options count.
    let new_options = |name: &str| wanted.iter().rev().find(|new| new.node_name == name);
    let new_child = |open: &OpenNode| {
        let options = new_options(open.node.name()).unwrap_or(&open.options);
        let (_, child) = options.driver.child_with_key()?;
        Some(child.node_name().to_owned())
    };
    for open in sort_bottom_up(&objects.nodes, new_child)? {
        let old = open.node.clone();
        let new_options = new_options(old.name());
        let below = new_child(open);
        let is_below = |new: &PlannedNode| below.as_deref() == Some(new.old.name());
        let below_is_reopened = planned.iter().any(is_below);
        if new_options.is_none() && !below_is_reopened {
            continue;
        }
        // Reopening does not activate a node, nor the node below it.
        let active = open.options.settings.active;
        if let Some(below) = &below {
            objects.check_active_node_not_above_inactive(active, below)?;
        }
        let below = match below {
            Some(below) if !below_is_reopened => Some(objects.require_unreserved_node(&below)?),
            _ => None,
        };
        let users =
            exports_and_disks_of_node(objects, &old).map(|(export, disk)| ExportedDiskToSwitch {
                slot: disk.node.clone(),
                guest_device: disk.guest_device.clone(),
                front_ends: export.front_end_handle(),
            });
        let users = users.collect();
        let mut options = new_options.unwrap_or(&open.options).clone();
        options.settings.active = active;
        let images = ImageOpener::prepare(&options, objects)?;
        let groups = GroupsOfNewNodes::find(&options, objects)?;
        let tls = TlsOfNewNode::find(&options, objects)?;
        planned.push(PlannedNode {
            options,
            has_new_options: new_options.is_some(),
            users,
            old,
            old_locking: held_locking(&open.options),
            below,
            images,
            groups,
            tls,
        });
    }
    Ok(planned)
}

/// All nodes, each after the one below it, otherwise in their present order.
///
/// # Errors
/// A node would be below itself.
fn sort_bottom_up(
    nodes: &[OpenNode],
    child: impl Fn(&OpenNode) -> Option<String>,
) -> Result<Vec<&OpenNode>, BoxError> {
    let mut ordered: Vec<&OpenNode> = Vec::new();
    for open in nodes {
        // The node and those below it that are not in `ordered` yet.
        let mut chain: Vec<&OpenNode> = Vec::new();
        let mut next = Some(open);
        while let Some(open) = next
            && !is_node_in_list(&ordered, open)
        {
            if is_node_in_list(&chain, open) {
                let (below, name) = (open.node.name(), chain[chain.len() - 1].node.name());
                return Err(
                    format!("Making '{below}' a child of '{name}' would create a cycle").into(),
                );
            }
            chain.push(open);
            let below = child(open);
            let mut nodes = nodes.iter();
            next = nodes.find(|other| below.as_deref() == Some(other.node.name()));
        }
        ordered.extend(chain.into_iter().rev());
    }
    Ok(ordered)
}

/// Whether this node is among `nodes`.
fn is_node_in_list(nodes: &[&OpenNode], open: &OpenNode) -> bool {
    nodes.iter().any(|other| std::ptr::eq(*other, open))
}

/// The locks that a node holds: none if it has no file, or is inactive.
fn held_locking(options: &BlockdevOptions) -> Locking {
    let file = options
        .driver
        .file_options()
        .filter(|_| options.settings.active);
    file.map_or(Locking::Off, |file| file.locking)
}

/// Opens a file without its locks, which the old node still holds.
fn open_file_without_locks(
    options: &BlockdevOptions,
    file: &FileOptions,
    driver: fn(block::FileOptions) -> NodeOptions,
    aio: &mut AioChoices,
) -> Result<Arc<Node>, NodeError> {
    let file = FileOptions {
        locking: Locking::Off,
        ..file.clone()
    };
    node::open_file_node_with_fallbacks(options, &file, driver, aio)
}

/// Transfers the image locks from the old nodes to the new ones: all of them or none.
fn transfer_image_locks(reopened: &[ReopenedNode]) -> Result<(), BoxError> {
    let files = reopened.iter().filter_map(|new| match &new.options.driver {
        Driver::File(file) | Driver::HostDevice(file) => Some((new, file)),
        _ => None,
    });
    let mut transferred: Vec<(&ReopenedNode, &FileOptions)> = Vec::new();
    for (new, file) in files {
        let lockings = [held_locking(&new.options), new.old_locking].map(to_block_locking);
        if let Err(error) = new.node.move_locks_from(&new.old, &file.filename, lockings) {
            for (new, file) in transferred {
                let lockings = [new.old_locking, held_locking(&new.options)].map(to_block_locking);
                // The old nodes held them a moment ago. This fails only if another process got in between.
                let _ = new.old.move_locks_from(&new.node, &file.filename, lockings);
            }
            return Err(error.into());
        }
        transferred.push((new, file));
    }
    Ok(())
}
