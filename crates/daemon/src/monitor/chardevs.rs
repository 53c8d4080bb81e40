//! QMP commands for chardevs: add, change, remove and query. Chardevs in use by a monitor cannot be changed.
//!
//! Only sockets with paths are supported: descriptor numbers are known when the program starts, but not later.

use options::ChardevOptions;
use qmp::{
    Arguments, Command, CommandHandler, Error, Member, ObjectType, Type, TypeDefinition, Variants,
};
use serde_json::{Value, json};

use super::error_conversion::error_of_invalid_options;
use super::running_object_names::names_of_running_objects_and_other_chardevs;
use super::str_arg_or_empty;
use crate::control::MainThread;

/// The commands for chardevs.
pub(super) fn qmp_commands() -> Vec<Command<MainThread>> {
    let id = || Member::required("id", Type::Str);
    let backend = || Member::required("backend", Type::Named("ChardevBackend"));
    vec![
        Command {
            name: "chardev-add",
            arguments: ObjectType::with_members(vec![id(), backend()]),
            returns: Some(Type::Named("ChardevReturn")),
            run: CommandHandler::InBand(add_chardev),
        },
        Command {
            name: "chardev-change",
            arguments: ObjectType::with_members(vec![id(), backend()]),
            returns: Some(Type::Named("ChardevReturn")),
            run: CommandHandler::InBand(change_chardev),
        },
        Command {
            name: "chardev-remove",
            arguments: ObjectType::with_members(vec![id()]),
            returns: None,
            run: CommandHandler::InBand(|control, arguments| {
                let id = str_arg_or_empty(arguments, "id");
                if is_chardev_used(control, id, "not found")? {
                    return Err(Error::generic(format!("Chardev '{id}' is busy")));
                }
                control.chardevs.remove(id);
                Ok(json!({}))
            }),
        },
        Command {
            name: "chardev-send-break",
            arguments: ObjectType::with_members(vec![id()]),
            returns: None,
            // A socket has no break signal; accepted for compatibility.
            run: CommandHandler::InBand(|control, arguments| {
                is_chardev_used(control, str_arg_or_empty(arguments, "id"), "not found")?;
                Ok(json!({}))
            }),
        },
        Command {
            name: "query-chardev",
            arguments: ObjectType::default(),
            returns: Some(Type::list_of_named("ChardevInfo")),
            run: CommandHandler::InBand(|control, _| {
                let all = control.chardevs.iter();
                let info = all.map(|chardev| {
                    json!({
                        "frontend-open": chardev.is_used_by_monitor(),
                        "filename": chardev.qemu_filename(),
                        "label": chardev.id(),
                    })
                });
                Ok(info.collect())
            }),
        },
        Command {
            name: "query-chardev-backends",
            arguments: ObjectType::default(),
            returns: Some(Type::list_of_named("ChardevBackendInfo")),
            run: CommandHandler::InBand(|_, _| Ok(json!([{"name": "socket"}]))),
        },
    ]
}

/// Types of the arguments and results of these commands, with QEMU's nesting.
pub(super) fn qmp_type_definitions() -> Vec<(&'static str, TypeDefinition)> {
    let object = |members: Vec<Member>| TypeDefinition::Object(ObjectType::with_members(members));
    let object_of_one = |name, r#type| object(vec![Member::required(name, r#type)]);
    let tagged = |tag_type: &'static str, cases: Vec<(&'static str, &'static str)>| {
        TypeDefinition::Object(ObjectType {
            members: vec![Member::required("type", Type::Named(tag_type))],
            variants: Some(Variants { tag: "type", cases }),
        })
    };
    vec![
        ("ChardevBackendKind", TypeDefinition::Enum(vec!["socket"])),
        (
            "ChardevBackend",
            tagged(
                "ChardevBackendKind",
                vec![("socket", "ChardevSocketWrapper")],
            ),
        ),
        (
            "ChardevSocketWrapper",
            object_of_one("data", Type::Named("ChardevSocket")),
        ),
        (
            "ChardevSocket",
            object(vec![
                Member::required("addr", Type::Named("SocketAddressLegacy")),
                Member::optional("server", Type::Bool),
                Member::optional("wait", Type::Bool),
                Member::optional("users", Type::Str),
            ]),
        ),
        ("SocketAddressType", TypeDefinition::Enum(vec!["unix"])),
        (
            "SocketAddressLegacy",
            tagged(
                "SocketAddressType",
                vec![("unix", "UnixSocketAddressWrapper")],
            ),
        ),
        (
            "UnixSocketAddressWrapper",
            object_of_one("data", Type::Named("UnixSocketAddress")),
        ),
        ("UnixSocketAddress", object_of_one("path", Type::Str)),
        ("ChardevReturn", object(Vec::new())),
        (
            "ChardevInfo",
            object(vec![
                Member::required("frontend-open", Type::Bool),
                Member::required("filename", Type::Str),
                Member::required("label", Type::Str),
            ]),
        ),
        ("ChardevBackendInfo", object_of_one("name", Type::Str)),
    ]
}

