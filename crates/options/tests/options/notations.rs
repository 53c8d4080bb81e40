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

fn as_json(keys: &[(&str, Value)]) -> String {
    let mut object = Map::new();
    for (path, value) in keys {
        set(&mut object, path, value);
    }
    Value::Object(object).to_string()
}

fn as_keyval(keys: &[(&str, Value)]) -> String {
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

type Keys = Vec<(&'static str, Value)>;

/// A subset of the keys, with valid and invalid values.
fn some_of(keys: Vec<(&'static str, Vec<Value>)>) -> impl Strategy<Value = Keys> {
    keys.into_iter()
        .map(|(key, values)| {
            prop::option::of(prop::sample::select(values)).prop_map(move |value| (key, value))
        })
        .collect::<Vec<_>>()
        .prop_map(|keys| {
            keys.into_iter()
                .filter_map(|(key, value)| Some((key, value?)))
                .collect()
        })
}

fn with(
    first: Vec<(&'static str, Value)>,
    rest: impl Strategy<Value = Keys>,
) -> impl Strategy<Value = Keys> {
    rest.prop_map(move |rest| first.iter().cloned().chain(rest).collect())
}

fn switches() -> Vec<Value> {
    vec![json!(true), json!(false)]
}

fn iothread() -> impl Strategy<Value = Keys> {
    let keys = vec![
        (
            "poll-max-ns",
            vec![
                json!(0),
                json!(1),
                json!(i64::MAX),
                json!(u64::MAX),
                json!(-1),
            ],
        ),
        ("poll-grow", vec![json!(2)]),
        ("aio-max-batch", vec![json!(9), json!(u64::MAX)]),
        (
            "cpu-affinity",
            vec![json!(1), json!([0, "2-3"]), json!("0,5"), json!(1024)],
        ),
        ("thread-pool-min", vec![json!(3)]),
        ("thread-pool-max", vec![json!(4), json!(2)]),
    ];
    with(
        vec![("qom-type", json!("iothread")), ("id", json!("i"))],
        some_of(keys),
    )
}

fn node() -> impl Strategy<Value = Keys> {
    let file = vec![
        ("read-only", switches()),
        ("discard", vec![json!("unmap"), json!("ignore")]),
        ("cache.direct", switches()),
        ("cache.no-flush", switches()),
        (
            "filename",
            vec![json!("/a,b"), json!("é"), json!("{}"), json!("")],
        ),
        (
            "aio",
            vec![json!("native"), json!("threads"), json!("io_uring")],
        ),
        ("locking", vec![json!("auto"), json!("on"), json!("no")]),
    ];
    let raw = vec![
        ("offset", vec![json!(512), json!(7)]),
        ("size", vec![json!(1024), json!(7)]),
        ("cache.direct", switches()),
        ("file.driver", vec![json!("file"), json!("host_device")]),
        ("file.filename", vec![json!("/x")]),
        ("file.cache.direct", switches()),
        ("file.sise", vec![json!(1)]),
    ];
    prop_oneof![
        with(
            vec![("driver", json!("file")), ("node-name", json!("n"))],
            some_of(file)
        ),
        with(
            vec![("driver", json!("raw")), ("node-name", json!("n"))],
            some_of(raw)
        ),
    ]
}

fn export() -> impl Strategy<Value = Keys> {
    let keys = vec![
        ("node-name", vec![json!("n"), json!("n"), json!("m")]),
        ("addr.type", vec![json!("unix"), json!("unix"), json!("fd")]),
        ("addr.path", vec![json!("/x")]),
        ("writable", switches()),
        (
            "iothread",
            vec![json!("i"), json!(["i", "j"]), json!(["i", "i"])],
        ),
        (
            "iothread-vq-mapping",
            vec![
                json!([{"iothread": "i"}, {"iothread": "j"}]),
                json!([{"iothread": "i", "vqs": [1]}, {"iothread": "j", "vqs": [0]}]),
                json!([{"iothread": "i", "vqs": [0]}, {"iothread": "j"}]),
            ],
        ),
        ("num-queues", vec![json!(1), json!(2), json!(300)]),
        ("serial", vec![json!("a"), json!("")]),
    ];
    with(
        vec![("type", json!("vhost-user-blk")), ("id", json!("e"))],
        some_of(keys),
    )
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
    let parts = prop::sample::select(vec![
        "--blockdev",
        "--export",
        "--object",
        "--pidfile",
        "serve",
        "help",
        "file",
        "raw",
        "iothread",
        "vhost-user-blk",
        "driver",
        "node-name",
        "id",
        "addr.type",
        "addr.path",
        "file.",
        "iothread.0",
        "size",
        ",",
        ",,",
        "=",
        ".",
        "on",
        "{",
        "}",
        "\"",
        "'",
        ":",
        "[",
        "]",
        "1",
        "1.5G",
        "-",
        "\\u",
        "null-co",
        "é",
        " ",
    ]);
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..20).prop_map(OsString::from_vec),
        prop::collection::vec(parts, 0..12).prop_map(|parts| parts.concat().into()),
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
