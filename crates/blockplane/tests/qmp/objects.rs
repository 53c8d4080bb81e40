//! Tests of iothreads that are added, removed and tuned by QMP.

use std::fs;

use serde_json::{Value, json};

use crate::process::Folder;
use crate::start;

#[test]
fn iothread_is_added_queried_and_removed() {
    let folder = Folder::new();
    let (program, mut client) = start(&folder, "--object iothread,id=a,poll-max-ns=7");
    let new = json!({"qom-type": "iothread", "id": "b", "aio-max-batch": 5, "cpu-affinity": 0});
    client.done("object-add", new.clone());
    assert_eq!(
        client.fails("object-add", new),
        "attempt to add duplicate property 'b' to object (type 'container')"
    );
    let iothreads = client.done("query-iothreads", json!({}));
    assert_eq!(iothreads[0]["poll-max-ns"], 7);
    assert_eq!(iothreads[1]["aio-max-batch"], 5);
    assert_eq!(iothreads[1]["cpu-affinity"], json!([0]));
    for iothread in iothreads.as_array().unwrap() {
        let task = format!(
            "/proc/{}/task/{}/comm",
            program.pid(),
            iothread["thread-id"]
        );
        let expected = format!("IO {}\n", iothread["id"].as_str().unwrap());
        assert_eq!(fs::read_to_string(task).unwrap(), expected);
    }
    client.done("object-del", json!({"id": "b"}));
    let gone = client.fails("object-del", json!({"id": "b"}));
    assert_eq!(gone, "object 'b' not found");
    assert_eq!(client.done("query-iothreads", json!({}))[1], Value::Null);
    program.stop();
}

#[test]
fn iothread_with_exports_cannot_be_removed() {
    let folder = Folder::new();
    let line = "--object iothread,id=a --blockdev null-co,node-name=d \
                --export vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path=s,iothread=a";
    let (program, mut client) = start(&folder, line);
    let used = client.fails("object-del", json!({"id": "a"}));
    assert_eq!(
        used,
        "object 'a' is in use, can not be deleted: export 'e' runs on it"
    );
    client.done("block-export-del", json!({"id": "e"}));
    client.done("object-del", json!({"id": "a"}));
    program.stop();
}

#[test]
fn iothread_properties_are_listed_read_and_set() {
    let folder = Folder::new();
    let (program, mut client) = start(&folder, "--object iothread,id=a");
    let at = |property: &str| json!({"path": "/objects/a", "property": property});
    let listed = client.done("qom-list", json!({"path": "/objects/a"}));
    let of_type = client.done("qom-list-properties", json!({"typename": "iothread"}));
    assert_eq!(listed, of_type);
    for (property, value) in [
        ("poll-max-ns", json!(5)),
        ("poll-grow", json!(3)),
        ("poll-shrink", json!(2)),
        ("poll-cpu-max", json!(50)),
        ("aio-max-batch", json!(16)),
        ("aio-max-events", json!(7)),
        ("thread-pool-max", json!(9)),
        ("thread-pool-min", json!(1)),
        ("cpu-affinity", json!([0])),
    ] {
        let mut set = at(property);
        set["value"] = value.clone();
        assert_eq!(client.done("qom-set", set), json!({}));
        assert_eq!(client.done("qom-get", at(property)), value);
        assert_eq!(
            client.done("query-iothreads", json!({}))[0][property],
            value
        );
    }
    for (path, property, value, reason) in [
        (
            "/objects/a",
            "poll-max-ns",
            json!(-5),
            "poll-max-ns value must be in range [0, 9223372036854775807]",
        ),
        (
            "a",
            "poll-max-ns",
            json!("x"),
            "Invalid parameter type for 'poll-max-ns', expected: integer",
        ),
        (
            "a",
            "poll-cpu-max",
            json!(101),
            "poll-cpu-max value must be in range [0, 100]",
        ),
        (
            "a",
            "type",
            json!("x"),
            "Property 'iothread.type' is not writable",
        ),
        (
            "a",
            "aio-max-events",
            json!(0),
            "aio-max-events value must be in range [1, 65536]",
        ),
        (
            "a",
            "thread-pool-min",
            json!(10),
            "bad thread-pool-min/thread-pool-max values: 'thread-pool-min' (10) is above \
             'thread-pool-max' (9); raise the latter or lower the former",
        ),
        (
            "/objects",
            "a",
            json!(1),
            "Property 'container.a' is not writable",
        ),
        ("a", "nope", json!(1), "Property 'iothread.nope' not found"),
        (
            "/objects/nope",
            "x",
            json!(1),
            "Device '/objects/nope' not found",
        ),
    ] {
        let set = json!({"path": path, "property": property, "value": value});
        assert_eq!(client.fails("qom-set", set), reason);
    }
    assert_eq!(client.done("qom-get", at("poll-max-ns")), 5, "unchanged");
    program.stop();
}
