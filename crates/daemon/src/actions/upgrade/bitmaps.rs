//! Dirty bitmaps in a live upgrade: whether nodes record is described before the new process attaches to them, and the bits, which
//! change until then, when all queues have stopped. Each node's are in a file in memory.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::OwnedFd;

use block::Node;
use block::dirty_bitmap::SaveKind;
use rustix::fs::MemfdFlags;
use serde_json::{Map, Value};

use super::replaced_files::{file_from_json, file_to_json};
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
    for OpenNode {
        node, bitmap_file, ..
    } in nodes
    {
        let (name, bitmaps) = (node.name(), node.bitmaps());
        let failed =
            |error: String| format!("cannot hand the dirty bitmaps of node '{name}' over: {error}");
        let mut json = Map::new();
        if !bitmaps.statuses().is_empty() {
            let bits = file_in_memory(&bitmaps.save(SaveKind::Handover));
            let bits = bits.map_err(|error| failed(error.to_string()))?;
            json.insert("bits".to_owned(), fds.add(bits));
        }
        if let Some(file) = bitmap_file {
            let file = file_to_json(file.duplicate_descriptors(), fds).map_err(failed)?;
            json.insert("file".to_owned(), file);
        }
        if !json.is_empty() {
            all.insert(name.to_owned(), json.into());
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
    for (name, json) in stopped[KEY].as_object().into_iter().flatten() {
        let mut nodes = nodes.iter();
        let open = nodes.find(|open| open.node.name() == name);
        let OpenNode {
            node, bitmap_file, ..
        } = open.ok_or(INVALID_STATE)?;
        if let (Some(file), Some(json)) = (bitmap_file, json.get("file")) {
            file.take_over(file_from_json(json, fds)?);
        }
        let Some(bits) = json.get("bits") else {
            continue;
        };
        let mut saved = Vec::new();
        let mut file = File::from(fds.take(bits)?);
        file.rewind()?;
        file.read_to_end(&mut saved)?;
        let restored = node.bitmaps().restore(&saved, node.size(), None);
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
