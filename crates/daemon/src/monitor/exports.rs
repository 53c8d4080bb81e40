//! QMP commands for exports: add, remove and query; and the schema of their events.

use std::time::{Duration, Instant};

use options::SocketAddr;
use qmp::{
    Arguments, Command, CommandHandler, Error, Event, Member, ObjectType, ReplySender, Type,
    TypeDefinition,
};
use serde_json::{Value, json};

use super::error_conversion::{error_of_failed_action, error_of_invalid_options};
use super::running_object_names::names_of_running_objects_and_other_chardevs;
use super::stats::throttles;
use super::{option_types, str_arg_or_empty};
use crate::actions::export;
use crate::command_threads::CommandOnShutdown;
use crate::control::MainThread;
use crate::state::export::{ExportRemoval, ExportState};

/// The commands for exports.
pub(super) fn qmp_commands() -> Vec<Command<MainThread>> {
    vec![
        Command {
            name: "block-export-add",
            arguments: option_types::arguments_from_type("BlockExportOptions"),
            returns: None,
            run: CommandHandler::InBand(add_export),
        },
        Command {
            name: "block-export-del",
            arguments: ObjectType::with_members(vec![
                Member::required("id", Type::Str),
                Member::optional("mode", Type::Named("BlockExportRemoveMode")),
            ]),
            returns: None,
            run: CommandHandler::Deferred(|control, arguments, reply| {
                let id = str_arg_or_empty(arguments, "id");
                remove_export(control, id, arguments, reply);
            }),
        },
        Command {
            name: "query-block-exports",
            arguments: ObjectType::default(),
            returns: Some(Type::list_of_named("BlockExportInfo")),
            run: CommandHandler::InBand(|control, _| Ok(query_exports(control))),
        },
    ]
}

/// The time for which the removal of an export is waited for: usually nothing is in flight.
const MAX_REMOVAL_WAIT: Duration = Duration::from_millis(500);

/// Removes an export in the mode of the arguments.
pub(super) fn remove_export(
    control: &mut MainThread,
    id: &str,
    arguments: &Arguments,
    reply: ReplySender,
) {
    let hard = str_arg_or_empty(arguments, "mode") == "hard";
    let objects = &mut control.objects;
    match objects.remove_export_if_unconnected_or_hard(id, hard) {
        Ok(removal) => reply_after_removals(control, vec![removal], reply),
        Err(failure) => reply.send(Err(error_of_failed_action(&failure))),
    }
}

/// Replies to a command that removes exports when they are gone, or after [`MAX_REMOVAL_WAIT`]. They have events of their own.
pub(super) fn reply_after_removals(
    control: &mut MainThread,
    removals: Vec<ExportRemoval>,
    reply: ReplySender,
) {
    let removals = removals.into_iter().filter_map(|removal| match removal {
        ExportRemoval::Done => None,
        ExportRemoval::Draining(is_drained) => Some(is_drained),
    });
    let draining: Vec<_> = removals.collect();
    if draining.is_empty() {
        return reply.send(Ok(json!({})));
    }
    control.spawn_command_thread_and_reply_later(
        "remove exports".to_owned(),
        CommandOnShutdown::Abandon,
        reply,
        move || {
            let give_up = Instant::now() + MAX_REMOVAL_WAIT;
            for is_drained in draining {
                let left = give_up.saturating_duration_since(Instant::now());
                // It is removed later, or was removed.
                let _ = is_drained.recv_timeout(left);
            }
            Ok(())
        },
        |_, waited| waited,
    );
}

