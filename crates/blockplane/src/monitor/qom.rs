//! Objects as a tree of properties: `/objects/ID`.
//!
//! What can be set takes effect in the iothread's next iteration. The check of a new value is that of
//! the option of the same name.

use options::live::Live;
use options::{IothreadOptions, ObjectOptions};
use qmp::{Arguments, Command, Definition, Error, Member, Object, Run, Type};
use serde_json::{Value, json};

use super::errors::refused;
use super::text;
use crate::control::Control;
use crate::objects::{Iothread, Objects, polling};

/// A property of an iothread.
struct Property {
    name: &'static str,
    r#type: &'static str,
    get: fn(&IothreadOptions) -> Value,
    set: Option<Set>,
}

/// Takes a property over from options that were checked, and makes it effective.
type Set = fn(&mut Iothread, &IothreadOptions);

const fn fixed(name: &'static str, get: fn(&IothreadOptions) -> Value) -> Property {
    Property {
        name,
        r#type: "int",
        get,
        set: None,
    }
}

const fn live(name: &'static str, get: fn(&IothreadOptions) -> Value, set: Set) -> Property {
    Property {
        name,
        r#type: "int",
        get,
        set: Some(set),
    }
}

const PROPERTIES: &[Property] = &[
    Property {
        name: "type",
        r#type: "string",
        get: |_| "iothread".into(),
        set: None,
    },
    live(
        "poll-max-ns",
        |options| options.poll_max_ns.into(),
        |iothread, new| {
            iothread.options.poll_max_ns = new.poll_max_ns;
            poll_anew(iothread);
        },
    ),
    live(
        "poll-grow",
        |options| options.poll_grow.into(),
        |iothread, new| {
            iothread.options.poll_grow = new.poll_grow;
            poll_anew(iothread);
        },
    ),
    live(
        "poll-shrink",
        |options| options.poll_shrink.into(),
        |iothread, new| {
            iothread.options.poll_shrink = new.poll_shrink;
            poll_anew(iothread);
        },
    ),
    live(
        "poll-cpu-max",
        |options| options.poll_cpu_max.into(),
        |iothread, new| {
            iothread.options.poll_cpu_max = new.poll_cpu_max;
            poll_anew(iothread);
        },
    ),
    live(
        "aio-max-batch",
        |options| options.aio_max_batch.into(),
        |iothread, new| {
            iothread.options.aio_max_batch = new.aio_max_batch;
            // An iothread that is listed has not stopped.
            let _ = iothread.thread.set_aio_max_batch(new.aio_max_batch);
        },
    ),
    fixed("aio-max-events", |options| options.aio_max_events.into()),
    fixed("thread-pool-min", |options| options.thread_pool_min.into()),
    fixed("thread-pool-max", |options| options.thread_pool_max.into()),
    Property {
        name: "cpu-affinity",
        r#type: "list",
        get: |options| options.cpu_affinity.clone().into(),
        set: None,
    },
];

fn poll_anew(iothread: &Iothread) {
    // An iothread that is listed has not stopped.
    let _ = iothread.thread.set_polling(polling(&iothread.options));
}

/// What a path names.
enum Place {
    Root,
    Objects,
    /// By its index.
    Iothread(usize),
}

pub(super) fn commands() -> Vec<Command<Control>> {
    let path = || Member::required("path", Type::Str);
    let property = || Member::required("property", Type::Str);
    let info = || Some(Type::list_of("ObjectPropertyInfo"));
    vec![
        Command {
            name: "qom-list",
            arguments: Object::of(vec![path()]),
            returns: info(),
            run: Run::InBand(list),
        },
        Command {
            name: "qom-get",
            arguments: Object::of(vec![path(), property()]),
            returns: Some(Type::Any),
            run: Run::InBand(get),
        },
        Command {
            name: "qom-set",
            arguments: Object::of(vec![
                path(),
                property(),
                Member::required("value", Type::Any),
            ]),
            returns: None,
            run: Run::InBand(set),
        },
        Command {
            name: "qom-list-properties",
            arguments: Object::of(vec![Member::required("typename", Type::Str)]),
            returns: info(),
            run: Run::InBand(|_, arguments| match text(arguments, "typename") {
                "iothread" => Ok(properties()),
                other => Err(Error::device_not_found(format!(
                    "Class '{other}' not found"
                ))),
            }),
        },
    ]
}

