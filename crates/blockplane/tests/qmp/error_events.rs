//! Events about errors: a disk that fails, a guest that breaks its queue.

use serde_json::json;

use crate::MONITOR;
use crate::client::Client;
use crate::guest::{Guest, IN, OUT, SLOTS};
use crate::process::{Folder, Process, words};

const EXPORT: &str =
    "--export vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path=s,writable=on,num-queues=2";

/// Writes beyond the first MiB of a file fail (POSIX counts blocks of 512 bytes).
const ONE_MIB_PER_FILE: &str = r#"ulimit -f 2048; exec "$0" "$@""#;

#[test]
fn failed_requests_and_broken_queues_emit_events() {
    for aio in ["native", "io_uring", "threads"] {
        let folder = Folder::new();
        folder.image("disk", 4 << 20);
        let line = format!(
            "{MONITOR} --blockdev file,node-name=d,filename=disk,aio={aio} {EXPORT},request-merging=off"
        );
        let command = folder.command_after(ONE_MIB_PER_FILE, words(&line));
        let mut program = Process::spawn(command);
        program.wait_until_accepting(&folder.join("s"));
        let mut client = Client::connect(&folder.join("qmp"));
        let mut guest = Guest::connect(&folder.join("s"), 2);
        // Far more errors than events that may be sent.
        for round in 0..50 {
            for slot in 0..SLOTS {
                guest.add(0, slot, OUT, 512 + slot as u64, round);
            }
            guest.submit(0);
            for slot in 0..SLOTS {
                guest.watch(0, slot);
                assert_eq!(guest.status(0, slot), 1, "{aio}");
            }
        }
        let data = json!({
            "device": "",
            "node-name": "d",
            "export": "e",
            "operation": "write",
            "action": "report",
            "nospace": false,
            "reason": "File too large",
        });
        assert_eq!(client.wait_for_event("BLOCK_IO_ERROR"), data, "{aio}");
        // What is read and written elsewhere succeeds, and is no news.
        guest.request(1, OUT, 0, 7);
        guest.request(1, IN, 0, 0);
        guest.ask_nonsense(1);
        let broken = client.wait_for_event("BLOCK_EXPORT_QUEUE_BROKEN");
        assert_eq!((&broken["id"], &broken["queue"]), (&json!("e"), &json!(1)));
        assert!(!broken["reason"].as_str().unwrap().is_empty());
        drop(guest);
        let log = program.stop().stderr;
        let failed = log.matches("a request to the disk has failed").count();
        // As seldom as the event.
        assert!((1..100).contains(&failed), "{log}");
    }
}
