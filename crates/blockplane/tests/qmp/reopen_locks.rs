//! Images stay locked while their nodes are reopened.

use serde_json::{Value, json};

use crate::client::Client;
use crate::lock_contender::LockContender;
use crate::process::Folder;
use crate::start;

const MIB: u64 = 1 << 20;
const ROUNDS: usize = 200;

/// A disk that a guest may write, one without a user, and one without a lock.
const LINE: &str = "--blockdev file,node-name=d,filename=disk \
    --blockdev file,node-name=spare,filename=spare \
    --blockdev file,node-name=shared,filename=shared,locking=off \
    --export vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path=e.sock,writable=on";

fn file(name: &str, file: &str, changes: &Value) -> Value {
    let mut options = json!({"driver": "file", "node-name": name, "filename": file});
    for (key, value) in changes.as_object().unwrap() {
        options[key] = value.clone();
    }
    options
}

fn reopen(client: &mut Client, nodes: &[Value]) {
    client.done("blockdev-reopen", json!({"options": nodes}));
}

#[test]
fn reopening_never_releases_the_image_lock() {
    let folder = Folder::new();
    for name in ["disk", "spare", "shared"] {
        folder.image(name, MIB);
    }
    let (program, mut client) = start(&folder, LINE);
    let disk = LockContender::for_image(&folder.join("disk"));
    let ways = [
        json!({"cache": {"direct": false}}),
        json!({"cache": {"direct": true}, "aio": "native"}),
        json!({"aio": "threads"}),
    ];
    for round in 0..ROUNDS {
        reopen(&mut client, &[file("d", "disk", &ways[round % ways.len()])]);
        disk.got_nothing();
    }
    disk.has_tried_again();
    drop(disk);
    // Readers have less of it than writers, and none of that is ever free.
    let spare = LockContender::for_image(&folder.join("spare"));
    for round in 0..ROUNDS {
        let read_only = json!({"read-only": round % 2 == 0});
        reopen(&mut client, &[file("spare", "spare", &read_only)]);
        spare.got_nothing();
    }
    spare.has_tried_again();
    program.stop();
}

#[test]
fn failed_reopening_of_several_disks_never_releases_the_image_lock() {
    let folder = Folder::new();
    for name in ["disk", "spare", "shared"] {
        folder.image(name, MIB);
    }
    let (program, mut client) = start(&folder, LINE);
    // Another process uses this image.
    let other = "--blockdev file,node-name=shared,filename=shared --chardev socket,id=c,path=other,server=on,wait=off --monitor chardev=c";
    let other = folder.start(other, "other");
    let disk = LockContender::for_image(&folder.join("disk"));
    // Its lock has gone to the new opening when the second one cannot have its own.
    let both = json!({"options": [
        file("d", "disk", &json!({"aio": "threads"})),
        file("shared", "shared", &json!({"locking": "on"})),
    ]});
    for _ in 0..ROUNDS {
        let text = client.fails("blockdev-reopen", both.clone());
        assert!(text.contains("shared") && text.contains("lock"), "{text}");
        disk.got_nothing();
    }
    disk.has_tried_again();
    drop(disk);
    other.stop();
    client.done("blockdev-reopen", both);
    program.stop();
}
