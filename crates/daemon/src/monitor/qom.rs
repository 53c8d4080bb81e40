//! QOM commands: objects as a tree of properties, `/objects/ID` for iothreads, secrets and throttle groups, and `/exports/ID` for
//! exports.

use qmp::{Arguments, Command, CommandHandler, Error, Member, ObjectType, Type, TypeDefinition};
use serde_json::{Value, json};

use super::property::{
    self, HasQomProperties, property_info, property_not_found_error, property_not_writable_error,
};
use super::str_arg_or_empty;
use super::tls_properties;
use super::{export_properties, iothread_properties, secret_properties, throttle_group_properties};
use crate::control::MainThread;
use crate::state::DaemonObjects;

/// The object that a path names.
enum ResolvedQomPath {
    Root,
    Objects,
    Exports,
    /// By its index.
    Iothread(usize),
    /// By its index.
    Secret(usize),
    /// By its index.
    ThrottleGroup(usize),
    /// By its index.
    TlsCreds(usize),
    /// By its index.
    AuthzList(usize),
    /// By its index.
    Export(usize),
}

/// The commands for objects and their properties.
pub(super) fn qmp_commands() -> Vec<Command<MainThread>> {
    let path = || Member::required("path", Type::Str);
    let property = || Member::required("property", Type::Str);
    let infos = || Some(Type::list_of_named("ObjectPropertyInfo"));
    vec![
        Command {
            name: "qom-list",
            arguments: ObjectType::with_members(vec![path()]),
            returns: infos(),
            run: CommandHandler::InBand(run_qom_list),
        },
        Command {
            name: "qom-get",
            arguments: ObjectType::with_members(vec![path(), property()]),
            returns: Some(Type::Any),
            run: CommandHandler::InBand(run_qom_get),
        },
        Command {
            name: "qom-set",
            arguments: ObjectType::with_members(vec![
                path(),
                property(),
                Member::required("value", Type::Any),
            ]),
            returns: None,
            run: CommandHandler::InBand(run_qom_set),
        },
        Command {
            name: "qom-list-properties",
            arguments: ObjectType::with_members(vec![Member::required("typename", Type::Str)]),
            returns: infos(),
            run: CommandHandler::InBand(|_, arguments| {
                let name = str_arg_or_empty(arguments, "typename");
                let objects = [
                    iothread_properties::iothread_class(),
                    secret_properties::secret_class(),
                    throttle_group_properties::throttle_group_class(),
                    tls_properties::creds_class(),
                    tls_properties::list_class(),
                ];
                let mut classes = objects
                    .into_iter()
                    .chain(export_properties::build_export_qom_classes());
                match classes.find(|class| class.name == name) {
                    Some(class) => Ok(class.property_infos()),
                    None => Err(Error::device_not_found(format!("Class '{name}' not found"))),
                }
            }),
        },
    ]
}

/// The type `ObjectPropertyInfo`.
pub(super) fn qmp_type_definitions() -> Vec<(&'static str, TypeDefinition)> {
    let members = ["name", "type"].map(|name| Member::required(name, Type::Str));
    let info = ObjectType::with_members(members.into());
    vec![("ObjectPropertyInfo", TypeDefinition::Object(info))]
}

/// Resolves an absolute path, or the name of an object alone.
fn resolve_path(objects: &DaemonObjects, path: &str) -> Result<ResolvedQomPath, Error> {
    let object_index = |id: &str| {
        let iothread = objects.iothreads.iter().position(|i| i.options.id == id);
        let secret = || objects.secrets.iter().position(|s| s.options.id == id);
        let mut groups = objects.throttle_groups.iter();
        let mut group = || groups.position(|g| g.options.id == id);
        let creds = || objects.tls_creds.iter().position(|c| c.options.id == id);
        let list = || objects.authz_lists.iter().position(|l| l.options.id == id);
        let iothread = iothread.map(ResolvedQomPath::Iothread);
        iothread
            .or_else(|| secret().map(ResolvedQomPath::Secret))
            .or_else(|| group().map(ResolvedQomPath::ThrottleGroup))
            .or_else(|| creds().map(ResolvedQomPath::TlsCreds))
            .or_else(|| list().map(ResolvedQomPath::AuthzList))
    };
    let export_index = |id: &str| {
        let mut exports = objects.exports.iter();
        exports.position(|e| e.options.id == id)
    };
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let found = match parts.as_slice() {
        [] if path.starts_with('/') => Some(ResolvedQomPath::Root),
        ["objects"] => Some(ResolvedQomPath::Objects),
        ["exports"] => Some(ResolvedQomPath::Exports),
        ["objects", id] => object_index(id),
        ["exports", id] => export_index(id).map(ResolvedQomPath::Export),
        [id] if !path.starts_with('/') => object_index(id),
        _ => None,
    };
    found.ok_or_else(|| Error::device_not_found(format!("Device '{path}' not found")))
}

