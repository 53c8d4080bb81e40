//! QMP commands of the NBD server: start, stop, and qemu-storage-daemon's older commands for its exports.

use qmp::{
    Arguments, Command, CommandHandler, Error, Member, ObjectType, ReplySender, Type,
    TypeDefinition,
};
use serde_json::{Map, Value, json};

use super::error_conversion::{error_of_failed_action, error_of_invalid_options};
use super::exports::{add_export, remove_export, reply_after_removals};
use super::running_object_names::names_of_running_objects_and_other_chardevs;
use super::str_arg_or_empty;
use crate::control::MainThread;

/// The commands of the NBD server.
pub(super) fn qmp_commands() -> Vec<Command<MainThread>> {
    vec![
        Command {
            name: "nbd-server-start",
            arguments: ObjectType::with_members(vec![
                Member::required("addr", Type::Named("NbdServerAddr")),
                Member::optional("tls-creds", Type::Str),
                Member::optional("tls-authz", Type::Str),
                Member::optional("max-connections", Type::Int),
                Member::optional("handshake-max-seconds", Type::Int),
                Member::optional("allow-plaintext", Type::Bool),
            ]),
            returns: None,
            run: CommandHandler::InBand(start_server),
        },
        Command {
            name: "nbd-server-stop",
            arguments: ObjectType::default(),
            returns: None,
            run: CommandHandler::Deferred(|control, _, reply| {
                match control.objects.stop_nbd_server() {
                    Ok(removals) => reply_after_removals(control, removals, reply),
                    Err(failure) => reply.send(Err(error_of_failed_action(&failure))),
                }
            }),
        },
        Command {
            name: "nbd-server-add",
            arguments: ObjectType::with_members(vec![
                Member::required("device", Type::Str),
                Member::optional("name", Type::Str),
                Member::optional("description", Type::Str),
                Member::optional("writable", Type::Bool),
                Member::optional("bitmap", Type::Str),
            ]),
            returns: None,
            run: CommandHandler::InBand(add_by_old_command),
        },
        Command {
            name: "nbd-server-remove",
            arguments: ObjectType::with_members(vec![
                Member::required("name", Type::Str),
                Member::optional("mode", Type::Named("BlockExportRemoveMode")),
            ]),
            returns: None,
            run: CommandHandler::Deferred(remove_by_old_command),
        },
    ]
}

/// Types of the arguments of these commands.
pub(super) fn qmp_type_definitions() -> Vec<(&'static str, TypeDefinition)> {
    let keys = || {
        let texts = ["host", "port", "path", "str"].map(|key| Member::optional(key, Type::Str));
        let switches = ["ipv4", "ipv6"].map(|key| Member::optional(key, Type::Bool));
        texts.into_iter().chain(switches)
    };
    let addr = [
        Member::required("type", Type::Named("NbdServerAddrType")),
        Member::optional("data", Type::Named("NbdServerAddrData")),
    ];
    vec![
        (
            "NbdServerAddrType",
            TypeDefinition::Enum(vec!["inet", "unix", "fd"]),
        ),
        (
            "NbdServerAddrData",
            TypeDefinition::Object(ObjectType::with_members(keys().collect())),
        ),
        (
            "NbdServerAddr",
            TypeDefinition::Object(ObjectType::with_members(
                addr.into_iter().chain(keys()).collect(),
            )),
        ),
    ]
}

/// `nbd-server-start`
fn start_server(control: &mut MainThread, arguments: &Arguments) -> Result<Value, Error> {
    if control.objects.nbd_server.is_some() {
        return Err(Error::generic("NBD server already running"));
    }
    let mut arguments = arguments.clone();
    if let Some(Value::Object(addr)) = arguments.get_mut("addr") {
        flatten_legacy_addr(addr);
    }
    let json = Value::Object(arguments).to_string();
    let names = names_of_running_objects_and_other_chardevs(control, "")?;
    let options = names.read_nbd_server(&json);
    let options = options.map_err(|problem| error_of_invalid_options(&problem))?;
    let started = control.objects.start_nbd_server(&options);
    started.map_err(|failure| error_of_failed_action(&failure))?;
    Ok(json!({}))
}

/// Moves the members of `data` up: QEMU has the keys of an address there in this command, and nowhere else.
fn flatten_legacy_addr(addr: &mut Map<String, Value>) {
    if let Some(Value::Object(data)) = addr.remove("data") {
        addr.extend(data);
    }
}

/// `nbd-server-add`: as `block-export-add` with the name as its id.
fn add_by_old_command(control: &mut MainThread, arguments: &Arguments) -> Result<Value, Error> {
    let mut export = arguments.clone();
    let device = export.remove("device").unwrap_or_default();
    let name = export.get("name").cloned().unwrap_or(device.clone());
    if let Some(bitmap) = export.remove("bitmap") {
        export.insert("bitmaps".to_owned(), json!([bitmap]));
    }
    for (key, value) in [("type", json!("nbd")), ("id", name), ("node-name", device)] {
        export.insert(key.to_owned(), value);
    }
    add_export(control, &export)
}

/// `nbd-server-remove`: as `block-export-del` with the name as its id.
fn remove_by_old_command(control: &mut MainThread, arguments: &Arguments, reply: ReplySender) {
    let name = str_arg_or_empty(arguments, "name");
    match control.objects.is_nbd_export(name) {
        true => remove_export(control, name, arguments, reply),
        false => {
            let text = format!("Export '{name}' is not found");
            reply.send(Err(Error::generic(text)));
        }
    }
}
