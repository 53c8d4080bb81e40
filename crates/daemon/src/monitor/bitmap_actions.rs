//! Actions on dirty bitmaps, as commands and `transaction` have them: reads and checks their arguments.

use std::sync::Arc;

use block::Node;
use block::dirty_bitmap::{
    BitmapAction, BitmapChange, BitmapError, DEFAULT_GRANULARITY, MAX_GRANULARITY, MIN_GRANULARITY,
};
use qmp::{Arguments, Error};
use serde_json::Value;

use super::error_conversion::error_of_failed_action;
use super::str_arg_or_empty;
use crate::state::DaemonObjects;
use crate::state::node::OpenNode;

/// The error of a bitmap as monitors get it.
pub(super) fn error_of_bitmap(error: BitmapError) -> Error {
    Error::generic(error.to_string())
}

/// Reads an action on a bitmap, and the node that it changes.
pub(super) fn read_action(
    objects: &DaemonObjects,
    kind: &str,
    data: &Arguments,
) -> Result<(Arc<Node>, BitmapAction), Error> {
    let name = str_arg_or_empty(data, "node");
    let bitmap = match kind {
        "block-dirty-bitmap-merge" => str_arg_or_empty(data, "target"),
        _ => str_arg_or_empty(data, "name"),
    };
    if kind == "block-dirty-bitmap-add" && bitmap.is_empty() {
        return Err(error_of_bitmap(BitmapError::EmptyName));
    }
    let found = objects.find_node(name).ok_or_else(|| match kind {
        "block-dirty-bitmap-add" => Error::generic(format!(
            "Cannot find device='{name}' nor node-name='{name}'"
        )),
        _ => Error::generic(format!("Node '{name}' not found")),
    })?;
    let reserved = found.check_not_reserved();
    reserved.map_err(|failure| error_of_failed_action(&failure))?;
    let change = match kind {
        "block-dirty-bitmap-add" => read_add(found, data)?,
        "block-dirty-bitmap-remove" => BitmapChange::Remove,
        "block-dirty-bitmap-clear" => BitmapChange::Clear,
        "block-dirty-bitmap-enable" => BitmapChange::Enable(true),
        "block-dirty-bitmap-disable" => BitmapChange::Enable(false),
        _ => read_merge(objects, found, data)?,
    };
    let action = BitmapAction {
        node: found.node.bitmaps().clone(),
        bitmap: bitmap.to_owned(),
        change,
    };
    Ok((found.node.clone(), action))
}

/// Reads the arguments of a new bitmap.
fn read_add(open: &OpenNode, data: &Arguments) -> Result<BitmapChange, Error> {
    let node = &open.node;
    let flag = |key| data.get(key).and_then(Value::as_bool).unwrap_or(false);
    let granularity = match data.get("granularity") {
        None => default_granularity(node),
        Some(value) => {
            let value = value.as_u64().and_then(|value| u32::try_from(value).ok());
            let text = "Parameter 'granularity' expects uint32_t";
            u64::from(value.ok_or_else(|| Error::generic(text))?)
        }
    };
    if !granularity.is_power_of_two() || !(MIN_GRANULARITY..=MAX_GRANULARITY).contains(&granularity)
    {
        return Err(error_of_bitmap(BitmapError::Granularity));
    }
    let persistent = flag("persistent");
    if persistent && open.bitmap_file.is_none() {
        return Err(Error::generic(refusal_of_persistent(open)));
    }
    Ok(BitmapChange::Add {
        size: node.size(),
        granularity,
        enabled: !flag("disabled"),
        persistent,
    })
}

/// Why a node has no persistent bitmaps.
fn refusal_of_persistent(open: &OpenNode) -> String {
    let name = open.node.name();
    if open.node.read_only() || !open.options.settings.active {
        return format!("Cannot add a persistent bitmap to read-only or inactive node '{name}'");
    }
    format!("Can't store persistent bitmaps to {name}: Operation not supported")
}

/// The granularity that QEMU chooses: the disk's clusters, if it has any, in limits.
fn default_granularity(node: &Node) -> u64 {
    match node.image_status() {
        Some(status) => status.object_bytes.clamp(4096, DEFAULT_GRANULARITY),
        None => DEFAULT_GRANULARITY,
    }
}

/// Reads the names of bitmaps that are merged into another one.
fn read_merge(
    objects: &DaemonObjects,
    target: &OpenNode,
    data: &Arguments,
) -> Result<BitmapChange, Error> {
    let sources = data.get("bitmaps").and_then(Value::as_array);
    let sources = sources.into_iter().flatten().map(|source| {
        let (node, name) = match source.as_str() {
            Some(name) => (target, name),
            None => {
                let node = source["node"].as_str().unwrap_or_default();
                let found = objects.find_node(node);
                let missing = || Error::generic(format!("Node '{node}' not found"));
                let name = source["name"].as_str().unwrap_or_default();
                (found.ok_or_else(missing)?, name)
            }
        };
        Ok((node.node.bitmaps().clone(), name.to_owned()))
    });
    Ok(BitmapChange::Merge(sources.collect::<Result<_, Error>>()?))
}
