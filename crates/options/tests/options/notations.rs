//! Properties of the options of qemu-storage-daemon: both notations have the same meaning, and no arguments cause a panic.

use std::{ffi::OsString, os::unix::ffi::OsStringExt};

use options::{DaemonSettingsAndDirectives, Invocation, parse};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

/// Sets `path` (dotted) in a JSON object.
fn set(object: &mut Map<String, Value>, path: &str, value: &Value) {
    match path.split_once('.') {
        None => {
            object.insert(path.to_owned(), value.clone());
        }
        Some((group, rest)) => {
            let inner = object.entry(group).or_insert_with(|| json!({}));
            set(
                inner.as_object_mut().expect("paths are consistent"),
                rest,
                value,
            );
        }
    }
}

fn as_json(keys: &Keys) -> String {
    let mut object = Map::new();
    for (path, value) in keys {
        set(&mut object, path, value);
    }
    Value::Object(object).to_string()
}

fn as_keyval(keys: &Keys) -> String {
    let mut out = Vec::new();
    for (path, value) in keys {
        push_keyval(path, value, &mut out);
    }
    out.join(",")
}

fn push_keyval(path: &str, value: &Value, out: &mut Vec<String>) {
    let text = match value {
        Value::Array(items) => {
            for (i, item) in items.iter().enumerate() {
                push_keyval(&format!("{path}.{i}"), item, out);
            }
            return;
        }
        Value::Object(entries) => {
            for (key, value) in entries {
                push_keyval(&format!("{path}.{key}"), value, out);
            }
            return;
        }
        Value::Bool(true) => "on".to_owned(),
        Value::Bool(false) => "off".to_owned(),
        Value::String(text) => text.replace(',', ",,"),
        other => other.to_string(),
    };
    out.push(format!("{path}={text}"));
}

type Keys = Vec<(String, Value)>;

/// `first`, and a subset of `rest` with any of the listed values, some of which are invalid.
fn keys(first: &Value, rest: &Value) -> impl Strategy<Value = Keys> + use<> {
    let object = |value: &Value| value.as_object().expect("keys").clone().into_iter();
    let first: Keys = object(first).collect();
    let rest: Vec<_> = object(rest)
        .map(|(key, values)| {
            let values = values.as_array().expect("values").clone();
            let value = prop::option::of(prop::sample::select(values));
            value.prop_map(move |value| Some((key.clone(), value?)))
        })
        .collect();
    rest.prop_map(move |rest| {
        first
            .iter()
            .cloned()
            .chain(rest.into_iter().flatten())
            .collect()
    })
}

fn iothread() -> impl Strategy<Value = Keys> {
    let values = json!({
        "poll-max-ns": [0, 1, i64::MAX, u64::MAX, -1],
        "poll-grow": [2],
        "aio-max-batch": [9, u64::MAX],
        "cpu-affinity": [1, [0, "2-3"], "0,5", 1024],
        "thread-pool-min": [3],
        "thread-pool-max": [4, 2],
    });
    keys(&json!({"qom-type": "iothread", "id": "i"}), &values)
}

fn node() -> impl Strategy<Value = Keys> {
    let file = json!({
        "read-only": [true, false],
        "discard": ["unmap", "ignore"],
        "cache.direct": [true, false],
        "cache.no-flush": [true, false],
        "filename": ["/a,b", "é", "{}", ""],
        "aio": ["native", "threads", "io_uring"],
        "locking": ["auto", "on", "no"],
    });
    let raw = json!({
        "offset": [512, 7],
        "size": [1024, 7],
        "cache.direct": [true, false],
        "file.driver": ["file", "host_device"],
        "file.filename": ["/x"],
        "file.cache.direct": [true, false],
        "file.sise": [1],
    });
    prop_oneof![
        keys(&json!({"driver": "file", "node-name": "n"}), &file),
        keys(&json!({"driver": "raw", "node-name": "n"}), &raw),
    ]
}

fn export() -> impl Strategy<Value = Keys> {
    let values = json!({
        "node-name": ["n", "n", "m"],
        "addr.type": ["unix", "unix", "fd"],
        "addr.path": ["/x"],
        "writable": [true, false],
        "iothread": ["i", ["i", "j"], ["i", "i"]],
        "iothread-vq-mapping": [
            [{"iothread": "i"}, {"iothread": "j"}],
            [{"iothread": "i", "vqs": [1]}, {"iothread": "j", "vqs": [0]}],
            [{"iothread": "i", "vqs": [0]}, {"iothread": "j"}],
        ],
        "num-queues": [1, 2, 300],
        "serial": ["a", ""],
    });
    keys(&json!({"type": "vhost-user-blk", "id": "e"}), &values)
}

/// The outcome of an option, after options that it may refer to.
fn outcome(option: &str, text: String) -> Result<DaemonSettingsAndDirectives, String> {
    let mut args: Vec<OsString> = Vec::new();
    if option == "--export" {
        args.extend(["--object", "iothread,id=i", "--object", "iothread,id=j"].map(OsString::from));
        args.extend(["--blockdev", "null-co,node-name=n"].map(OsString::from));
    }
    args.extend([option.into(), text.into()]);
    match parse(args.into_iter()) {
        Ok(Invocation::Daemon(daemon)) => Ok(daemon),
        Ok(other) => Err(format!("{other:?}")),
        Err(error) => Err(error.to_string()),
    }
}

fn word() -> impl Strategy<Value = OsString> {
    const PARTS: &str = "--blockdev --export --object --pidfile serve help file raw iothread vhost-user-blk driver node-name id \
         addr.type addr.path file. iothread.0 size , ,, = . on { } \" ' : [ ] 1 1.5G - \\u null-co é";
    let parts: Vec<&str> = PARTS.split(' ').chain([" "]).collect();
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..20).prop_map(OsString::from_vec),
        prop::collection::vec(prop::sample::select(parts), 0..12)
            .prop_map(|parts| parts.concat().into()),
        prop::sample::select(vec!["--blockdev", "--export", "--object", "serve"])
            .prop_map(OsString::from),
    ]
}

proptest! {
    #[test]
    fn json_and_keyval_have_the_same_meaning((option, keys) in prop_oneof![
        iothread().prop_map(|keys| ("--object", keys)),
        node().prop_map(|keys| ("--blockdev", keys)),
        export().prop_map(|keys| ("--export", keys)),
    ]) {
        prop_assert_eq!(outcome(option, as_json(&keys)), outcome(option, as_keyval(&keys)));
    }

    #[test]
    fn any_arguments_are_parsed_without_a_panic(args in prop::collection::vec(word(), 0..6)) {
        if let Err(error) = parse(args.into_iter()) {
            prop_assert!(!error.to_string().is_empty());
        }
    }
}
