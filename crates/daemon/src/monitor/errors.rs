//! Errors of QMP commands, with QEMU's messages where it has the same error, and the running objects against which options are
//! validated.

use options::Problem;
use options::qmp_options::RunningObjectNames;
use qmp::Error;

use crate::error::BoxError;
use crate::state::node::OpenNode;
use crate::state::objects::Objects;

/// The QMP error for a failed action.
pub(super) fn error_of_failed_action(failure: &BoxError) -> Error {
    Error::generic(failure.to_string())
}

/// The QMP error for options that are invalid.
pub(super) fn error_of_invalid_options(problem: &Problem) -> Error {
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
            // QEMU has two forms of this message.
            _ if key == "node-name" => format!("Cannot find device='' nor node-name='{name}'"),
            _ => format!("Cannot find device='{name}' nor node-name='{name}'"),
        },
        other => other.to_string(),
    })
}

/// Ids and names of all running objects, against which options of new ones are validated.
pub(super) fn names_of_running_objects(objects: &Objects) -> Result<RunningObjectNames, Error> {
    names_of_running_objects_except_node(objects, "")
}

/// Ids and names of all running objects except the node of this name, whose options are to be replaced.
pub(super) fn names_of_running_objects_except_node(
    objects: &Objects,
    name: &str,
) -> Result<RunningObjectNames, Error> {
    let mut existing = RunningObjectNames::default();
    let to_error = |problem: Problem| error_of_invalid_options(&problem);
    for iothread in &objects.iothreads {
        existing
            .add_iothread(&iothread.options.id)
            .map_err(to_error)?;
    }
    let others = |node: &&OpenNode| node.node.name() != name;
    for node in objects.nodes.iter().filter(others) {
        existing
            .add_node(node.node.name(), node.node.read_only())
            .map_err(to_error)?;
    }
    for name in &objects.opening_nodes {
        existing.add_node(name, false).map_err(to_error)?;
    }
    for export in &objects.exports {
        let addr = &export.options.addr;
        existing
            .add_export_and_socket(&export.options.id, addr)
            .map_err(to_error)?;
    }
    Ok(existing)
}
