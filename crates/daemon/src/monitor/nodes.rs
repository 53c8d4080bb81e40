//! QMP commands for block nodes: add, remove, activate, inactivate and query.

use options::{DetectZeroes, Driver};
use qmp::{
    Arguments, Command, CommandHandler, Error, Member, ObjectType, ReplySender, Type,
    TypeDefinition,
};
use serde_json::{Value, json};

use super::bitmaps::dirty_bitmaps_of;
use super::error_conversion::{error_of_failed_action, error_of_invalid_options};
use super::images::image_info;
use super::node_filenames::{QemuFilenames, qemu_filenames_of_nodes};
use super::node_limits;
use super::running_object_names::names_of_running_objects;
use super::{option_types, str_arg_or_empty};
use crate::actions::image_resize::adopt_announced_size;
use crate::actions::node::{OpenPlan, OpenedNodes};
use crate::command_threads::CommandOnShutdown;
use crate::control::MainThread;
use crate::state::DaemonObjects;
use crate::state::node::OpenNode;

/// The commands for block nodes.
pub(super) fn qmp_commands() -> Vec<Command<MainThread>> {
    vec![
        Command {
            name: "blockdev-add",
            arguments: option_types::arguments_from_type("BlockdevOptions"),
            returns: None,
            run: CommandHandler::Deferred(open_and_add_node),
        },
        Command {
            name: "blockdev-del",
            arguments: ObjectType::with_members(vec![Member::required("node-name", Type::Str)]),
            returns: None,
            run: CommandHandler::Deferred(flush_and_remove_node),
        },
        Command {
            name: "blockdev-set-active",
            arguments: ObjectType::with_members(vec![
                Member::optional("node-name", Type::Str),
                Member::required("active", Type::Bool),
            ]),
            returns: None,
            run: CommandHandler::Deferred(activate_or_inactivate_nodes),
        },
        Command {
            name: "query-named-block-nodes",
            // `flat` leaves out backing files, of which there are none.
            arguments: ObjectType::with_members(vec![Member::optional("flat", Type::Bool)]),
            returns: Some(Type::list_of_named("BlockDeviceInfo")),
            run: CommandHandler::InBand(|control, _| {
                let nodes = &control.objects.nodes;
                let filenames = qemu_filenames_of_nodes(nodes);
                let newest_first = nodes.iter().rev();
                Ok(newest_first
                    .map(|node| block_device_info(node, &filenames))
                    .collect())
            }),
        },
        Command {
            name: "query-block",
            arguments: ObjectType::default(),
            // A storage daemon has no devices.
            returns: Some(Type::List(Box::new(Type::Any))),
            run: CommandHandler::InBand(|_, _| Ok(json!([]))),
        },
    ]
}

