//! The names of running objects, against which options of QMP commands are validated.

use options::Problem;
use options::qmp_options::RunningObjectNames;
use qmp::Error;

use super::error_conversion::error_of_invalid_options;
use crate::control::MainThread;
use crate::state::DaemonObjects;
use crate::state::node::OpenNode;

/// Ids and names of all running objects, against which options of new ones are validated.
pub(super) fn names_of_running_objects(
    objects: &DaemonObjects,
) -> Result<RunningObjectNames, Error> {
    names_of_running_objects_except_node(objects, "")
}

/// Ids and names of all running objects except the node of this name, whose options are to be replaced.
pub(super) fn names_of_running_objects_except_node(
    objects: &DaemonObjects,
    name: &str,
) -> Result<RunningObjectNames, Error> {
    let mut existing = RunningObjectNames::default();
    let to_error = |problem: Problem| error_of_invalid_options(&problem);
    for (r#type, id) in objects.types_and_ids_of_objects() {
        existing.add_object(r#type, id).map_err(to_error)?;
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
        let addr = export.options.kind.socket();
        existing
            .add_export_and_socket(&export.options.id, addr)
            .map_err(to_error)?;
    }
    Ok(existing)
}

/// Ids and names of all running objects, and of all chardevs except the one of this id, whose options are to be replaced.
pub(super) fn names_of_running_objects_and_other_chardevs(
    control: &MainThread,
    id: &str,
) -> Result<RunningObjectNames, Error> {
    let mut existing = names_of_running_objects(&control.objects)?;
    for chardev in control.chardevs.iter().filter(|other| other.id() != id) {
        existing
            .add_chardev_and_socket(chardev.options())
            .map_err(|problem| error_of_invalid_options(&problem))?;
    }
    Ok(existing)
}
