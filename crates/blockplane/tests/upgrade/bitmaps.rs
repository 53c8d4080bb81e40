//! Dirty bitmaps are handed over with all bits, and record in the new process from its first request on.

use test_support::upgraded_daemon::Daemon;

use crate::blocks::BLOCK;
use crate::process::Folder;
use crate::request_driver::{OUT, RequestDriver, SLOTS};

const LINE: &str = "--blockdev file,node-name=d,filename=disk.img,cache.direct=off,bitmap-file=bits \
    --blockdev raw,node-name=w,file=d,offset=8192 \
    --export vhost-user-blk,id=e,node-name=w,addr.type=unix,addr.path=s,writable=on";

#[test]
fn dirty_bitmaps_are_handed_over_and_miss_no_write() {
    let folder = Folder::new();
    folder.image("disk.img", 1 << 20);
    let mut daemon = Daemon::start_in(folder, LINE, &[]);
    let mut client = daemon.client();
    client.execute(
        "block-dirty-bitmap-add node=d name=a granularity=512 persistent=true
        block-dirty-bitmap-add node=d name=b granularity=4096
        block-dirty-bitmap-add node=d name=c granularity=512 disabled=true",
    );
    let mut guest = RequestDriver::connect(&daemon.folder.join("s"), 1);
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
        let found = client.node("d")["dirty-bitmaps"].take();
        let found = found.as_array().unwrap();
        assert_eq!(found[0]["recording"], false);
        assert_eq!(found[0]["count"], 0);
        for bitmap in &found[1..] {
            assert_eq!(bitmap["count"], written * BLOCK as u64, "{found:?}");
        }
        assert!(found[1..].iter().all(|bitmap| bitmap["recording"] == true));
    }
    client.execute("block-dirty-bitmap-remove node=d name=b");
    daemon.stop();
}
