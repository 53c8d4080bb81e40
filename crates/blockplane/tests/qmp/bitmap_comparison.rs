//! Commands for dirty bitmaps, answered as by qemu-storage-daemon: results, states and error texts.
//!
//! Left out are commands at which its versions crash: a merge of no bitmaps, and a transaction that fails after an action `disable`.

use serde_json::{Value, json};

use crate::qemu_comparison::assert_same_answers;

fn bitmap(name: &str) -> Value {
    json!({"node": "n", "name": name})
}

fn transaction(actions: &[(&str, Value)]) -> (&'static str, Value) {
    let actions = actions
        .iter()
        .map(|(kind, data)| json!({"type": format!("block-dirty-bitmap-{kind}"), "data": data}));
    let actions: Vec<Value> = actions.collect();
    ("transaction", json!({"actions": actions}))
}

/// Commands with their arguments, in this order.
fn script(version: &str) -> Vec<(&'static str, Value)> {
    const ADD: &str = "block-dirty-bitmap-add";
    const MERGE: &str = "block-dirty-bitmap-merge";
    let merge =
        |target: &str, bitmaps: Value| json!({"node": "n", "target": target, "bitmaps": bitmaps});
    let add = |name: &str, key: &str, value: Value| {
        let mut arguments = bitmap(name);
        arguments[key] = value;
        (ADD, arguments)
    };
    let null =
        |name: &str, size: u64| json!({"driver": "null-co", "node-name": name, "size": size});
    let nodes = || ("query-named-block-nodes", json!({}));
    let mut script = vec![
        ("qmp_capabilities", json!({})),
        ("blockdev-add", null("n", 2 << 30)),
        ("blockdev-add", null("small", 1 << 20)),
        (
            "blockdev-add",
            json!({"driver": "file", "node-name": "ro", "filename": "disk", "read-only": true}),
        ),
        nodes(),
        (ADD, bitmap("")),
        (ADD, json!({"node": "nope", "name": "b"})),
        (ADD, json!({"node": "n"})),
        add("b", "x", json!(1)),
        add("b", "granularity", json!(1000)),
        add("b", "granularity", json!(256)),
        add("b", "granularity", json!(1_u64 << 32)),
        add("b", "granularity", json!(-1)),
        add("g", "granularity", json!(1_u64 << 31)),
        (ADD, bitmap("b")),
        (ADD, bitmap("b")),
        (ADD, bitmap(&"l".repeat(1023))),
        (ADD, bitmap(&"l".repeat(1024))),
        (
            ADD,
            json!({"node": "n", "name": "d", "granularity": 512, "disabled": true}),
        ),
        add("p", "persistent", json!(true)),
        (ADD, json!({"node": "ro", "name": "q"})),
        (ADD, json!({"node": "small", "name": "s"})),
        nodes(),
    ];
    for command in [
        "block-dirty-bitmap-remove",
        "block-dirty-bitmap-clear",
        "block-dirty-bitmap-enable",
        "block-dirty-bitmap-disable",
    ] {
        script.push((command, bitmap("nope")));
        script.push((command, json!({"node": "nope", "name": "b"})));
        script.push((command, json!({"node": "n"})));
    }
    script.extend([
        ("block-dirty-bitmap-enable", bitmap("d")),
        ("block-dirty-bitmap-enable", bitmap("d")),
        ("block-dirty-bitmap-disable", bitmap("b")),
        ("block-dirty-bitmap-disable", bitmap("b")),
        ("block-dirty-bitmap-clear", bitmap("b")),
        (
            "block-dirty-bitmap-clear",
            json!({"node": "ro", "name": "q"}),
        ),
        nodes(),
        (MERGE, merge("b", json!(["d"]))),
        (MERGE, merge("b", json!(["d", "nope"]))),
        (MERGE, merge("nope", json!(["d"]))),
        (MERGE, merge("b", json!(["b"]))),
        (MERGE, merge("b", json!([{"node": "n", "name": "d"}, "g"]))),
        (MERGE, merge("b", json!([{"node": "small", "name": "s"}]))),
        (MERGE, merge("b", json!([{"node": "nope", "name": "s"}]))),
        (MERGE, merge("b", json!([{"node": "small", "name": "x"}]))),
        (MERGE, merge("b", json!("d"))),
        ("transaction", json!({})),
        ("transaction", json!({"actions": []})),
        (
            "transaction",
            json!({"actions": [{"type": "abort", "data": {}}]}),
        ),
        (
            "transaction",
            json!({"actions": [{"type": "block-dirty-bitmap-clear"}]}),
        ),
        transaction(&[("clear", json!({"node": "n"}))]),
        transaction(&[("clear", json!({"node": "n", "name": "b", "x": 1}))]),
        transaction(&[("clear", bitmap("nope"))]),
        transaction(&[("add", bitmap("t")), ("add", bitmap("b"))]),
        transaction(&[("add", bitmap("t")), ("clear", bitmap("nope"))]),
        nodes(),
        transaction(&[("add", bitmap("t")), ("remove", bitmap("t"))]),
        nodes(),
        transaction(&[
            ("add", bitmap("t")),
            ("merge", merge("t", json!(["b", "d"]))),
            ("clear", bitmap("b")),
            ("enable", bitmap("b")),
        ]),
        nodes(),
        transaction(&[("remove", bitmap("t")), ("add", bitmap("t"))]),
        transaction(&[("remove", bitmap("t")), ("clear", bitmap("t"))]),
        nodes(),
        (
            "transaction",
            json!({"actions": [{"type": "block-dirty-bitmap-clear", "data": bitmap("b")}],
                "properties": {"completion-mode": "individual"}}),
        ),
        ("block-dirty-bitmap-remove", bitmap("t")),
        ("block-dirty-bitmap-remove", bitmap("t")),
        nodes(),
        ("quit", json!({})),
    ]);
    if version.starts_with("11.") {
        script.splice(1..1, newer());
    }
    script
}

/// Commands with other texts in older versions.
fn newer() -> Vec<(&'static str, Value)> {
    let read_only =
        json!({"driver": "file", "node-name": "r", "filename": "disk", "read-only": true});
    let clear = json!({"type": "block-dirty-bitmap-clear", "data": {"node": "r", "name": "b"}});
    vec![
        ("blockdev-add", read_only),
        (
            "block-dirty-bitmap-add",
            json!({"node": "r", "name": "p", "persistent": true}),
        ),
        (
            "transaction",
            json!({"actions": [clear], "properties": {"completion-mode": "grouped"}}),
        ),
    ]
}

#[test]
fn replies_to_commands_for_bitmaps_match_qemu_storage_daemon() {
    assert_same_answers(script);
}
