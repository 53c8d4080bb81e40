//! The QMP commands `scsi-lun-add` and `scsi-lun-del`: hot plug of LUNs of virtio-scsi while guests use the others.
//!
//! The controller's queues are quiesced for a moment: requests in flight are finished, and the queues resume with the new
//! set of disks.

use std::sync::{Arc, Mutex, PoisonError};

use options::{ExportKind, LunOptions};
use qmp::{Arguments, Command, CommandHandler, Error, Member, ObjectType, ReplySender, Type};
use serde_json::Value;
use vhost_user::FrontEndHandle;

use super::error_conversion::{error_of_failed_action, error_of_invalid_options};
use super::running_object_names::names_of_running_objects;
use super::{option_types, str_arg_or_empty};
use crate::actions::one_connection::check_iothreads_of_nodes;
use crate::command_threads::CommandOnShutdown;
use crate::control::MainThread;
use crate::devices::export_server;
use crate::devices::virtio_scsi::VirtioScsiController;
use crate::error::BoxError;
use crate::state::DaemonObjects;
use crate::state::export::{Export, ExportState};

/// The commands for LUNs.
pub(super) fn qmp_commands() -> Vec<Command<MainThread>> {
    let mut add = option_types::arguments_from_type("BlockExportLun");
    add.members.insert(0, Member::required("id", Type::Str));
    vec![
        Command {
            name: "scsi-lun-add",
            arguments: add,
            returns: None,
            run: CommandHandler::Deferred(add_lun_to_export),
        },
        Command {
            name: "scsi-lun-del",
            arguments: ObjectType::with_members(vec![
                Member::required("id", Type::Str),
                Member::optional("target", Type::Int),
                Member::required("lun", Type::Int),
            ]),
            returns: None,
            run: CommandHandler::Deferred(delete_lun),
        },
    ]
}

/// What the commands need of a virtio-scsi export that is being served.
struct VirtioScsiExport {
    controller: Arc<VirtioScsiController>,
    front_ends: FrontEndHandle,
    writable: bool,
    luns: Vec<LunOptions>,
    iothreads: Vec<String>,
}

/// Finds a virtio-scsi export by its id; an error if it has another type or is being removed.
fn find_virtio_scsi_export(objects: &DaemonObjects, id: &str) -> Result<VirtioScsiExport, Error> {
    let mut exports = objects.exports.iter();
    let export = exports
        .find(|export| export.options.id == id)
        .ok_or_else(|| Error::generic(format!("Export '{id}' is not found")))?;
    if matches!(export.state, ExportState::Draining(_)) {
        let text = format!("Export '{id}' is already shutting down");
        return Err(Error::generic(text));
    }
    match (
        &export.controller,
        export.front_end_handle(),
        &export.options.kind,
    ) {
        (
            Some(controller),
            Some(export_server::ExportFrontEndHandle::VhostUser(front_ends)),
            ExportKind::VhostUserScsi { luns, .. },
        ) => Ok(VirtioScsiExport {
            controller: controller.clone(),
            front_ends,
            writable: export.options.settings.writable,
            luns: luns.clone(),
            iothreads: export.options.iothreads.clone(),
        }),
        (_, _, kind) => Err(Error::generic(format!(
            "Export '{id}' is of type '{}': LUNs can be added and removed only in one of type 'vhost-user-scsi'",
            kind.name()
        ))),
    }
}

/// Updates the options of an export after a change of its LUNs, so that queries and a live upgrade see it.
fn update_luns_of_export(
    control: &mut MainThread,
    id: &str,
    update_luns: impl FnOnce(&mut Vec<LunOptions>),
) {
    let mut exports = control.objects.exports.iter_mut();
    if let Some(export) = exports.find(|export| export.options.id == id)
        && let ExportKind::VhostUserScsi { luns, .. } = &mut export.options.kind
    {
        update_luns(luns);
        let first = luns.first();
        export.options.node_name = first.map_or_else(String::new, |lun| lun.node_name.clone());
        copy_disk_list_from_controller(export);
    }
}

/// Replaces the export's list of disks, from which statistics are read, by the controller's present one.
fn copy_disk_list_from_controller(export: &mut Export) {
    if let Some(controller) = &export.controller {
        export.disks = controller.exported_disks();
    }
}

/// Changes the controller's LUNs while its queues are quiesced.
fn change_luns_while_quiesced(
    front_ends: &FrontEndHandle,
    change: impl Fn() -> Result<(), BoxError>,
) -> Result<(), Error> {
    let outcome = Mutex::new(Ok(()));
    front_ends.exchange_when_drained(|| {
        *outcome.lock().unwrap_or_else(PoisonError::into_inner) = change()
    });
    let outcome = outcome.into_inner().unwrap_or_else(PoisonError::into_inner);
    outcome.map_err(|failure| error_of_failed_action(&failure))
}

