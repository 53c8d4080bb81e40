//! QMP commands for user-creatable objects, iothreads, secrets, throttle groups, and what TLS needs: add, remove and query.

use iothread::{IothreadHandle, IothreadTotals};
use options::{ObjectOptions, ValueType};
use qmp::{Arguments, Command, CommandHandler, Error, Member, ObjectType, Type, TypeDefinition};
use serde_json::{Value, json};

use super::error_conversion::{error_of_failed_action, error_of_invalid_options};
use super::running_object_names::names_of_running_objects;
use super::{iothread_properties, option_types, str_arg_or_empty};
use crate::control::MainThread;
use crate::state::iothread::Iothread;
use crate::state::secret::SecretFiles;

/// The commands for objects.
pub(super) fn qmp_commands() -> Vec<Command<MainThread>> {
    vec![
        Command {
            name: "object-add",
            arguments: option_types::arguments_from_type("ObjectOptions"),
            returns: None,
            run: CommandHandler::InBand(add_object),
        },
        Command {
            name: "object-del",
            arguments: ObjectType::with_members(vec![Member::required("id", Type::Str)]),
            returns: None,
            run: CommandHandler::InBand(|control, arguments| {
                let id = str_arg_or_empty(arguments, "id");
                let removed = control.objects.remove_object(id);
                removed.map_err(|failure| error_of_failed_action(&failure))?;
                Ok(json!({}))
            }),
        },
        Command {
            name: "query-iothreads",
            arguments: ObjectType::default(),
            returns: Some(Type::list_of_named("IOThreadInfo")),
            run: CommandHandler::InBand(|control, _| {
                Ok(control
                    .objects
                    .iothreads
                    .iter()
                    .map(iothread_info)
                    .collect())
            }),
        },
    ]
}

/// Types of the result of `query-iothreads`.
pub(super) fn qmp_type_definitions() -> Vec<(&'static str, TypeDefinition)> {
    let mut members = vec![
        Member::required("id", Type::Str),
        Member::required("thread-id", Type::Int),
    ];
    members.extend(iothread_properties::property_keys().map(|key| {
        let r#type = match key.r#type {
            ValueType::Bool => Type::Bool,
            ValueType::Int => Type::Int,
            ValueType::Str => Type::Str,
            // An enumeration with the name of its key, as in the arguments of `object-add`.
            ValueType::Words => Type::Named(key.name),
            // Sets of CPUs, shown as lists however they were written.
            ValueType::Named(_) | ValueType::ListOf(_) => Type::List(Box::new(Type::Int)),
        };
        Member::required(key.name, r#type)
    }));
    members.push(Member::required("stats", Type::Named("IOThreadStats")));
    let stats = IOTHREAD_STATS.map(|name| Member::required(name, Type::Int));
    vec![
        (
            "IOThreadInfo",
            TypeDefinition::Object(ObjectType::with_members(members)),
        ),
        (
            "IOThreadStats",
            TypeDefinition::Object(ObjectType::with_members(stats.into())),
        ),
    ]
}

/// `object-add`: creates an object of any type.
fn add_object(control: &mut MainThread, arguments: &Arguments) -> Result<Value, Error> {
    let json = Value::Object(arguments.clone()).to_string();
    let options = names_of_running_objects(&control.objects)?.read_object(&json);
    let added = match options.map_err(|problem| error_of_invalid_options(&problem))? {
        ObjectOptions::Iothread(options) => control.objects.spawn_and_add_iothread(&options),
        ObjectOptions::Secret(options) => control
            .objects
            .read_and_add_secret(&options, SecretFiles::Regular),
        ObjectOptions::ThrottleGroup(options) => control.objects.add_throttle_group(&options),
        ObjectOptions::TlsCreds(options) => control
            .objects
            .read_and_add_tls_creds(&options, SecretFiles::Regular),
        ObjectOptions::AuthzList(options) => control.objects.add_authz_list(&options),
    };
    added.map_err(|failure| error_of_failed_action(&failure))?;
    Ok(json!({}))
}

/// `IOThreadInfo` of an iothread: its options and statistics.
fn iothread_info(iothread: &Iothread) -> Value {
    let mut info = iothread.options.to_json().unwrap_or_default();
    if let Some(members) = info.as_object_mut() {
        members.shift_remove("qom-type");
    }
    info["thread-id"] = iothread.thread.thread_id().into();
    info["stats"] = iothread_stats(&iothread.thread);
    info
}

/// `IOThreadStats` of an iothread.
fn iothread_stats(thread: &IothreadHandle) -> Value {
    let IothreadTotals {
        event_loop,
        submits,
    } = thread.totals();
    let values = [
        thread.cpu_time_ns(),
        event_loop.iterations(),
        event_loop.sleeps(),
        event_loop.polls(),
        event_loop.poll_hits(),
        event_loop.poll_time_ns(),
        submits.requests.get(),
        submits.calls.get(),
        submits.largest_batch.get(),
    ];
    let members = IOTHREAD_STATS.map(str::to_owned).into_iter().zip(values);
    members
        .map(|(name, value)| (name, Value::from(value)))
        .collect()
}

/// Members of `IOThreadStats`, in the order of [`iothread_stats`].
const IOTHREAD_STATS: [&str; 9] = [
    "cpu-time-ns",
    "iterations",
    "sleeps",
    "polls",
    "poll-hits",
    "poll-time-ns",
    "requests-submitted",
    "submit-calls",
    "largest-batch",
];
