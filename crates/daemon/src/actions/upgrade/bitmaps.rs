//! Dirty bitmaps in a live upgrade: whether nodes record is described before the new process attaches to them, and the bits, which
//! change until then, when all queues have stopped. Each node's are in a file in memory.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::OwnedFd;

use block::Node;
use block::dirty_bitmap::SaveKind;
use rustix::fs::MemfdFlags;
use serde_json::{Map, Value};

use crate::error::BoxError;
use crate::state::node::OpenNode;
use crate::upgrade::state_json::{INVALID_STATE, IncomingFds, OutgoingFds, read_list};

/// The member of the message about stopped exports that has the bitmaps. No export can have this id.
const KEY: &str = ".dirty-bitmaps";

/// Adds to the description of a node that its routes record.
pub(super) fn describe_in_node(node: &Node, json: &mut Value) {
    if node.bitmaps().new_routes_record() {
        json["records"] = true.into();
    }
}

/// Names of the nodes that are described so.
pub(super) fn names_of_recording_nodes(nodes: &Value) -> Result<Vec<&str>, &'static str> {
    let nodes = read_list(nodes)?.iter();
    let recording = nodes.filter(|node| node["records"] == true);
    Ok(recording.filter_map(|node| node["name"].as_str()).collect())
}

/// Adds the bitmaps of all nodes, whose queues have stopped.
pub(super) fn add_to_stopped(
    nodes: &[OpenNode],
    stopped: &mut Map<String, Value>,
    fds: &mut OutgoingFds,
) -> Result<(), String> {
    let mut all = Map::new();
    for OpenNode { node, .. } in nodes {
        if !node.bitmaps().statuses().is_empty() {
            let file = file_in_memory(&node.bitmaps().save(SaveKind::Handover));
            let file = file.map_err(|error| {
                format!(
                    "cannot hand the dirty bitmaps of node '{}' over: {error}",
                    node.name()
                )
            })?;
            all.insert(node.name().to_owned(), fds.add(file));
        }
    }
    stopped.insert(KEY.to_owned(), all.into());
    Ok(())
}

/// Restores the bitmaps of all nodes, before queues start.
pub(super) fn restore_from_stopped(
    nodes: &[OpenNode],
    stopped: &Value,
    fds: &mut IncomingFds,
) -> Result<(), BoxError> {
    // An old process that does not send them has none.
    for (name, fd) in stopped[KEY].as_object().into_iter().flatten() {
        let mut nodes = nodes.iter().map(|open| &open.node);
        let node = nodes.find(|node| node.name() == name);
        let node = node.ok_or(INVALID_STATE)?;
        let mut saved = Vec::new();
        let mut file = File::from(fds.take(fd)?);
        file.rewind()?;
        file.read_to_end(&mut saved)?;
        let restored = node.bitmaps().restore(&saved, node.size());
        restored.map_err(|error| format!("dirty bitmaps of node '{name}': {error}"))?;
    }
    Ok(())
}

/// A file in memory with this content.
fn file_in_memory(content: &[u8]) -> std::io::Result<OwnedFd> {
    let mut file = File::from(rustix::fs::memfd_create(
        "dirty-bitmaps",
        MemfdFlags::CLOEXEC,
    )?);
    file.write_all(content)?;
    Ok(file.into())
}