/// Addition or removal of a LUN.
struct LunChange<S> {
    /// The QMP command, in whose name the node is reserved.
    reserving_command: &'static str,
    export_id: String,
    node_name: String,
    /// Adds the LUN to the options of the export, or removes it.
    update_luns: S,
}

/// Adds or removes a LUN in a job: calls `change_disks` on its thread, and then updates the options of the export. The node
/// is reserved until then, so that no other command uses it meanwhile.
fn reserve_node_and_change_luns_in_job(
    control: &mut MainThread,
    change: LunChange<impl FnOnce(&mut Vec<LunOptions>) + Send + 'static>,
    reply: ReplySender,
    change_disks: impl FnOnce() -> Result<(), Error> + Send + 'static,
) {
    let LunChange {
        reserving_command,
        export_id,
        node_name,
        update_luns,
    } = change;
    let nodes = vec![node_name];
    if let Err(failure) = control.objects.reserve_nodes(&nodes, reserving_command) {
        return reply.send(Err(error_of_failed_action(&failure)));
    }
    control.spawn_command_thread_and_reply_later(
        format!("lun {export_id}"),
        CommandOnShutdown::Wait,
        reply,
        change_disks,
        move |control, outcome| {
            control.objects.release_nodes(&nodes);
            if outcome.is_ok() {
                update_luns_of_export(control, &export_id, update_luns);
            }
            outcome
        },
    );
}

/// `scsi-lun-add`: gives an export another disk.
fn add_lun_to_export(control: &mut MainThread, arguments: &Arguments, reply: ReplySender) {
    let id = str_arg_or_empty(arguments, "id").to_owned();
    let (export, lun) = match find_export_and_validate_lun(control, &id, arguments) {
        Ok(planned) => planned,
        Err(error) => return reply.send(Err(error)),
    };
    let node = control
        .objects
        .activate_node_for_export(&lun.node_name, lun.writable);
    let (disk, block_mode) = match node.and_then(|node| {
        export
            .controller
            .create_disk_and_set_guest_block_size(&lun, node, false)
    }) {
        Ok(created) => created,
        Err(failure) => return reply.send(Err(error_of_failed_action(&failure))),
    };
    let change = LunChange {
        reserving_command: "scsi-lun-add",
        export_id: id,
        node_name: lun.node_name.clone(),
        update_luns: move |luns: &mut Vec<LunOptions>| luns.push(lun),
    };
    let change_disks = move || {
        change_luns_while_quiesced(&export.front_ends, || {
            export.controller.insert_disk(disk.clone())
        })?;
        block_mode.keep();
        Ok(())
    };
    reserve_node_and_change_luns_in_job(control, change, reply, change_disks);
}

/// Finds the export, and validates the options of the new LUN against those that it has.
fn find_export_and_validate_lun(
    control: &MainThread,
    id: &str,
    arguments: &Arguments,
) -> Result<(VirtioScsiExport, LunOptions), Error> {
    let export = find_virtio_scsi_export(&control.objects, id)?;
    let mut lun_options = arguments.clone();
    lun_options.remove("id");
    let json = Value::Object(lun_options).to_string();
    let lun = names_of_running_objects(&control.objects)?.read_lun_beside_others(
        &json,
        export.writable,
        &export.luns,
    );
    let lun = lun.map_err(|problem| error_of_invalid_options(&problem))?;
    let checked = check_iothreads_of_nodes([&lun.node_name], &export.iothreads, &control.objects);
    checked.map_err(|failure| error_of_failed_action(&failure))?;
    Ok((export, lun))
}

/// `scsi-lun-del`: removes a disk from an export; its node stays.
fn delete_lun(control: &mut MainThread, arguments: &Arguments, reply: ReplySender) {
    let id = str_arg_or_empty(arguments, "id").to_owned();
    let int_arg = |name: &str| arguments.get(name).and_then(Value::as_i64).unwrap_or(0);
    let (target, number) = (int_arg("target"), int_arg("lun"));
    let is_wanted =
        |lun: &LunOptions| (i64::from(lun.target), i64::from(lun.lun)) == (target, number);
    let found = find_virtio_scsi_export(&control.objects, &id).and_then(|export| {
        let lun = export.luns.iter().find(|lun| is_wanted(lun)).cloned();
        let lun = lun.ok_or_else(|| {
            Error::generic(format!(
                "Export '{id}' has no LUN {number} at target {target}"
            ))
        })?;
        Ok((export, lun))
    });
    let (export, lun) = match found {
        Ok(found) => found,
        Err(error) => return reply.send(Err(error)),
    };
    let removed = lun.clone();
    let change = LunChange {
        reserving_command: "scsi-lun-del",
        export_id: id,
        node_name: lun.node_name.clone(),
        update_luns: move |luns: &mut Vec<LunOptions>| luns.retain(|lun| *lun != removed),
    };
    let change_disks = move || {
        change_luns_while_quiesced(&export.front_ends, || export.controller.remove_disk(&lun))
    };
    reserve_node_and_change_luns_in_job(control, change, reply, change_disks);
}
