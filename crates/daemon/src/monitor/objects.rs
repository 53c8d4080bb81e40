//! Iothreads: made, removed, looked at.

use iothread::{DataThread, IothreadTotals};
use options::{ObjectOptions, ValueType};
use qmp::{Arguments, Command, Definition, Error, Member, Object, Run, Type};
use serde_json::{Value, json};

use super::errors::{failed, live, refused};
use super::{iothread_properties, text, types};
use crate::control::Control;
use crate::state::iothread::Iothread;

pub(super) fn commands() -> Vec<Command<Control>> {
    vec![
        Command {
            name: "object-add",
            arguments: types::arguments("ObjectOptions"),
            returns: None,
            run: Run::InBand(add),
        },
        Command {
            name: "object-del",
            arguments: Object::of(vec![Member::required("id", Type::Str)]),
            returns: None,
            run: Run::InBand(|control, arguments| {
                let removed = control.objects.remove_iothread(text(arguments, "id"));
                removed.map_err(|failure| failed(&failure))?;
                Ok(json!({}))
            }),
        },
        Command {
            name: "query-iothreads",
            arguments: Object::default(),
            returns: Some(Type::list_of("IOThreadInfo")),
            run: Run::InBand(|control, _| {
                Ok(control.objects.iothreads.iter().map(describe).collect())
            }),
        },
    ]
}

pub(super) fn definitions() -> Vec<(&'static str, Definition)> {
    let mut members = vec![
        Member::required("id", Type::Str),
        Member::required("thread-id", Type::Int),
    ];
    members.extend(iothread_properties::keys().map(|key| {
        let r#type = match key.r#type {
            ValueType::Bool => Type::Bool,
            ValueType::Int => Type::Int,
            ValueType::Str => Type::Str,
            // Defined by the name of the key, as `object-add` takes it.
            ValueType::Words => Type::Named(key.name),
            // Whichever way a set of CPUs was written.
            ValueType::Named(_) | ValueType::ListOf(_) => Type::List(Box::new(Type::Int)),
        };
        Member::required(key.name, r#type)
    }));
    members.push(Member::required("stats", Type::Named("IOThreadStats")));
    let stats = IOTHREAD_STATS.map(|name| Member::required(name, Type::Int));
    vec![
        ("IOThreadInfo", Definition::Object(Object::of(members))),
        (
            "IOThreadStats",
            Definition::Object(Object::of(stats.into())),
        ),
    ]
}

fn add(control: &mut Control, arguments: &Arguments) -> Result<Value, Error> {
    let json = Value::Object(arguments.clone()).to_string();
    let options = live(&control.objects)?.object(&json);
    let ObjectOptions::Iothread(options) = options.map_err(|problem| refused(&problem))?;
    let added = control.objects.add_iothread(&options);
    added.map_err(|failure| failed(&failure))?;
    Ok(json!({}))
}

/// An iothread with its options and what it has done.
fn describe(iothread: &Iothread) -> Value {
    let mut described = iothread.options.describe().unwrap_or_default();
    if let Some(members) = described.as_object_mut() {
        members.shift_remove("qom-type");
    }
    described["thread-id"] = iothread.thread.thread_id().into();
    described["stats"] = stats(&iothread.thread);
    described
}

/// What an iothread has done so far.
fn stats(thread: &DataThread) -> Value {
    let IothreadTotals {
        iterations: turns,
        submits,
    } = thread.totals();
    let values = [
        thread.cpu_time_ns(),
        turns.iterations(),
        turns.sleeps(),
        turns.polls(),
        turns.poll_hits(),
        turns.poll_time_ns(),
        submits.requests.get(),
        submits.calls.get(),
        submits.largest_batch.get(),
    ];
    let members = IOTHREAD_STATS.map(str::to_owned).into_iter().zip(values);
    members
        .map(|(name, value)| (name, Value::from(value)))
        .collect()
}

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
