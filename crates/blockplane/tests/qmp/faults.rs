//! Fault injection: its effects on a guest, and that no injected fault lasts for ever.

use serde_json::json;

use crate::client::Client;
use crate::process::{Folder, Process};
use crate::request_driver::{BLOCK, FLUSH, IN, OUT, RequestDriver};
use crate::{MIB, start_with_disk};

fn started() -> (Folder, Process, Client, RequestDriver) {
    let (folder, program, client) = start_with_disk(
        "--blockdev file,node-name=d,filename=disk \
         --blockdev blkdebug,node-name=b,image=d,inject-error.0.iotype=write,inject-error.0.errno=28,inject-error.0.sector=8 \
         --export vhost-user-blk,id=e,node-name=b,addr.type=unix,addr.path=e.sock,writable=on,num-queues=2",
    );
    let guest = RequestDriver::connect(&folder.join("e.sock"), 2);
    (folder, program, client, guest)
}

#[test]
fn injected_faults_apply_to_requests_of_the_guest() {
    let (_folder, program, mut client, mut guest) = started();
    guest.request(0, OUT, 0, 1);
    assert_eq!(guest.status_of(0, OUT, 1, 1), 1);
    let event = client.wait_for_event("BLOCK_IO_ERROR");
    let event = ["node-name", "operation", "nospace", "reason"].map(|key| event[key].clone());
    let expected = json!(["b", "write", true, "No space left on device"]);
    assert_eq!(json!(event), expected);
    assert_eq!(guest.read(0, 1), [0; BLOCK], "nothing was written");

    client.execute(
        "x-blkdebug-set node-name=b inject-error.0.iotype=flush inject-error.0.once=true inject-error.1.iotype=read",
    );
    guest.request(0, OUT, 1, 2);
    assert_eq!(guest.status_of(0, FLUSH, 0, 0), 1);
    guest.request(0, FLUSH, 0, 0);
    assert_eq!(guest.status_of(0, IN, 1, 9), 1);

    // Another opening of what is below keeps the rules; the node's own has those that it is given.
    client.reopen("driver=file node-name=d filename=disk aio=threads");
    assert_eq!(guest.status_of(0, IN, 1, 0), 1);
    client.reopen(
        "driver=blkdebug node-name=b image=d \
         inject-error.0.action=torn inject-error.0.iotype=write inject-error.0.bytes=1024",
    );
    guest.request(0, OUT, 1, 3);
    let read = guest.read(0, 1);
    assert!(read[..1024] == [3; 1024] && read[1024..].iter().all(|byte| *byte == 2));

    // Resizing what is below is resizing it.
    client.execute("block_resize node-name=d size=2097152");
    assert_eq!(guest.capacity(), 2 * MIB);
    guest.request(0, IN, MIB / BLOCK as u64, 0);

    client.assert_errors(
        "x-blkdebug-set node-name=nope => Failed to find node
         x-blkdebug-set node-name=d => its driver is not 'blkdebug'
         x-blkdebug-set node-name=b inject-error.0.errno=0 => errno
         x-blkdebug-set node-name=b seed=1 => 'inject-error' is missing",
    );
    let children = json!([{"node-name": "d", "child": "image"}]);
    assert_eq!(client.node("b")["children"], children);
    program.stop();
}

#[test]
fn hanging_request_does_not_block_others_or_the_shutdown() {
    let (folder, mut program, mut client, mut guest) = started();
    client.execute(
        "x-blkdebug-set node-name=b \
         inject-error.0.iotype=read inject-error.0.sector=8 inject-error.0.action=hang",
    );
    guest.ask(0, 0, IN, 1, 0);
    // Its own queue goes on as well.
    for round in 0..10 {
        guest.ask(0, 1, OUT, 2, round);
        guest.watch(0, 1);
        assert_eq!(guest.read(1, 2), [round; BLOCK]);
    }
    assert!(!guest.is_answered(0, 0));
    // It is released, also while a command waits for it.
    client.execute("x-blkdebug-set node-name=b");
    guest.wait(0, 0);
    // A queue that stops, a guest that goes, and the daemon's end wait for no disk that hangs.
    guest.ask(0, 0, IN, 1, 0);
    guest.request(1, IN, 0, 0);
    assert_eq!(guest.stop(0), 12);
    assert!(guest.is_answered(0, 0));
    guest.ask(1, 0, IN, 1, 0);
    drop(guest);
    let socket = folder.join("e.sock");
    let mut guest = RequestDriver::connect(&socket, 2);
    guest.ask(0, 0, IN, 1, 0);
    guest.request(1, IN, 0, 0);
    program.wait_until_accepting(&socket);
    program.stop();
}
