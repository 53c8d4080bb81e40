//! A daemon that is killed while a backup runs, and the backups afterwards.

use serde_json::json;
use test_support::verifying::device::Device;

use crate::bitmap;
use crate::load::{Load, assert_is_of_one_moment};
use crate::moment::{BLOCKS, BYTES, INCREMENTS, back_up, begin, copy_base, line};
use crate::process::Folder;
use crate::upgraded_daemon::Daemon;

/// The backup that the kill interrupts.
const INTERRUPTED: usize = 2;

/// Full and incremental backups across a live upgrade and a kill, in one run of a guest that writes without a pause.
#[test]
fn after_a_kill_the_bitmap_is_inconsistent_and_backups_begin_with_a_full_one() {
    let folder = Folder::new();
    folder.image("disk.img", BYTES);
    for index in 0..=INCREMENTS {
        folder.image(&format!("t{index}.img"), BYTES);
    }
    let line = line("vhost-user-blk", ",cache.direct=off");
    let mut daemon = Daemon::start_in(folder, &line, &[]);
    let socket = daemon.folder.join("e.sock");
    let load = Load::begin_reconnecting(socket, Device::Blk, BLOCKS);
    load.goes_on(5000);
    let mut moments = Vec::new();
    for index in 0..=INCREMENTS {
        if index == INTERRUPTED {
            let slow = json!({"job-id": "j", "device": "disk", "target": "t2", "sync": "incremental",
                "speed": 1 << 16});
            begin(&mut daemon.client(), "incremental", slow);
            load.goes_on(300);
            daemon.kill_and_restart(&line);
            load.goes_on(300);
            let mut client = daemon.client();
            assert_eq!(bitmap(&mut client, "disk", "b")["inconsistent"], true);
            let incremental = json!({"job-id": "j", "device": "disk", "target": "t2",
                "sync": "incremental", "bitmap": "b"});
            let refused = client.fails("blockdev-backup", incremental);
            assert!(refused.contains("inconsistent"), "{refused}");
            client.done(
                "block-dirty-bitmap-remove",
                json!({"node": "disk", "name": "b"}),
            );
            continue;
        }
        let is_full = index == 0 || index == INTERRUPTED + 1;
        let sync = if is_full { "full" } else { "incremental" };
        if !is_full {
            copy_base(&daemon.folder, index - 1, index);
        }
        moments.push((index, back_up(&mut daemon.client(), &load, index, sync)));
        load.goes_on(300);
        if index == 0 || index == INTERRUPTED + 1 {
            daemon.upgrade();
            load.goes_on(300);
        }
    }
    let writes = load.end();
    for (index, (after, before)) in moments {
        let content = std::fs::read(daemon.folder.join(&format!("t{index}.img"))).unwrap();
        assert_is_of_one_moment(&content, &writes, after, before);
    }
    daemon.stop();
}