/// Types of the result of `query-named-block-nodes`.
pub(super) fn qmp_type_definitions() -> Vec<(&'static str, TypeDefinition)> {
    let members = |names: &[(&'static str, Type)]| {
        let members = names.iter().cloned();
        members
            .map(|(name, r#type)| Member::required(name, r#type))
            .collect::<Vec<Member>>()
    };
    let mut image = members(&[
        ("filename", Type::Str),
        ("format", Type::Str),
        ("virtual-size", Type::Int),
    ]);
    image.push(Member::optional("actual-size", Type::Int));
    image.push(Member::optional("cluster-size", Type::Int));
    image.push(Member::optional("dirty-flag", Type::Bool));
    image.push(Member::optional(
        "format-specific",
        Type::Named("ImageInfoSpecific"),
    ));
    let specific = members(&[("type", Type::Str), ("data", Type::Any)]);
    let cache = members(&[
        ("writeback", Type::Bool),
        ("direct", Type::Bool),
        ("no-flush", Type::Bool),
    ]);
    let child = members(&[("node-name", Type::Str), ("child", Type::Str)]);
    let mut device = members(&[
        ("file", Type::Str),
        ("node-name", Type::Str),
        ("ro", Type::Bool),
        ("drv", Type::Str),
        ("backing_file_depth", Type::Int),
        ("encrypted", Type::Bool),
        ("detect_zeroes", Type::Named("detect-zeroes")),
        ("image", Type::Named("ImageInfo")),
        ("cache", Type::Named("BlockdevCacheInfo")),
        ("write_threshold", Type::Int),
        ("active", Type::Bool),
        ("children", Type::list_of_named("BlockdevChild")),
    ]);
    let limits = ["bps", "bps_rd", "bps_wr", "iops", "iops_rd", "iops_wr"];
    device.extend(limits.map(|name| Member::required(name, Type::Int)));
    device.extend(node_limits::optional_members());
    device.push(Member::optional("rbd", Type::Named("BlockImageInfo")));
    let bitmaps = Type::list_of_named("BlockDirtyInfo");
    device.push(Member::optional("dirty-bitmaps", bitmaps));
    [
        ("ImageInfo", image),
        ("ImageInfoSpecific", specific),
        ("BlockdevCacheInfo", cache),
        ("BlockdevChild", child),
        ("BlockDeviceInfo", device),
    ]
    .map(|(name, members)| {
        (
            name,
            TypeDefinition::Object(ObjectType::with_members(members)),
        )
    })
    .into()
}

/// Opens a node on a thread, since its disk may be slow or not respond. Its names are reserved meanwhile. Shutdown does not
/// wait for it.
fn open_and_add_node(control: &mut MainThread, arguments: &Arguments, reply: ReplySender) {
    let plan = match plan_opening_node(&control.objects, arguments) {
        Ok(plan) => plan,
        Err(error) => return reply.send(Err(error)),
    };
    let names = plan.node_names();
    let may_block = plan.may_block();
    let open = move || {
        plan.open()
            .map_err(|error| error_of_failed_action(&error.into()))
    };
    if !may_block {
        let opened = open().map(|opened| opened.add_to_objects(&mut control.objects));
        return reply.send(opened.map(|()| json!({})));
    }
    let thread = format!("add {}", names[0]);
    control.objects.opening_nodes.extend(names.iter().cloned());
    control.spawn_command_thread_and_reply_later(
        thread,
        CommandOnShutdown::Abandon,
        reply,
        open,
        move |control, opened| {
            let objects = &mut control.objects;
            objects
                .opening_nodes
                .retain(|opening| !names.contains(opening));
            opened.map(|opened: OpenedNodes| opened.add_to_objects(objects))?;
            // An image may have been resized since its size was read.
            for name in &names {
                adopt_announced_size(control, name);
            }
            Ok(())
        },
    );
}

/// Validates the options of a new node, and plans how to open it.
fn plan_opening_node(objects: &DaemonObjects, arguments: &Arguments) -> Result<OpenPlan, Error> {
    let json = Value::Object(arguments.clone()).to_string();
    let options = names_of_running_objects(objects)?.read_blockdev(&json);
    let options = options.map_err(|problem| error_of_invalid_options(&problem))?;
    OpenPlan::check_and_plan(&options, objects).map_err(|failure| error_of_failed_action(&failure))
}

/// Flushes a node on a thread and closes it. If flushing fails, the node stays.
fn flush_and_remove_node(control: &mut MainThread, arguments: &Arguments, reply: ReplySender) {
    let name = str_arg_or_empty(arguments, "node-name").to_owned();
    let names = match control.objects.reserve_node_for_removal(&name) {
        Ok(names) => names,
        Err(failure) => return reply.send(Err(error_of_failed_action(&failure))),
    };
    let found = control.objects.find_node(&name);
    let node_to_flush = found
        .filter(|open| open.options.settings.active)
        .map(|open| open.node.clone());
    let removed = names
        .iter()
        .filter_map(|name| control.objects.find_node(name));
    let bitmap_files: Vec<_> = removed
        .filter_map(|open| Some((open.node.clone(), open.bitmap_file.clone()?)))
        .collect();
    let flush = move || {
        let flushed = node_to_flush.map_or(Ok(()), |node| node.flush_blocking());
        flushed.map_err(|error| {
            Error::generic(format!(
                "Node {name} was not closed: flushing it failed, and writes would be lost: {error}"
            ))
        })?;
        bitmap_files.iter().try_for_each(|(node, file)| {
            let saved = file.save_at_end(node);
            saved.map_err(|error| Error::generic(format!("Node {name} was not closed: {error}")))
        })
    };
    let thread = format!("del {}", names[0]);
    control.spawn_command_thread_and_reply_later(
        thread,
        CommandOnShutdown::Wait,
        reply,
        flush,
        move |control, flushed| {
            match flushed {
                Ok(()) => control.objects.remove_nodes(&names),
                Err(_) => control.objects.release_nodes(&names),
            }
            flushed
        },
    );
}

/// Activates or inactivates one node or all nodes. Nodes are flushed before they are inactivated; if that fails, they
/// stay active.
fn activate_or_inactivate_nodes(
    control: &mut MainThread,
    arguments: &Arguments,
    reply: ReplySender,
) {
    let objects = &mut control.objects;
    let name = arguments.get("node-name").and_then(Value::as_str);
    if arguments["active"] == true {
        let activated = match name {
            Some(name) => objects.activate_with_nodes_below(name),
            None => objects.activate_all_nodes(),
        };
        let activated = activated.map_err(|failure| error_of_failed_action(&failure));
        return reply.send(activated.map(|()| json!({})));
    }
    let begun = match name {
        Some(name) => objects.reserve_with_nodes_below_to_inactivate(name),
        None => objects.reserve_all_to_inactivate(),
    };
    let names = match begun {
        Ok(names) => names,
        Err(failure) => return reply.send(Err(error_of_failed_action(&failure))),
    };
    let nodes = names.iter().filter_map(|name| objects.find_node(name));
    let nodes: Vec<_> = nodes.map(|open| open.node.clone()).collect();
    let flush = move || {
        nodes.iter().try_for_each(|node| {
            node.flush_blocking().map_err(|error| {
                let name = node.name();
                Error::generic(format!(
                    "Failed to inactivate node {name}: flushing it failed: {error}"
                ))
            })
        })
    };
    control.spawn_command_thread_and_reply_later(
        "inactivate".to_owned(),
        CommandOnShutdown::Wait,
        reply,
        flush,
        move |control, flushed| {
            match flushed {
                Ok(()) => control.objects.inactivate_reserved_nodes(&names),
                Err(_) => control.objects.release_reserved_active_nodes(&names),
            }
            flushed
        },
    );
}

/// `BlockDeviceInfo` of a node. Members about encryption and backing files, which clients expect, are constant; limits are those of
/// nodes of driver `throttle`.
pub(super) fn block_device_info(open: &OpenNode, filenames: &QemuFilenames<'_>) -> Value {
    let OpenNode { options, node, .. } = open;
    let driver = options.driver.name();
    let filename = filenames.get(node.name());
    let mut image = json!({
        "virtual-size": node.size(),
        "filename": filename,
        "format": driver,
    });
    if let Some(bytes) = node.allocated_bytes() {
        image["actual-size"] = bytes.into();
    }
    if matches!(options.driver, Driver::File(_)) {
        image["dirty-flag"] = false.into();
    }
    let status = node.image_status();
    if let Some(status) = &status {
        image["cluster-size"] = status.object_bytes.into();
        image["dirty-flag"] = false.into();
    }
    if matches!(options.driver, Driver::Rbd(_)) {
        image["format-specific"] = json!({"type": "rbd", "data": {}});
    }
    let child = options.driver.child_with_key();
    let children: Vec<Value> = child
        .map(|(child, below)| json!({"node-name": below.node_name(), "child": child}))
        .into_iter()
        .collect();
    let mut info = json!({
        "iops_rd": 0,
        "detect_zeroes": detect_zeroes_word(options.settings.detect_zeroes),
        "active": options.settings.active,
        "image": image,
        "iops_wr": 0,
        "ro": node.read_only(),
        "children": children,
        "node-name": node.name(),
        "backing_file_depth": 0,
        "drv": driver,
        "iops": 0,
        "bps_wr": 0,
        "write_threshold": 0,
        "encrypted": false,
        "bps": 0,
        "bps_rd": 0,
        "cache": {
            "no-flush": options.settings.cache_no_flush,
            "direct": node.uses_direct_io(),
            "writeback": true,
        },
        "file": filename,
    });
    if let Some(member) = node.throttle() {
        node_limits::add_limits(member.group(), &mut info);
    }
    if let Some(status) = &status {
        info["rbd"] = image_info(status);
    }
    if let Some(bitmaps) = dirty_bitmaps_of(node) {
        info["dirty-bitmaps"] = bitmaps;
    }
    info
}

/// The word of a mode of zero detection.
fn detect_zeroes_word(mode: DetectZeroes) -> &'static str {
    match mode {
        DetectZeroes::Off => "off",
        DetectZeroes::On => "on",
        DetectZeroes::Unmap => "unmap",
    }
}