/// Whether a monitor uses a chardev; an error that ends with `not_found_text` if there is no such chardev.
fn is_chardev_used(control: &MainThread, id: &str, not_found_text: &str) -> Result<bool, Error> {
    let found = control
        .chardevs
        .get(id)
        .map(|chardev| chardev.is_used_by_monitor());
    found.ok_or_else(|| Error::generic(format!("Chardev '{id}' {not_found_text}")))
}

/// `chardev-add`: creates a chardev.
fn add_chardev(control: &mut MainThread, arguments: &Arguments) -> Result<Value, Error> {
    let id = str_arg_or_empty(arguments, "id");
    if control.chardevs.get(id).is_some() {
        return Err(Error::generic(format!(
            "Chardev with id '{id}' already exists"
        )));
    }
    let failed = |reason: String| Error::generic(format!("Failed to add chardev '{id}': {reason}"));
    let options = read_chardev_options(control, arguments).map_err(|error| failed(error.text))?;
    let added = control.open_and_add_chardev(&options);
    added.map_err(|failure| failed(failure.to_string()))?;
    Ok(json!({}))
}

/// `chardev-change`: replaces the socket of a chardev that no monitor uses.
fn change_chardev(control: &mut MainThread, arguments: &Arguments) -> Result<Value, Error> {
    let id = str_arg_or_empty(arguments, "id");
    if is_chardev_used(control, id, "does not exist")? {
        let text = "Chardev user does not support chardev hotswap";
        return Err(Error::generic(text));
    }
    let options = read_chardev_options(control, arguments)?;
    let changed = control.replace_unused_chardev(&options);
    changed.map_err(|failure| Error::generic(failure.to_string()))?;
    Ok(json!({}))
}

/// Reads the options of a chardev by the rules of the command line, except that `server` is on by default: a live upgrade reads
/// them as an option again.
fn read_chardev_options(
    control: &MainThread,
    arguments: &Arguments,
) -> Result<ChardevOptions, Error> {
    let id = str_arg_or_empty(arguments, "id");
    let socket = &arguments["backend"]["data"];
    let server = socket["server"].as_bool().unwrap_or(true);
    let mut chardev = json!({
        "backend": "socket",
        "id": id,
        "path": socket["addr"]["data"]["path"],
        "server": server,
    });
    match (socket["wait"].as_bool(), server) {
        (Some(_), false) => {
            let text = "'wait' option is incompatible with socket in client connect mode";
            return Err(Error::generic(text));
        }
        (Some(true), true) => {
            let text = "'wait' would block all monitors until a client connects: leave it out";
            return Err(Error::generic(text));
        }
        (_, true) => chardev["wait"] = false.into(),
        (None, false) => {}
    }
    if let Some(users) = socket.get("users") {
        chardev["users"] = users.clone();
    }
    names_of_running_objects_and_other_chardevs(control, id)?
        .read_chardev(&chardev.to_string())
        .map_err(|problem| error_of_invalid_options(&problem))
}
