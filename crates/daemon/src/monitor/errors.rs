//! Errors of commands, in QEMU's words where it has some.

use options::Problem;
use options::live::Live;
use qmp::Error;

use crate::error::BoxError;
use crate::state::node::OpenNode;
use crate::state::objects::Objects;

/// Why something could not be made or removed.
pub(super) fn failed(failure: &BoxError) -> Error {
    Error::generic(failure.to_string())
}

/// What is wrong with the options of something new.
pub(super) fn refused(problem: &Problem) -> Error {
    Error::generic(match problem {
        Problem::Missing { key, .. } if key == "node-name" => {
            "'node-name' must be specified for the root node".to_owned()
        }
        Problem::Missing { key, .. } => format!("Parameter '{key}' is missing"),
        Problem::UnknownKey { key, .. } => format!("Parameter '{key}' is unexpected"),
        Problem::OutOfRange { key, min, max, .. } => {
            format!("{key} value must be in range [{min}, {max}]")
        }
        Problem::Duplicate { kind, name, .. } => match *kind {
            "a node" => format!("Duplicate nodes with node-name='{name}'"),
            "an export" => format!("Block export id '{name}' is already in use"),
            _ => {
                format!("attempt to add duplicate property '{name}' to object (type 'container')")
            }
        },
        Problem::NotDefined {
            kind, name, key, ..
        } => match *kind {
            "iothread" => format!("iothread \"{name}\" not found"),
            // The field's two ways to name a node's parent.
            _ if key == "node-name" => format!("Cannot find device='' nor node-name='{name}'"),
            _ => format!("Cannot find device='{name}' nor node-name='{name}'"),
        },
        other => other.to_string(),
    })
}

/// What runs, to read options of more against.
pub(super) fn live(objects: &Objects) -> Result<Live, Error> {
    live_without(objects, "")
}

/// The same as if there were no node of that name: it is to be described anew.
pub(super) fn live_without(objects: &Objects, name: &str) -> Result<Live, Error> {
    let mut live = Live::default();
    let read = |problem: Problem| refused(&problem);
    for iothread in &objects.iothreads {
        live.add_iothread(&iothread.options.id).map_err(read)?;
    }
    let others = |node: &&OpenNode| node.node.name() != name;
    for node in objects.nodes.iter().filter(others) {
        live.add_node(node.node.name(), node.node.read_only())
            .map_err(read)?;
    }
    for name in &objects.opening_nodes {
        live.add_node(name, false).map_err(read)?;
    }
    for export in &objects.exports {
        let addr = &export.options.addr;
        live.add_export(&export.options.id, addr).map_err(read)?;
    }
    Ok(live)
}
