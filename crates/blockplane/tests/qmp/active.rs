//! Inactive nodes, whose images other processes use meanwhile.

use std::fs;

use serde_json::{Value, json};
use test_support::deadline::eventually;
use test_support::guest::{Guest, IN, OUT};

use crate::client::Client;
use crate::process::{Folder, Process, words};
use crate::{MONITOR, start};

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

/// An export that leaves its nodes inactive until it needs them.
fn lazy_export() -> Value {
    let mut export = export();
    export["allow-inactive"] = true.into();
    export["writable"] = true.into();
    export["num-queues"] = 2.into();
    export
}

/// Whether another node can have the image.
fn is_free(client: &mut Client) -> bool {
    let is_free = client
        .ask("blockdev-add", other_user())
        .get("error")
        .is_none();
    if is_free {
        client.done("blockdev-del", json!({"node-name": "other"}));
    }
    is_free
}

#[test]
fn an_export_with_allow_inactive_has_its_image_while_queues_run() {
    let (folder, program, mut client) = started(LINE);
    client.done("block-export-add", lazy_export());
    assert!(active(&mut client).is_empty() && is_free(&mut client));
    let mut guest = Guest::connect(&folder.join("e.sock"), 2);
    guest.request(0, OUT, 0, 1);
    assert_eq!(active(&mut client), ["r", "d"]);
    assert!(!is_free(&mut client));
    for arguments in [set_active("r", false), json!({"active": false})] {
        client.fails("blockdev-set-active", arguments);
    }
    let bases = [guest.stop(0), guest.stop(1)];
    assert!(active(&mut client).is_empty() && is_free(&mut client));
    guest.start(0, bases[0]);
    guest.request(0, IN, 0, 0);
    assert_eq!(guest.stop(1), bases[1], "it does not run");
    assert_eq!(active(&mut client), ["r", "d"], "the first one runs");
    drop(guest);
    client.event("BLOCK_EXPORT_DISCONNECTED", "e");
    assert_eq!(active(&mut client), [""; 0]);
    // By hand, as long as no queue runs.
    for is_active in [true, false] {
        client.done("blockdev-set-active", set_active("r", is_active));
        assert_eq!(active(&mut client).is_empty(), !is_active);
    }
    program.stop();
}

#[test]
fn queues_do_not_start_without_the_image() {
    let (folder, program, mut client) = started(LINE);
    client.done("block-export-add", lazy_export());
    client.done("blockdev-add", other_user());
    Guest::connect_refused(&folder.join("e.sock"));
    assert_eq!(active(&mut client), ["other"]);
    client.done("blockdev-del", json!({"node-name": "other"}));
    let mut guest = Guest::connect(&folder.join("e.sock"), 1);
    guest.request(0, OUT, 0, 1);
    assert_eq!(active(&mut client), ["r", "d"]);
    program.stop();
}

#[test]
fn an_export_without_allow_inactive_gives_its_image_up_to_a_migration_only() {
    let (folder, program, mut client) = started(LINE);
    client.done("block-export-add", export());
    let guest = Guest::connect(&folder.join("e.sock"), 1);
    let base = guest.stop(0);
    assert_eq!(active(&mut client), ["r", "d"], "its driver resets it");
    guest.start(0, base);
    guest.log_dirty_pages(true);
    let base = guest.stop(0);
    assert!(active(&mut client).is_empty() && is_free(&mut client));
    // The migration is cancelled.
    guest.start(0, base);
    assert_eq!(active(&mut client), ["r", "d"]);
    guest.log_dirty_pages(false);
    // A guest whose VMM crashes while it migrates may go on here.
    guest.log_dirty_pages(true);
    drop(guest);
    client.event("BLOCK_EXPORT_DISCONNECTED", "e");
    assert_eq!(active(&mut client), ["r", "d"]);
    program.stop();
}

/// A daemon each for the two ends of a migration.
#[test]
fn the_image_moves_with_a_guest_to_another_daemon() {
    let folder = Folder::new();
    folder.image("disk", MIB);
    let line = |more: &str, allow: &str, socket: &str| {
        format!(
            "--blockdev file,node-name=d,filename=disk{more} --blockdev raw,node-name=r,file=d{more} \
             --export vhost-user-blk,id=e,node-name=r,writable=on,addr.type=unix,addr.path={socket}{allow}"
        )
    };
    let (here, mut here_client) = start(&folder, &line("", "", "here.sock"));
    std::fs::rename(folder.join("qmp"), folder.join("qmp-here")).unwrap();
    let line = line(",active=off", ",allow-inactive=on", "there.sock");
    let mut command = folder.command(words(&format!("{line} {MONITOR}")));
    command.env("BLOCKPLANE_LOG", "info");
    let mut there = Process::spawn(command);
    let mut there_client = Client::of(there.connection(&folder.join("qmp")));
    let mut source = Guest::connect(&folder.join("here.sock"), 1);
    source.request(0, OUT, 0, 1);
    source.log_dirty_pages(true);
    let there_socket = folder.join("there.sock");
    // The destination waits for the lock. It has no order with the source's stop, except that it cannot come before it.
    let destination = std::thread::spawn(move || Guest::connect(&there_socket, 1));
    eventually("the destination waits, or does not", || {
        destination.is_finished() || there.stderr().contains("waits until its images are free")
    });
    assert!(!destination.is_finished(), "both ends have the image");
    let base = source.stop(0);
    let mut destination = destination.join().unwrap();
    destination.request(0, OUT, 0, 2);
    assert_eq!(active(&mut here_client), [""; 0]);
    assert_eq!(active(&mut there_client), ["r", "d"]);
    source.start_refused(0, base);
    destination.request(0, IN, 0, 0);
    assert_eq!(destination.data(0, 0)[0], 2);
    drop(destination);
    let mut back = Guest::connect(&folder.join("here.sock"), 1);
    back.request(0, IN, 0, 0);
    assert_eq!(back.data(0, 0)[0], 2);
    assert_eq!(active(&mut here_client), ["r", "d"]);
    assert_eq!(active(&mut there_client), [""; 0]);
    there.stop();
    here.stop();
}