/// `qom-list`: the properties of an object, or the objects in a container.
fn run_qom_list(control: &mut MainThread, arguments: &Arguments) -> Result<Value, Error> {
    let objects = &control.objects;
    let children = |found: &mut dyn Iterator<Item = (&str, &str)>| {
        let mut children = vec![property_info("type", "string")];
        children.extend(found.map(|(id, class)| property_info(id, &format!("child<{class}>"))));
        children.into()
    };
    Ok(
        match resolve_path(objects, str_arg_or_empty(arguments, "path"))? {
            ResolvedQomPath::Root => json!([
                property_info("type", "string"),
                property_info("objects", "child<container>"),
                property_info("exports", "child<container>")
            ]),
            ResolvedQomPath::Objects => {
                let objects = objects.types_and_ids_of_objects();
                children(&mut objects.map(|(r#type, id)| (id, r#type)))
            }
            ResolvedQomPath::Exports => {
                let all = objects.exports.iter();
                children(&mut all.map(|e| (e.options.id.as_str(), e.class().name)))
            }
            ResolvedQomPath::Iothread(index) => objects.iothreads[index].class().property_infos(),
            ResolvedQomPath::Secret(index) => objects.secrets[index].class().property_infos(),
            ResolvedQomPath::ThrottleGroup(index) => {
                objects.throttle_groups[index].class().property_infos()
            }
            ResolvedQomPath::TlsCreds(index) => objects.tls_creds[index].class().property_infos(),
            ResolvedQomPath::AuthzList(index) => {
                objects.authz_lists[index].class().property_infos()
            }
            ResolvedQomPath::Export(index) => objects.exports[index].class().property_infos(),
        },
    )
}

/// `qom-get`: the value of a property.
fn run_qom_get(control: &mut MainThread, arguments: &Arguments) -> Result<Value, Error> {
    let objects = &control.objects;
    let name = str_arg_or_empty(arguments, "property");
    let names_object = || {
        let mut objects = objects.types_and_ids_of_objects();
        objects.any(|(_, id)| id == name)
    };
    let names_export = || objects.exports.iter().any(|e| e.options.id == name);
    match (
        resolve_path(objects, str_arg_or_empty(arguments, "path"))?,
        name,
    ) {
        (ResolvedQomPath::Iothread(index), _) => {
            property::get_property_value(&objects.iothreads[index], name)
        }
        (ResolvedQomPath::Secret(index), _) => {
            property::get_property_value(&*objects.secrets[index], name)
        }
        (ResolvedQomPath::TlsCreds(index), _) => {
            property::get_property_value(&*objects.tls_creds[index], name)
        }
        (ResolvedQomPath::AuthzList(index), _) => {
            property::get_property_value(&objects.authz_lists[index], name)
        }
        (ResolvedQomPath::ThrottleGroup(index), _) => {
            property::get_property_value(&objects.throttle_groups[index], name)
        }
        (ResolvedQomPath::Export(index), _) => {
            property::get_property_value(&objects.exports[index], name)
        }
        (_, "type") => Ok("container".into()),
        (ResolvedQomPath::Root, "objects" | "exports") => Ok(format!("/{name}").into()),
        (ResolvedQomPath::Objects, id) if names_object() => Ok(format!("/objects/{id}").into()),
        (ResolvedQomPath::Exports, id) if names_export() => Ok(format!("/exports/{id}").into()),
        _ => Err(property_not_found_error("container", name)),
    }
}

/// `qom-set`: changes a property; those of containers are fixed.
fn run_qom_set(control: &mut MainThread, arguments: &Arguments) -> Result<Value, Error> {
    let objects = &mut control.objects;
    let name = str_arg_or_empty(arguments, "property");
    let value = arguments.get("value").cloned().unwrap_or_default();
    match resolve_path(objects, str_arg_or_empty(arguments, "path"))? {
        ResolvedQomPath::Iothread(index) => {
            property::set_property_value(&mut objects.iothreads[index], name, &value)?
        }
        ResolvedQomPath::ThrottleGroup(index) => {
            property::set_property_value(&mut objects.throttle_groups[index], name, &value)?
        }
        ResolvedQomPath::Export(index) => {
            property::set_property_value(&mut objects.exports[index], name, &value)?
        }
        ResolvedQomPath::Secret(_) => {
            return Err(property_not_writable_error(secret_properties::CLASS, name));
        }
        ResolvedQomPath::TlsCreds(_) => {
            let class = tls_properties::CREDS_CLASS;
            return Err(property_not_writable_error(class, name));
        }
        ResolvedQomPath::AuthzList(_) => {
            let class = tls_properties::LIST_CLASS;
            return Err(property_not_writable_error(class, name));
        }
        ResolvedQomPath::Root | ResolvedQomPath::Objects | ResolvedQomPath::Exports => {
            return Err(property_not_writable_error("container", name));
        }
    }
    Ok(json!({}))
}
