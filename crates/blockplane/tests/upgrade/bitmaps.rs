//! Dirty bitmaps are handed over with all bits, and record in the new process from its first request on.

use serde_json::{Value, json};

use crate::blocks::BLOCK;
use crate::client::Client;
use crate::daemon::Daemon;
use crate::guest::{Guest, OUT, SLOTS};
use crate::process::Folder;

const LINE: &str = "--blockdev file,node-name=d,filename=disk.img,cache.direct=off,bitmap-file=bits \
    --blockdev raw,node-name=w,file=d,offset=8192 \
    --export vhost-user-blk,id=e,node-name=w,addr.type=unix,addr.path=s,writable=on";

/// The bitmaps of the file's node.
fn bitmaps(client: &mut Client) -> Vec<Value> {
    let nodes = client.done("query-named-block-nodes", json!({}));
    let mut nodes = nodes.as_array().unwrap().iter();
    let node = nodes.find(|node| node["node-name"] == "d").unwrap();
    node["dirty-bitmaps"].as_array().unwrap().clone()
}

#[test]
fn dirty_bitmaps_are_handed_over_and_miss_no_write() {
    let folder = Folder::new();
    folder.image("disk.img", 1 << 20);
    let mut daemon = Daemon::start_in(folder, LINE, &[]);
    let mut client = daemon.client();
    for (name, granularity, disabled) in [("a", 512, false), ("b", 4096, false), ("c", 512, true)] {
        let arguments = json!({"node": "d", "name": name, "granularity": granularity,
            "disabled": disabled, "persistent": name == "a"});
        client.done("block-dirty-bitmap-add", arguments);
    }
    let mut guest = Guest::connect(&daemon.folder.join("s"), 1);
    let mut written = 0;
    for _ in 0..3 {
        // The new process gets those that the old one has not taken.
        for slot in 0..SLOTS {
            guest.add(0, slot, OUT, written, 1);
            written += 1;
        }
        guest.submit(0);
        drop(client);
        daemon.upgrade();
        client = daemon.client();
        for slot in 0..SLOTS {
            guest.watch(0, slot);
            assert_eq!(guest.status(0, slot), 0);
        }
        let found = bitmaps(&mut client);
        assert_eq!(found[0]["recording"], false);
        assert_eq!(found[0]["count"], 0);
        for bitmap in &found[1..] {
            assert_eq!(bitmap["count"], written * BLOCK as u64, "{found:?}");
        }
        assert!(found[1..].iter().all(|bitmap| bitmap["recording"] == true));
    }
    client.done(
        "block-dirty-bitmap-remove",
        json!({"node": "d", "name": "b"}),
    );
    daemon.stop();
}
