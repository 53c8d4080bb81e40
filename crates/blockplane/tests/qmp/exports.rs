//! Exports are added and removed, with and without front-ends.

use std::os::unix::net::UnixStream;

use serde_json::{Value, json};
use test_support::deadline::eventually;

use crate::client::Client;
use crate::process::Folder;
use crate::request_driver::{IN, RequestDriver};
use crate::start_with_disk;

const DISKS: &str = "--blockdev null-co,node-name=d,size=1M,read-zeroes=on \
    --blockdev null-co,node-name=ro,read-only=on";

const ADD: &str =
    "block-export-add type=vhost-user-blk id=e node-name=d addr.type=unix addr.path=e.sock";
const REMOVE: &str = "block-export-del id=e";
const REMOVE_HARD: &str = "block-export-del id=e mode=hard";

fn exports(client: &mut Client) -> Value {
    client.execute("query-block-exports")
}

#[test]
fn exports_are_added_served_and_removed_and_failed_ones_leave_nothing() {
    let (folder, program, mut client) = start_with_disk(DISKS);
    client.execute(ADD);
    let shown = json!([{"node-name": "d", "shutting-down": false, "type": "vhost-user-blk",
        "id": "e", "socket": "e.sock", "io-status": "ok", "waiting-requests": 0, "late-requests": 0}]);
    assert_eq!(exports(&mut client), shown);
    // Those that fail leave nothing.
    let add = "block-export-add id=f type=vhost-user-blk addr.type=unix addr.path=f.sock";
    client.assert_errors(&format!(
        "{add} node-name=d iothread=nope => iothread \"nope\" not found
         {add} node-name=d type=nbd => Parameter 'addr' is unexpected
         {add} node-name=d addr={{\"type\":\"unix\"}} => Parameter 'addr.path' is missing
         {add} node-name=d addr.path=e.sock => already listens
         {add} node-name=d num-queues=0 => num-queues value must be in range [1, 256]
         {add} node-name=d x=0 => Parameter 'x' is unexpected
         {add} node-name=ro writable=true => read-only
         {add} node-name=d rerror=enospc => rerror
         {add} node-name=d werror=nospace => werror
         {add} node-name=d type=vhost-user-scsi rerror=stop => rerror
         {add} node-name=d type=vhost-user-scsi werror=stop => werror
         {add} node-name=d type=vfio-user-lsi53c895a werror=stop => werror
         block-export-add type=nbd id=f node-name=d => NBD server not running
         block-export-del id=f => Export 'f' is not found
         blockdev-del node-name=d => Node d is in use by export 'e'"
    ));
    assert_eq!(exports(&mut client), shown);
    let mut guest = RequestDriver::connect(&folder.join("e.sock"), 1);
    client.event("BLOCK_EXPORT_CONNECTED", "e");
    guest.request(0, IN, 3, 0);
    drop(guest);
    client.event("BLOCK_EXPORT_DISCONNECTED", "e");

    client.execute(REMOVE);
    client.event("BLOCK_EXPORT_DELETED", "e");
    assert_eq!(exports(&mut client), json!([]));
    assert!(!folder.has("e.sock"));

    // The name is free again. A connected front-end keeps its export, unless that is removed all the same.
    client.execute(ADD);
    let mut guest = RequestDriver::connect(&folder.join("e.sock"), 1);
    for refused in [REMOVE, "block-export-del id=e mode=safe"] {
        let used = client.error_of(refused);
        assert!(used.starts_with("export 'e' still in use"), "{used}");
    }
    guest.request(0, IN, 3, 0);
    client.execute(REMOVE_HARD);
    client.event("BLOCK_EXPORT_DELETED", "e");
    assert!(UnixStream::connect(folder.join("e.sock")).is_err());
    client.execute("blockdev-del node-name=d");
    program.stop();
}

/// Removes an export while a request of its guest is in flight.
fn drain(folder: &Folder, client: &mut Client) -> RequestDriver {
    client.execute(ADD);
    let mut guest = RequestDriver::connect(&folder.join("e.sock"), 1);
    guest.ask(0, 0, IN, 0, 0);
    // A request that is only available may stay in the ring.
    eventually("the request is admitted", || {
        client.block_stats("e")["queues"][0]["depth"] == 1
    });
    client.execute(REMOVE_HARD);
    guest
}

#[test]
fn draining_export_is_shown_blocks_no_commands_and_is_waited_for_at_the_end() {
    let slow = "--blockdev null-co,node-name=d,size=1M,latency-ns=3000000000";
    let (folder, program, mut client) = start_with_disk(slow);
    let mut guest = drain(&folder, &mut client);
    assert_eq!(client.export("e")["shutting-down"], true);
    client.assert_errors(&format!(
        "{REMOVE_HARD} => Export 'e' is already shutting down
         blockdev-del node-name=d => in use
         {ADD} => already in use"
    ));
    client.event("BLOCK_EXPORT_DELETED", "e");
    assert!(guest.is_answered(0, 0), "it was in flight");
    let mut guest = drain(&folder, &mut client);
    client.execute("quit");
    program.ended().assert_success();
    assert!(guest.is_answered(0, 0), "it was in flight");
}

/// Neither used nor closed: the number of a closed one would go to the next file, and a guest's writes with it.
#[test]
fn descriptors_of_the_daemon_itself_are_refused_and_stay_open() {
    let (_folder, program, mut client) =
        start_with_disk("--blockdev file,node-name=d,filename=disk");
    let before = program.open_files();
    for number in 3..before.len() + 3 {
        let error = client.error_of(&format!(
            "block-export-add type=vhost-user-blk id=e node-name=d addr.type=fd addr.str=\"{number}\""
        ));
        // (The test itself may have passed on some of its parent's.)
        let is_refused = ["was not passed to the daemon", "is not a listening"]
            .iter()
            .any(|text| error.contains(text));
        assert!(is_refused, "{error}");
    }
    assert_eq!(program.open_files(), before);
    program.stop();
}
