//! Activation and inactivation of nodes, by `blockdev-set-active` and by exports.
//!
//! An active node holds its image's locks and may be used. An inactive node leaves the image to another program. The nodes below an
//! active node are active, too. An export activates its nodes, and they stay active as long as it exists.

use std::sync::Arc;

use block::Node;

use crate::actions::node;
use crate::error::BoxError;
use crate::state::node::OpenNode;
use crate::state::objects::DaemonObjects;

impl DaemonObjects {
    /// Activates the node of this name for an export, and returns it.
    pub fn activate_node_for_export(&mut self, name: &str) -> Result<Arc<Node>, BoxError> {
        let node = self.require_unreserved_node(name)?;
        self.activate_with_nodes_below(name)?;
        Ok(node)
    }

    /// Activates a node, those below it first. Nodes that are active already do not change.
    pub fn activate_with_nodes_below(&mut self, name: &str) -> Result<(), BoxError> {
        let open = self.require_node(name)?;
        open.check_not_reserved()?;
        if open.options.settings.active {
            return Ok(());
        }
        if let Some(below) = open.child_node_name().map(str::to_owned) {
            self.activate_with_nodes_below(&below)?;
        }
        let mut nodes = self.nodes.iter_mut();
        if let Some(open) = nodes.find(|open| open.node.name() == name) {
            if let Some(file) = open.options.driver.file_options() {
                open.node.take_image_locks_if_enabled(
                    &file.filename,
                    node::to_block_locking(file.locking),
                )?;
            }
            open.options.settings.active = true;
            tracing::info!(node = name, "node activated");
        }
        Ok(())
    }

    /// Activates all nodes.
    pub fn activate_all_nodes(&mut self) -> Result<(), BoxError> {
        let names = self.nodes.iter().map(|open| open.node.name().to_owned());
        let names: Vec<String> = names.collect();
        names
            .iter()
            .try_for_each(|name| self.activate_with_nodes_below(name))
    }

    /// Reserves a node to be flushed and inactivated, and with it the nodes below that no other active node uses. Returns their
    /// names, the node itself first; none if it is inactive already.
    pub fn reserve_with_nodes_below_to_inactivate(
        &mut self,
        name: &str,
    ) -> Result<Vec<String>, BoxError> {
        let open = self.require_node(name)?;
        if !open.options.settings.active {
            return Ok(Vec::new());
        }
        self.check_unused_by_exports_and_active_nodes(name, &[])?;
        let mut names = vec![name.to_owned()];
        let mut below = open.child_node_name();
        while let Some(name) = below
            && self
                .check_unused_by_exports_and_active_nodes(name, &names)
                .is_ok()
        {
            names.push(name.to_owned());
            below = self.find_node(name).and_then(OpenNode::child_node_name);
        }
        self.reserve_nodes(&names, "blockdev-set-active")?;
        Ok(names)
    }

    /// Reserves all active nodes to be flushed and inactivated.
    pub fn reserve_all_to_inactivate(&mut self) -> Result<Vec<String>, BoxError> {
        let active = self
            .nodes
            .iter()
            .filter(|open| open.options.settings.active);
        let names: Vec<String> = active.map(|open| open.node.name().to_owned()).collect();
        for name in &names {
            self.check_unused_by_exports_and_active_nodes(name, &names)?;
        }
        self.reserve_nodes(&names, "blockdev-set-active")?;
        Ok(names)
    }

    /// Inactivates nodes that were reserved for it and have been flushed.
    pub fn inactivate_reserved_nodes(&mut self, names: &[String]) {
        self.release_nodes(names);
        for open in &mut self.nodes {
            if names.iter().any(|name| open.node.name() == name) {
                open.node.release_image_locks_unless_kept();
                open.options.settings.active = false;
                tracing::info!(node = open.node.name(), "node inactivated");
            }
        }
    }

    /// Refuses an active node above an inactive one.
    pub fn check_active_node_not_above_inactive(
        &self,
        active: bool,
        below: &str,
    ) -> Result<(), BoxError> {
        match self.find_node(below) {
            Some(open) if active && !open.options.settings.active => Err(format!(
                "Inactive '{below}' can't be below an active node: activate it by blockdev-set-active, or add the node with active=off"
            )
            .into()),
            _ => Ok(()),
        }
    }

    /// Refuses a node that an export uses, or an active node above it that is not among `inactivated`.
    fn check_unused_by_exports_and_active_nodes(
        &self,
        name: &str,
        inactivated: &[String],
    ) -> Result<(), BoxError> {
        let is_above = |open: &&OpenNode| {
            let stays_active = inactivated.iter().all(|name| open.node.name() != name);
            open.options.settings.active && stays_active && open.child_node_name() == Some(name)
        };
        if let Some(above) = self.nodes.iter().find(is_above) {
            let above = above.node.name();
            return Err(format!("Node '{name}' has active parent node '{above}'").into());
        }
        if let Some(export) = self
            .exports
            .iter()
            .find(|export| export.options.exports_node(name))
        {
            let export = &export.options.id;
            return Err(format!("Node '{name}' is in use by export '{export}'").into());
        }
        Ok(())
    }
}
