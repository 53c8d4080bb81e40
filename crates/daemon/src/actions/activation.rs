//! Active and inactive nodes.
//!
//! An active node has its image's locks and may be used. An inactive one leaves the image to another program. Nodes below an active
//! one are active: they are activated first. An export makes its nodes active, and they stay so while it is there.

use std::sync::Arc;

use block::Node;

use crate::actions::node;
use crate::failure::Failure;
use crate::state::node::OpenNode;
use crate::state::objects::Objects;

impl Objects {
    /// The node of this name, for an export.
    pub fn active_node(&mut self, name: &str) -> Result<Arc<Node>, Failure> {
        let node = self.node(name)?;
        self.activate(name)?;
        Ok(node)
    }

    /// A node becomes active, those below it first. Those that are so already stay as they are.
    pub fn activate(&mut self, name: &str) -> Result<(), Failure> {
        let open = self.named_node(name)?;
        open.check_free()?;
        if open.options.settings.active {
            return Ok(());
        }
        if let Some(below) = open.below().map(str::to_owned) {
            self.activate(&below)?;
        }
        let mut nodes = self.nodes.iter_mut();
        if let Some(open) = nodes.find(|open| open.node.name() == name) {
            if let Some(file) = open.options.driver.file() {
                open.node
                    .lock(&file.filename, node::locking(file.locking))?;
            }
            open.options.settings.active = true;
            tracing::info!(node = name, "active");
        }
        Ok(())
    }

    /// All nodes become active.
    pub fn activate_all(&mut self) -> Result<(), Failure> {
        let names = self.nodes.iter().map(|open| open.node.name().to_owned());
        let names: Vec<String> = names.collect();
        names.iter().try_for_each(|name| self.activate(name))
    }

    /// What becomes inactive with a node, itself first: nodes below it that no other active node is in front of. They are
    /// reserved, to be flushed. Nothing, if it is inactive already.
    pub fn begin_inactivate(&mut self, name: &str) -> Result<Vec<String>, Failure> {
        let open = self.named_node(name)?;
        if !open.options.settings.active {
            return Ok(Vec::new());
        }
        self.check_unused(name, &[])?;
        let mut goes = vec![name.to_owned()];
        let mut below = open.below();
        while let Some(name) = below
            && self.check_unused(name, &goes).is_ok()
        {
            goes.push(name.to_owned());
            below = self.find_node(name).and_then(OpenNode::below);
        }
        self.reserve(&goes, "blockdev-set-active")?;
        Ok(goes)
    }

    /// The same of all nodes that are active.
    pub fn begin_inactivate_all(&mut self) -> Result<Vec<String>, Failure> {
        let active = self
            .nodes
            .iter()
            .filter(|open| open.options.settings.active);
        let names: Vec<String> = active.map(|open| open.node.name().to_owned()).collect();
        for name in &names {
            self.check_unused(name, &names)?;
        }
        self.reserve(&names, "blockdev-set-active")?;
        Ok(names)
    }

    /// Nodes that were reserved for it, and have been flushed, become inactive.
    pub fn inactivate(&mut self, names: &[String]) {
        self.release(names);
        for open in &mut self.nodes {
            if names.iter().any(|name| open.node.name() == name) {
                open.node.unlock();
                open.options.settings.active = false;
                tracing::info!(node = open.node.name(), "inactive");
            }
        }
    }

    /// Refuses an active node in front of an inactive one.
    pub fn check_active_below(&self, active: bool, below: &str) -> Result<(), Failure> {
        match self.find_node(below) {
            Some(open) if active && !open.options.settings.active => Err(format!(
                "Inactive '{below}' can't be below an active node: activate it by blockdev-set-active, or add the node with active=off"
            )
            .into()),
            _ => Ok(()),
        }
    }

    /// Refuses while an export shows the node, or an active node is in front of it that does not `go` as well.
    fn check_unused(&self, name: &str, go: &[String]) -> Result<(), Failure> {
        let is_above = |open: &&OpenNode| {
            let goes = go.iter().any(|name| open.node.name() == name);
            open.options.settings.active && !goes && open.below() == Some(name)
        };
        if let Some(above) = self.nodes.iter().find(is_above) {
            let above = above.node.name();
            return Err(format!("Node '{name}' has active parent node '{above}'").into());
        }
        if let Some(export) = self
            .exports
            .iter()
            .find(|export| export.options.shows(name))
        {
            let export = &export.options.id;
            return Err(format!("Node '{name}' is in use: export '{export}' shows it").into());
        }
        Ok(())
    }
}