/// Types of the arguments and results of these commands, and of the data of the events.
pub(super) fn qmp_type_definitions() -> Vec<(&'static str, TypeDefinition)> {
    let info = ObjectType::with_members(vec![
        Member::required("id", Type::Str),
        Member::required("type", Type::Named("type")),
        Member::required("node-name", Type::Str),
        Member::required("shutting-down", Type::Bool),
        Member::optional("socket", Type::Str),
        Member::optional("io-status", Type::Named("BlockDeviceIoStatus")),
        Member::optional("waiting-requests", Type::Int),
        Member::optional("late-requests", Type::Int),
        Member::optional("throttle", Type::list_of_named("BlockThrottleStats")),
    ]);
    vec![
        (
            "BlockExportRemoveMode",
            TypeDefinition::Enum(vec!["safe", "hard"]),
        ),
        ("BlockExportInfo", TypeDefinition::Object(info)),
        (
            "IoOperationType",
            TypeDefinition::Enum(vec!["read", "write"]),
        ),
        (
            "BlockDeviceIoStatus",
            TypeDefinition::Enum(vec!["ok", "failed", "nospace"]),
        ),
        (
            "BlockErrorAction",
            TypeDefinition::Enum(vec!["ignore", "report", "stop"]),
        ),
    ]
}

/// Schema of the events of exports: removal, front-ends that connect and disconnect, failed and late requests, broken queues.
pub(super) fn qmp_events() -> Vec<Event> {
    let id = || Member::required("id", Type::Str);
    let mut events: Vec<Event> = [
        "BLOCK_EXPORT_DELETED",
        "BLOCK_EXPORT_CONNECTED",
        "BLOCK_EXPORT_DISCONNECTED",
    ]
    .map(|name| Event {
        name,
        data: ObjectType::with_members(vec![id()]),
    })
    .into();
    events.push(Event {
        name: "BLOCK_IO_ERROR",
        data: ObjectType::with_members(vec![
            Member::required("device", Type::Str),
            Member::optional("node-name", Type::Str),
            Member::optional("export", Type::Str),
            Member::required("operation", Type::Named("IoOperationType")),
            Member::required("action", Type::Named("BlockErrorAction")),
            Member::optional("nospace", Type::Bool),
            Member::required("reason", Type::Str),
        ]),
    });
    events.push(Event {
        name: "BLOCK_EXPORT_REQUESTS_LATE",
        data: ObjectType::with_members(vec![
            id(),
            Member::required("queue", Type::Int),
            Member::required("requests", Type::Int),
            Member::required("seconds", Type::Int),
        ]),
    });
    events.push(Event {
        name: "BLOCK_EXPORT_QUEUE_BROKEN",
        data: ObjectType::with_members(vec![
            id(),
            Member::required("queue", Type::Int),
            Member::required("reason", Type::Str),
        ]),
    });
    events
}

/// `block-export-add`: starts an export.
pub(super) fn add_export(control: &mut MainThread, arguments: &Arguments) -> Result<Value, Error> {
    let json = Value::Object(arguments.clone()).to_string();
    let options = names_of_running_objects_and_other_chardevs(control, "")?.read_export(&json);
    let options = options.map_err(|problem| error_of_invalid_options(&problem))?;
    let started = export::create_and_start_export(&options, &mut control.objects);
    started.map_err(|failure| error_of_failed_action(&failure))?;
    Ok(json!({}))
}

/// `query-block-exports`: `BlockExportInfo` of all exports.
fn query_exports(control: &MainThread) -> Value {
    let objects = &control.objects;
    let newest_first = objects.exports.iter().rev();
    newest_first
        .map(|export| {
            let mut info = json!({
                "node-name": export.options.node_name,
                "shutting-down": matches!(export.state, ExportState::Draining(_)),
                "type": export.options.kind.name(),
                "id": export.options.id,
            });
            if let Some(SocketAddr::Unix { path }) = export.options.kind.socket() {
                info["socket"] = path.display().to_string().into();
            }
            if let Some(reports) = &export.reports {
                let queues = reports.queues();
                info["io-status"] = queues.io_status().name().into();
                info["waiting-requests"] = queues.parked_count().into();
                info["late-requests"] = queues.late_total().into();
            }
            let names = export.options.node_names();
            let nodes = names.into_iter().filter_map(|name| objects.find_node(name));
            if let Some(throttles) = throttles::stats_of_chains(nodes.map(|open| &*open.node)) {
                info["throttle"] = throttles;
            }
            info
        })
        .collect()
}
