//! An open node and its options.

use std::sync::Arc;

use block::Node;
use options::BlockdevOptions;

use crate::failure::Failure;

/// A node.
pub(crate) struct OpenNode {
    pub options: BlockdevOptions,
    pub node: Arc<Node>,
    /// The node that it was written into, and goes with.
    pub parent: Option<String>,
    /// The command that is at work on it, and waits for the disk.
    pub busy: Option<&'static str>,
}

impl OpenNode {
    /// No command is at work on it.
    pub fn check_free(&self) -> Result<(), Failure> {
        let name = self.node.name();
        match self.busy {
            None => Ok(()),
            Some(command) => Err(busy(name, command)),
        }
    }

    /// The node that this one is a part of.
    pub fn below(&self) -> Option<&str> {
        let (_, child) = self.options.driver.child()?;
        Some(child.node_name())
    }
}

/// Why a node cannot be used while another command is at work on it.
pub(crate) fn busy(name: &str, command: &str) -> Failure {
    format!(
        "Node '{name}' is busy: a {command} waits for its disk; try again when that is answered"
    )
    .into()
}