pub(super) fn definitions() -> Vec<(&'static str, Definition)> {
    let members = ["name", "type"].map(|name| Member::required(name, Type::Str));
    let info = Object::of(members.into());
    vec![("ObjectPropertyInfo", Definition::Object(info))]
}

/// Finds what a path names: from the root, or the last part of it alone.
fn place(objects: &Objects, path: &str) -> Result<Place, Error> {
    let find = |id: &str| objects.iothreads.iter().position(|i| i.options.id == id);
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let found = match parts.as_slice() {
        [] if path.starts_with('/') => Some(Place::Root),
        ["objects"] => Some(Place::Objects),
        ["objects", id] => find(id).map(Place::Iothread),
        [id] if !path.starts_with('/') => find(id).map(Place::Iothread),
        _ => None,
    };
    found.ok_or_else(|| Error::device_not_found(format!("Device '{path}' not found")))
}

fn info(name: &str, r#type: &str) -> Value {
    json!({"name": name, "type": r#type})
}

fn properties() -> Value {
    let all = PROPERTIES.iter();
    all.map(|property| info(property.name, property.r#type))
        .collect()
}

fn list(control: &mut Control, arguments: &Arguments) -> Result<Value, Error> {
    let objects = &control.objects;
    Ok(match place(objects, text(arguments, "path"))? {
        Place::Root => json!([info("type", "string"), info("objects", "child<container>")]),
        Place::Objects => {
            let mut children = vec![info("type", "string")];
            let ids = objects.iothreads.iter().map(|i| &i.options.id);
            children.extend(ids.map(|id| info(id, "child<iothread>")));
            children.into()
        }
        Place::Iothread(_) => properties(),
    })
}

fn get(control: &mut Control, arguments: &Arguments) -> Result<Value, Error> {
    let objects = &control.objects;
    let name = text(arguments, "property");
    let place = place(objects, text(arguments, "path"))?;
    match (place, name) {
        (Place::Iothread(index), _) => Ok((property(name)?.get)(&objects.iothreads[index].options)),
        (Place::Root | Place::Objects, "type") => Ok("container".into()),
        (Place::Root, "objects") => Ok("/objects".into()),
        (Place::Objects, id) if objects.iothread(id).is_some() => {
            Ok(format!("/objects/{id}").into())
        }
        _ => Err(no_property("container", name)),
    }
}

fn set(control: &mut Control, arguments: &Arguments) -> Result<Value, Error> {
    let name = text(arguments, "property");
    let index = match place(&control.objects, text(arguments, "path"))? {
        Place::Iothread(index) => index,
        _ => return Err(not_writable("container", name)),
    };
    let set = property(name)?
        .set
        .ok_or_else(|| not_writable("iothread", name))?;
    let value = arguments.get("value").cloned().unwrap_or_default();
    let is_integer = value.as_number().is_some_and(|number| !number.is_f64());
    if !is_integer {
        return Err(Error::generic(format!(
            "Invalid parameter type for '{name}', expected: integer"
        )));
    }
    let checked = json!({"qom-type": "iothread", "id": "checked", name: value}).to_string();
    let checked = Live::default().object(&checked);
    let ObjectOptions::Iothread(new) = checked.map_err(|problem| refused(&problem))?;
    set(&mut control.objects.iothreads[index], &new);
    Ok(json!({}))
}

fn property(name: &str) -> Result<&'static Property, Error> {
    let found = PROPERTIES.iter().find(|property| property.name == name);
    found.ok_or_else(|| no_property("iothread", name))
}

fn no_property(r#type: &str, name: &str) -> Error {
    Error::generic(format!("Property '{type}.{name}' not found"))
}

fn not_writable(r#type: &str, name: &str) -> Error {
    Error::generic(format!("Property '{type}.{name}' is not writable"))
}
