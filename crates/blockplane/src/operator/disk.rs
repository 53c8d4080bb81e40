//! The disk that a command is about: a node, found by its name or by the id of an export.

use serde_json::{Map, Value};

use crate::operator::client::Client;
use crate::operator::error::{Error, Result};

/// A node with its bitmaps.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Disk {
    pub node: String,
    pub bytes: u64,
    /// The members of QMP's `BlockDirtyInfo`.
    pub bitmaps: Vec<Value>,
}

impl Disk {
    /// All nodes, in the order of their creation.
    ///
    /// # Errors
    /// An error of [`Client`].
    pub fn all(client: &mut Client) -> Result<Vec<Disk>> {
        let nodes = client.execute("query-named-block-nodes", Map::new())?;
        let nodes = nodes.as_array().into_iter().flatten().rev();
        Ok(nodes.filter_map(Disk::of_reply).collect())
    }

    /// The node of the export with this id, or else the node of this name.
    ///
    /// # Errors
    /// [`Error::NoDisk`] if there is neither; an error of [`Client`].
    pub fn find(client: &mut Client, name: &str) -> Result<Disk> {
        let exports = client.execute("query-block-exports", Map::new())?;
        let mut exports = exports.as_array().into_iter().flatten();
        let export = exports.find(|export| export["id"] == name);
        let node = export.and_then(|export| export["node-name"].as_str());
        let node = node.unwrap_or(name).to_owned();
        let disks = Disk::all(client)?;
        let found = disks.iter().find(|disk| disk.node == node).cloned();
        found.ok_or_else(|| Error::NoDisk {
            name: name.to_owned(),
            nodes: disks.into_iter().map(|disk| disk.node).collect(),
        })
    }

    fn of_reply(node: &Value) -> Option<Disk> {
        Some(Disk {
            node: node["node-name"].as_str()?.to_owned(),
            bytes: node["image"]["virtual-size"].as_u64()?,
            bitmaps: node["dirty-bitmaps"]
                .as_array()
                .cloned()
                .unwrap_or_default(),
        })
    }

    /// The bitmap of this name.
    pub fn bitmap(&self, name: &str) -> Option<&Value> {
        self.bitmaps.iter().find(|bitmap| bitmap["name"] == name)
    }
}
