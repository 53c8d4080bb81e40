//! An open node in the daemon's state: its options, and the command that has reserved it.

use std::sync::Arc;

use block::Node;
use options::BlockdevOptions;

use crate::disk::bitmap_file::BitmapFile;
use crate::error::BoxError;

/// An open node.
pub(crate) struct OpenNode {
    pub options: BlockdevOptions,
    pub node: Arc<Node>,
    /// The node whose options define this one; it is removed with that.
    pub parent: Option<String>,
    /// The file of its persistent dirty bitmaps.
    pub bitmap_file: Option<Arc<BitmapFile>>,
    /// The command that has reserved it.
    pub reserved_by: Option<&'static str>,
}

impl OpenNode {
    /// Refuses a node that a command has reserved.
    pub fn check_not_reserved(&self) -> Result<(), BoxError> {
        let name = self.node.name();
        match self.reserved_by {
            None => Ok(()),
            Some(command) => Err(reserved_node_error(name, command)),
        }
    }

    /// Name of the node below.
    pub fn child_node_name(&self) -> Option<&str> {
        let (_, child) = self.options.driver.child_with_key()?;
        Some(child.node_name())
    }
}

/// The error for a node that another command has reserved.
pub(crate) fn reserved_node_error(name: &str, command: &str) -> BoxError {
    format!(
        "Node '{name}' is busy: a {command} waits for its disk; try again when that command is done"
    )
    .into()
}
