//! The bitmap of a first incremental backup, which has a temporary name until all is copied: if the command is killed before, or the
//! daemon ends, there is no bitmap that says that the target needs only what has changed.

use serde_json::{Value, json};

use crate::operator::client::Client;
use crate::operator::disk::Disk;
use crate::operator::error::{Error, Result};
use crate::operator::job::name_of_run;

/// Between the name and the number of the process.
const INFIX: &str = ".unfinished-";

/// The temporary name of this process' bitmap.
pub(super) fn temporary_name(bitmap: &str) -> String {
    format!("{bitmap}{INFIX}{}", std::process::id())
}

/// Removes temporary bitmaps that killed runs have left. A run that has not ended has a node for its target.
pub(super) fn remove_left_ones(client: &mut Client, disk: &Disk, bitmap: &str) -> Result<()> {
    let nodes = Disk::all(client)?;
    for found in &disk.bitmaps {
        let name = found["name"].as_str().unwrap_or_default();
        let pid = name.strip_prefix(bitmap);
        let pid = pid.and_then(|rest| rest.strip_prefix(INFIX)?.parse().ok());
        if let Some(pid) = pid
            && nodes
                .iter()
                .all(|node| node.node != name_of_run("backup", pid))
        {
            let found = json!({"node": disk.node, "name": name});
            match client.execute_to_end("block-dirty-bitmap-remove", found) {
                // Another run has removed it.
                Ok(_) | Err(Error::Command { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

/// Removes this process' bitmap. An error says what has failed before, or that the daemon is gone.
pub(super) fn remove(client: &mut Client, disk: &Disk, bitmap: &str) {
    let bitmap = json!({"node": disk.node, "name": temporary_name(bitmap)});
    let _ = client.execute_to_end("block-dirty-bitmap-remove", bitmap);
}

/// Gives this process' bitmap its name.
///
/// # Errors
/// [`Error::NoNewBitmap`].
pub(super) fn give_name(
    client: &mut Client,
    disk: &Disk,
    bitmap: &str,
    persistent: bool,
) -> Result<()> {
    let actions = renaming_actions(&disk.node, bitmap, persistent);
    let named = client.execute_to_end("transaction", json!({"actions": actions}));
    named.map(drop).map_err(|error| Error::NoNewBitmap {
        bitmap: bitmap.to_owned(),
        reason: Box::new(error),
    })
}

/// The action that adds a bitmap.
pub(super) fn add_action(node: &str, name: &str, persistent: bool) -> Value {
    let bitmap = json!({"node": node, "name": name, "persistent": persistent});
    json!({"type": "block-dirty-bitmap-add", "data": bitmap})
}

fn renaming_actions(node: &str, bitmap: &str, persistent: bool) -> [Value; 3] {
    let old = temporary_name(bitmap);
    let action = |kind: &str, data: Value| json!({"type": kind, "data": data});
    [
        add_action(node, bitmap, persistent),
        action(
            "block-dirty-bitmap-merge",
            json!({"node": node, "target": bitmap, "bitmaps": [old]}),
        ),
        action(
            "block-dirty-bitmap-remove",
            json!({"node": node, "name": old}),
        ),
    ]
}
