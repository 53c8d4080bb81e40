//! Inactive nodes, whose images other processes use meanwhile.

use std::fs;

use serde_json::{Value, json};
use test_support::guest::{Guest, IN};

use crate::client::Client;
use crate::process::{Folder, Process};
use crate::start;

const MIB: u64 = 1 << 20;

/// A file, and a node in front of it.
const LINE: &str = "--blockdev file,node-name=d,filename=disk,active=off \
    --blockdev raw,node-name=r,file=d,active=off";

fn started(line: &str) -> (Folder, Process, Client) {
    let folder = Folder::new();
    folder.image("disk", MIB);
    let (program, client) = start(&folder, line);
    (folder, program, client)
}

fn set_active(node: &str, active: bool) -> Value {
    json!({"node-name": node, "active": active})
}

/// Names of active nodes, newest first.
fn active(client: &mut Client) -> Vec<String> {
    let nodes = client.done("query-named-block-nodes", json!({}));
    let nodes = nodes.as_array().unwrap().iter();
    let active = nodes.filter(|node| node["active"] == true);
    active
        .map(|node| node["node-name"].as_str().unwrap().to_owned())
        .collect()
}

fn other_user() -> Value {
    json!({"driver": "file", "node-name": "other", "filename": "disk"})
}

fn export() -> Value {
    json!({"type": "vhost-user-blk", "id": "e", "node-name": "r",
        "addr": {"type": "unix", "path": "e.sock"}})
}

#[test]
fn an_image_is_locked_while_its_node_is_active_and_only_then() {
    let (_folder, program, mut client) = started(LINE);
    assert_eq!(active(&mut client), [""; 0]);
    client.done("blockdev-add", other_user());
    let error = client.fails("blockdev-set-active", set_active("r", true));
    assert!(error.contains("disk"), "{error}");
    assert_eq!(active(&mut client), ["other"]);
    client.done("blockdev-del", json!({"node-name": "other"}));
    client.done("blockdev-add", other_user());
    client.done("blockdev-del", json!({"node-name": "other"}));
    client.done("blockdev-set-active", set_active("r", true));
    assert_eq!(active(&mut client), ["r", "d"], "what is below comes first");
    client.fails("blockdev-add", other_user());
    client.done("blockdev-set-active", set_active("r", false));
    assert_eq!(active(&mut client), [""; 0]);
    client.done("blockdev-add", other_user());
    program.stop();
}

#[test]
fn a_node_stays_active_while_something_uses_it() {
    let (folder, program, mut client) = started(LINE);
    client.done("block-export-add", export());
    assert_eq!(active(&mut client), ["r", "d"], "the export needs them");
    Guest::connect(&folder.join("e.sock"), 1).request(0, IN, 0, 0);
    for (node, reason) in [
        ("d", "Node 'd' has active parent node 'r'"),
        ("r", "Node 'r' is in use by export 'e'"),
        ("nope", "Failed to find node with node-name='nope'"),
    ] {
        let error = client.fails("blockdev-set-active", set_active(node, false));
        assert_eq!(error, reason);
    }
    client.fails("blockdev-set-active", json!({"active": false}));
    assert_eq!(active(&mut client), ["r", "d"]);
    client.done("block-export-del", json!({"id": "e", "mode": "hard"}));
    client.event("BLOCK_EXPORT_DELETED", "e");
    // Another node in front of it keeps the file active.
    let second = json!({"driver": "raw", "node-name": "second", "file": "d"});
    client.done("blockdev-add", second);
    client.done("blockdev-set-active", set_active("r", false));
    assert_eq!(active(&mut client), ["second", "d"]);
    client.done("blockdev-set-active", json!({"active": false}));
    assert_eq!(active(&mut client), [""; 0]);
    client.done("blockdev-set-active", json!({"active": true}));
    assert_eq!(active(&mut client), ["second", "r", "d"]);
    program.stop();
}

#[test]
fn active_node_cannot_use_an_inactive_one() {
    let (_folder, program, mut client) = started(LINE);
    let node = json!({"driver": "raw", "node-name": "second", "file": "d"});
    let error = client.fails("blockdev-add", node);
    assert!(error.starts_with("Inactive 'd' can't be"), "{error}");
    let null = json!({"driver": "null-co", "node-name": "n", "size": MIB});
    client.done("blockdev-add", null);
    let on_null = json!({"driver": "raw", "node-name": "second", "file": "n"});
    client.done("blockdev-add", on_null);
    let onto = json!({"driver": "raw", "node-name": "second", "file": "d"});
    let file = json!({"driver": "file", "node-name": "d", "filename": "disk"});
    for options in [json!([onto]), json!([onto, file])] {
        let error = client.fails("blockdev-reopen", json!({"options": options}));
        assert!(error.starts_with("Inactive 'd' can't be"), "{error}");
    }
    // The one in front of it is written in place.
    let inside = json!({"driver": "raw", "active": true, "file": "d"});
    let outside = json!({"driver": "raw", "node-name": "third", "active": false, "file": inside});
    let error = client.fails("blockdev-add", outside);
    assert!(error.starts_with("Inactive 'd' can't be"), "{error}");
    program.stop();
}

/// It has no lock before, and none after.
#[test]
fn inactive_node_is_reopened_without_its_lock() {
    let (_folder, program, mut client) = started(LINE);
    client.done("blockdev-add", other_user());
    let file = json!({"driver": "file", "node-name": "d", "filename": "disk",
        "cache": {"direct": false}});
    client.done("blockdev-reopen", json!({"options": [file]}));
    assert_eq!(active(&mut client), ["other"]);
    client.fails("blockdev-set-active", set_active("d", true));
    client.done("blockdev-del", json!({"node-name": "other"}));
    client.done("blockdev-set-active", set_active("d", true));
    client.fails("blockdev-add", other_user());
    program.stop();
}

#[test]
fn inactive_node_cannot_be_resized() {
    let (folder, program, mut client) = started(LINE);
    let size = || fs::metadata(folder.join("disk")).unwrap().len();
    for node in ["d", "r"] {
        let to = json!({"node-name": node, "size": 2 * MIB});
        let error = client.fails("block_resize", to);
        assert!(error.contains("is inactive"), "{error}");
    }
    assert_eq!(size(), MIB);
    client.done("blockdev-set-active", set_active("r", true));
    client.done("block_resize", json!({"node-name": "r", "size": 2 * MIB}));
    assert_eq!(size(), 2 * MIB);
    program.stop();
}
