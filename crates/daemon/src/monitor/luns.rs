//! `scsi-lun-add`, `scsi-lun-del`: units of a controller that come and go while guests use the others.
//!
//! The controller's queues are at rest for a moment: what they have taken is finished, and they go on with other disks.

use std::sync::{Arc, Mutex, PoisonError};

use options::{ExportKind, LunOptions};
use qmp::{Arguments, Command, Error, Member, Object, Reply, Run, Type};
use serde_json::Value;
use vhost_user::FrontEnds;

use super::errors::{failed, live, refused};
use super::{text, types};
use crate::control::Control;
use crate::devices::export_server;
use crate::devices::virtio_scsi::ScsiController;
use crate::error::BoxError;
use crate::jobs::OnShutdown;
use crate::state::export::{Export, ExportState};
use crate::state::objects::Objects;

pub(super) fn commands() -> Vec<Command<Control>> {
    let mut add = types::arguments("BlockExportLun");
    add.members.insert(0, Member::required("id", Type::Str));
    vec![
        Command {
            name: "scsi-lun-add",
            arguments: add,
            returns: None,
            run: Run::Deferred(add_lun),
        },
        Command {
            name: "scsi-lun-del",
            arguments: Object::of(vec![
                Member::required("id", Type::Str),
                Member::optional("target", Type::Int),
                Member::required("lun", Type::Int),
            ]),
            returns: None,
            run: Run::Deferred(delete_lun),
        },
    ]
}

/// A controller that is served.
struct Found {
    controller: Arc<ScsiController>,
    front_ends: FrontEnds,
    writable: bool,
    luns: Vec<LunOptions>,
}

fn find(objects: &Objects, id: &str) -> Result<Found, Error> {
    let mut exports = objects.exports.iter();
    let export = exports
        .find(|export| export.options.id == id)
        .ok_or_else(|| Error::generic(format!("Export '{id}' is not found")))?;
    if matches!(export.state, ExportState::Ending(_)) {
        let text = format!("Export '{id}' is already shutting down");
        return Err(Error::generic(text));
    }
    match (
        &export.controller,
        export.front_ends(),
        &export.options.kind,
    ) {
        (
            Some(controller),
            Some(export_server::ExportFrontEnds::VhostUser(front_ends)),
            ExportKind::VhostUserScsi { luns, .. },
        ) => Ok(Found {
            controller: controller.clone(),
            front_ends,
            writable: export.options.settings.writable,
            luns: luns.clone(),
        }),
        (_, _, kind) => Err(Error::generic(format!(
            "Export '{id}' is of type '{}': only in one of type 'vhost-user-scsi' units come and go",
            kind.name()
        ))),
    }
}

/// What the options of the export say afterwards.
fn change(control: &mut Control, id: &str, change: impl FnOnce(&mut Vec<LunOptions>)) {
    let mut exports = control.objects.exports.iter_mut();
    if let Some(export) = exports.find(|export| export.options.id == id)
        && let ExportKind::VhostUserScsi { luns, .. } = &mut export.options.kind
    {
        change(luns);
        let first = luns.first();
        export.options.node_name = first.map_or_else(String::new, |lun| lun.node_name.clone());
        show(export);
    }
}

/// What is told of its disks is told of those that it has.
fn show(export: &mut Export) {
    if let Some(controller) = &export.controller {
        export.disks = controller.exported_disks();
    }
}

/// Changes the units while no queue uses them.
fn exchange(
    front_ends: &FrontEnds,
    change: impl Fn() -> Result<(), BoxError>,
) -> Result<(), Error> {
    let done = Mutex::new(Ok(()));
    front_ends.exchange(|| *done.lock().unwrap_or_else(PoisonError::into_inner) = change());
    let done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.map_err(|failure| failed(&failure))
}

/// What becomes of a controller's units.
struct Changed<S> {
    command: &'static str,
    /// The controller's.
    id: String,
    /// The unit's.
    node_name: String,
    /// How its options say so.
    says: S,
}

/// Lets units come or go on a thread of its own, and then says so. The node is reserved until then: what is done to it
/// meanwhile would be done to whatever comes to the same place.
fn later(
    control: &mut Control,
    changed: Changed<impl FnOnce(&mut Vec<LunOptions>) + Send + 'static>,
    reply: Reply,
    carry_out: impl FnOnce() -> Result<(), Error> + Send + 'static,
) {
    let Changed {
        command,
        id,
        node_name,
        says,
    } = changed;
    let nodes = vec![node_name];
    if let Err(failure) = control.objects.reserve(&nodes, command) {
        return reply.send(Err(failed(&failure)));
    }
    control.run_command_job(
        format!("lun {id}"),
        OnShutdown::Wait,
        reply,
        carry_out,
        move |control, done| {
            control.objects.release(&nodes);
            if done.is_ok() {
                change(control, &id, says);
            }
            done
        },
    );
}

fn add_lun(control: &mut Control, arguments: &Arguments, reply: Reply) {
    let id = text(arguments, "id").to_owned();
    let (found, lun) = match plan_add(control, &id, arguments) {
        Ok(planned) => planned,
        Err(error) => return reply.send(Err(error)),
    };
    let made = control.objects.active_node(&lun.node_name);
    let disk = match made.and_then(|node| found.controller.create_disk(&lun, node, false)) {
        Ok(made) => made,
        Err(failure) => return reply.send(Err(failed(&failure))),
    };
    let changed = Changed {
        command: "scsi-lun-add",
        id,
        node_name: lun.node_name.clone(),
        says: move |luns: &mut Vec<LunOptions>| luns.push(lun),
    };
    let carry_out = move || exchange(&found.front_ends, || found.controller.insert(disk.clone()));
    later(control, changed, reply, carry_out);
}

fn plan_add(
    control: &Control,
    id: &str,
    arguments: &Arguments,
) -> Result<(Found, LunOptions), Error> {
    let found = find(&control.objects, id)?;
    let mut rest = arguments.clone();
    rest.remove("id");
    let json = Value::Object(rest).to_string();
    let lun = live(&control.objects)?.lun(&json, found.writable, &found.luns);
    let lun = lun.map_err(|problem| refused(&problem))?;
    Ok((found, lun))
}

fn delete_lun(control: &mut Control, arguments: &Arguments, reply: Reply) {
    let id = text(arguments, "id").to_owned();
    let number = |name: &str| arguments.get(name).and_then(Value::as_i64).unwrap_or(0);
    let (target, number) = (number("target"), number("lun"));
    let at = |lun: &LunOptions| (i64::from(lun.target), i64::from(lun.lun)) == (target, number);
    let planned = find(&control.objects, &id).and_then(|found| {
        let lun = found.luns.iter().find(|lun| at(lun)).cloned();
        let lun = lun.ok_or_else(|| {
            Error::generic(format!(
                "Export '{id}' has no unit {number} at target {target}"
            ))
        })?;
        Ok((found, lun))
    });
    let (found, lun) = match planned {
        Ok(planned) => planned,
        Err(error) => return reply.send(Err(error)),
    };
    let gone = lun.clone();
    let changed = Changed {
        command: "scsi-lun-del",
        id,
        node_name: lun.node_name.clone(),
        says: move |luns: &mut Vec<LunOptions>| luns.retain(|lun| *lun != gone),
    };
    let carry_out = move || exchange(&found.front_ends, || found.controller.remove(&lun));
    later(control, changed, reply, carry_out);
}
