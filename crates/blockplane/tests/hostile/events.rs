//! Events of a front-end that breaks its queue again and again, at the end of its export.

use std::time::Duration;

use serde_json::{Value, json};
use test_support::process::{Folder, Process, words};
use test_support::qmp::Client;

use crate::front_end::*;
use crate::row::Answer;

const BROKEN: &str = "BLOCK_EXPORT_QUEUE_BROKEN";

/// Removes the export, and returns its events up to its end.
fn events_until_removal(client: &mut Client) -> Vec<(String, Value)> {
    client.done("block-export-del", json!({"id": "e", "mode": "hard"}));
    let names = [
        BROKEN,
        "BLOCK_EXPORT_CONNECTED",
        "BLOCK_EXPORT_DISCONNECTED",
        "BLOCK_EXPORT_DELETED",
    ];
    let mut events = Vec::new();
    loop {
        let event = client.wait_for_event_of(&names);
        let name = event["event"].as_str().unwrap().to_owned();
        events.push((name, event["data"].clone()));
        if event["event"] == "BLOCK_EXPORT_DELETED" {
            return events;
        }
    }
}

/// Also those that are held back, and those that the export's iothread has just reported.
#[test]
fn no_event_of_a_broken_queue_comes_after_its_export_is_removed() {
    const TIMES: usize = 30;
    let folder = Folder::new();
    let line = "--blockdev null-co,node-name=d,size=1M --chardev socket,id=c,path=qmp,server=on,wait=off \
                --monitor chardev=c";
    let mut program = Process::spawn(folder.command(words(line)));
    let mut client = Client::of(program.connection(&folder.join("qmp")));
    let export = json!({
        "type": "vhost-user-blk", "id": "e", "node-name": "d", "num-queues": 2,
        "addr": {"type": "unix", "path": "s"},
    });
    client.done("block-export-add", export.clone());
    let mut guest = HostileFrontEnd::connect(&folder.join("s"));
    guest.ready();
    for _ in 0..TIMES {
        // No such descriptor.
        guest.make_available(&[ENTRIES]);
        assert_eq!(guest.err_of(0), Answer::Broken);
        guest.wire.stop(0).unwrap();
        guest.set_up(0, ENTRIES);
        guest.start(0);
    }
    guest.make_available(&[ENTRIES]);
    assert_eq!(guest.err_of(0), Answer::Broken);
    let lines = program.stderr().lines().count();
    assert!((10..TIMES).contains(&lines), "{lines} lines");
    let events = events_until_removal(&mut client);
    let broken = events.iter().filter(|(name, _)| name == BROKEN).count();
    assert!((10..TIMES).contains(&broken), "{events:?}");

    // Another export of the id, whose own events come without those of the first one.
    drop(guest);
    client.done("block-export-add", export);
    let mut guest = HostileFrontEnd::connect(&folder.join("s"));
    guest.ready();
    guest.queues[1].ring.split().make_available(ENTRIES);
    guest.queues[1].kick();
    assert_eq!(guest.err_of(1), Answer::Broken);
    // What was held back of the first export would be sent by now.
    std::thread::sleep(Duration::from_millis(1500));
    let events = events_until_removal(&mut client);
    let queues: Vec<_> = events
        .iter()
        .filter(|(name, _)| name == BROKEN)
        .map(|(_, data)| data["queue"].as_u64())
        .collect();
    assert_eq!(queues, [Some(1)], "{events:?}");
    program.stop();
}
