//! File names of nodes as QEMU shows them: a path, or `json:` and the options of a node that no path describes.

use std::collections::HashMap;

use options::{DEFAULT_NULL_SIZE, Driver, RbdOptions};
use serde_json::{Value, json};

use crate::state::node::OpenNode;

/// File names of nodes in the form of QEMU, by node: a path, or `json:` and its options if a path does not describe it.
pub(super) type QemuFilenames<'a> = HashMap<&'a str, String>;

/// File names of all nodes. A window that shows all of the node below has the name of that one; each node of a chain of windows
/// is looked at once.
pub(super) fn qemu_filenames_of_nodes(nodes: &[OpenNode]) -> QemuFilenames<'_> {
    let by_name: HashMap<&str, &OpenNode> =
        nodes.iter().map(|open| (open.node.name(), open)).collect();
    let mut filenames = QemuFilenames::new();
    for open in nodes {
        let mut bottom = open;
        let mut same_filename = vec![bottom.node.name()];
        while !filenames.contains_key(bottom.node.name())
            && let Some(below) = name_of_node_shown_whole(bottom)
            && let Some(below) = by_name.get(below)
        {
            bottom = below;
            same_filename.push(bottom.node.name());
        }
        let known = filenames.get(bottom.node.name()).cloned();
        let filename = known.unwrap_or_else(|| qemu_filename_of_node(bottom));
        filenames.extend(
            same_filename
                .into_iter()
                .map(|name| (name, filename.clone())),
        );
    }
    filenames
}

/// Name of the node below a window that shows all of it.
fn name_of_node_shown_whole(open: &OpenNode) -> Option<&str> {
    match &open.options.driver {
        Driver::Raw { part, .. } if (part.offset, part.size) == (0, None) => open.child_node_name(),
        _ => None,
    }
}

/// The options that say which image it is, as in QEMU's file names.
fn rbd_filename_options(rbd: &RbdOptions) -> Value {
    let mut options = json!({"driver": "rbd", "pool": rbd.pool, "image": rbd.image});
    let optional = [
        ("namespace", rbd.namespace.clone()),
        ("snapshot", rbd.snapshot.clone()),
        ("user", rbd.user.clone()),
        (
            "conf",
            rbd.conf.as_ref().map(|conf| conf.display().to_string()),
        ),
    ];
    for (key, value) in optional {
        if let Some(value) = value {
            options[key] = value.into();
        }
    }
    for (index, server) in rbd.server.iter().enumerate() {
        options[format!("server.{index}.host")] = server.host.clone().into();
        options[format!("server.{index}.port")] = server.port.to_string().into();
    }
    options
}

/// File name of a node that does not have the one of the node below.
fn qemu_filename_of_node(open: &OpenNode) -> String {
    let options = match &open.options.driver {
        Driver::File(file) | Driver::HostDevice(file) => {
            return file.filename.display().to_string();
        }
        Driver::NullCo(null) if null.size == DEFAULT_NULL_SIZE => return "null-co://".to_owned(),
        Driver::NullCo(null) => json!({"driver": "null-co", "size": (null.size)}),
        Driver::Nbd(nbd) => return nbd.uri(),
        Driver::Rbd(rbd) => rbd_filename_options(rbd),
        Driver::Raw { file, part } => {
            let (below, size) = (file.node_name(), open.node.size());
            json!({"driver": "raw", "file": below, "offset": part.offset, "size": size})
        }
        Driver::Throttle { file, member } => {
            let (below, group) = (file.node_name(), &member.throttle_group);
            json!({"driver": "throttle", "throttle-group": group, "file": below})
        }
        Driver::Blkdebug { image, .. } => {
            json!({"driver": "blkdebug", "image": image.node_name()})
        }
        Driver::SnapshotAccess { file } => {
            json!({"driver": "snapshot-access", "file": file.node_name()})
        }
    };
    format!("json:{}", qmp::json_to_text(&options))
}
