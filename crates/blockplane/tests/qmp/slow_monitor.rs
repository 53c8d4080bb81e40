//! A monitor's client that does not read for a while, and the events that it gets then.

use serde_json::json;
use test_support::sockets::connect;

use crate::client::Client;
use crate::process::Folder;
use crate::start;

/// Their events are more than a socket holds, and far less than the 4 MiB that are kept for a client.
const CONNECTIONS: usize = 1000;

#[test]
fn slow_client_receives_every_event_in_order() {
    let folder = Folder::new();
    let line = "--blockdev null-co,node-name=d \
        --export vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path=e.sock";
    let (mut program, mut witness) = start(&folder, line);
    let mut slow = Client::connect(&folder.join("qmp"));
    let socket = folder.join("e.sock");
    // It is listened on when a first one gets through.
    program.wait_until_accepting(&socket);
    for connection in 0..CONNECTIONS {
        if connection > 0 {
            drop(connect(&socket));
        }
        witness.event("BLOCK_EXPORT_CONNECTED", "e");
        witness.event("BLOCK_EXPORT_DISCONNECTED", "e");
    }
    // Its answer comes behind all of them: an event that is missing is found at once.
    slow.done("query-version", json!({}));
    let events = slow.take_events();
    let expected = ["BLOCK_EXPORT_CONNECTED", "BLOCK_EXPORT_DISCONNECTED"];
    for (at, event) in events.iter().enumerate() {
        assert_eq!(event["event"], expected[at % 2], "event {at}: {event}");
        assert_eq!(event["data"], json!({"id": "e"}));
    }
    assert_eq!(events.len(), 2 * CONNECTIONS, "events are missing");
    program.stop();
}
