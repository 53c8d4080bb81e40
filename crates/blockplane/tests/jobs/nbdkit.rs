//! Jobs whose target is an export of nbdkit, with its filters for slow and failing disks. nbdcopy reads what is there.

use std::fs::{read, write};
use std::os::unix::fs::PermissionsExt;

use serde_json::json;
use test_support::deadline::eventually;

use crate::guest::OUT;
use crate::nbd_target::node;
use crate::process::Folder;
use crate::servers::Server;
use crate::{
    MIB, add_bitmap, assert_same_content, await_progress, begin_backup, bitmap, cancel,
    start_with_guest, succeeded,
};

const BYTES: u64 = 8 * MIB;

/// Guests write smaller blocks than the target takes.
#[test]
fn backup_to_a_server_with_large_blocks_has_whole_ones() {
    let folder = Folder::new();
    folder.image("base.img", BYTES);
    let filters = format!(
        "--filter=blocksize-policy file {} blocksize-minimum=32K blocksize-preferred=32K blocksize-maximum=32M \
         blocksize-error-policy=error",
        folder.join("base.img").display()
    );
    let Some(server) = Server::nbdkit(&folder, &filters) else {
        return;
    };
    let (program, mut client, mut guest) = start_with_guest(&folder, BYTES, "");
    std::fs::copy(folder.join("disk.img"), folder.join("before.img")).unwrap();
    client.done("blockdev-add", node(&server, 0));
    begin_backup(&mut client, "full", json!({"target": "there", "speed": 1}));
    for block in [1000, 1001, 1017, 2047] {
        guest.request(0, OUT, block, 255);
    }
    client.done("block-job-set-speed", json!({"device": "j", "speed": 0}));
    succeeded(&mut client);
    client.done("blockdev-del", json!({"node-name": "there"}));
    program.stop();
    assert_same_content(&folder, "base.img", "before.img");
}

/// nbdkit with this script as its disk.
fn start_script(folder: &Folder, script: &str) -> Option<Server> {
    let script = script.replace("FOLDER", &folder.path().display().to_string());
    let path = folder.join("script");
    write(&path, format!("#!/bin/sh\n{script}")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    Server::nbdkit(folder, &format!("sh {}", path.display()))
}

/// A server that takes writes, and fails when it flushes as long as the file `bad` exists.
const SCRIPT: &str = r#"
case "$1" in
    get_size) echo 8388608;;
    can_write | can_flush | can_multi_conn) ;;
    pread) head -c "$3" /dev/zero;;
    pwrite) cat > /dev/null;;
    flush) if [ -e FOLDER/bad ]; then echo "EIO the cache is lost" >&2; exit 1; fi;;
    *) exit 2;;
esac
"#;

#[test]
fn cancelled_backup_leaves_nothing_clean_that_its_target_may_lose() {
    let folder = Folder::new();
    let Some(server) = start_script(&folder, SCRIPT) else {
        return;
    };
    let (program, mut client, mut guest) = start_with_guest(&folder, BYTES, "");
    client.done("blockdev-add", node(&server, 0));
    add_bitmap(&mut client, "disk", "b");
    for block in (0..2048).step_by(16) {
        guest.request(0, OUT, block, 1);
    }
    let mut dirty_after_cancel = || {
        let arguments =
            json!({"target": "there", "bitmap": "b", "bitmap-mode": "always", "speed": 1});
        begin_backup(&mut client, "bitmap", arguments);
        // The first part is copied before the limit of speed holds.
        await_progress(&mut client, 1);
        cancel(&mut client);
        bitmap(&mut client, "disk", "b")["count"].as_u64()
    };
    write(folder.join("bad"), []).unwrap();
    assert_eq!(dirty_after_cancel(), Some(BYTES));
    std::fs::remove_file(folder.join("bad")).unwrap();
    assert!(dirty_after_cancel() < Some(BYTES));
    program.stop();
}

/// A server that carries out the write which finds the file `hold` when the file `go` exists.
const HELD_SCRIPT: &str = r#"
case "$1" in
    get_size) echo 4096;;
    thread_model) echo parallel;;
    can_write | can_flush) ;;
    pread) dd if=FOLDER/there.img bs=4096 count=1 2> /dev/null;;
    pwrite)
        cat > FOLDER/data.$$
        if [ -e FOLDER/hold ]; then
            mv FOLDER/hold FOLDER/has-write
            while ! [ -e FOLDER/go ]; do sleep 0.05; done
            mv FOLDER/data.$$ FOLDER/there.img
            touch FOLDER/has-written
        else
            touch FOLDER/has-next-write
            mv FOLDER/data.$$ FOLDER/there.img
        fi;;
    flush) ;;
    *) exit 2;;
esac
"#;

/// The first job is cancelled, and its write is carried out while the next job begins.
#[test]
fn next_job_writes_after_a_write_of_a_cancelled_one() {
    let folder = Folder::new();
    folder.image("there.img", 4096);
    let Some(server) = start_script(&folder, HELD_SCRIPT) else {
        return;
    };
    let (program, mut client, mut guest) = start_with_guest(&folder, 4096, "");
    guest.request(0, OUT, 0, 1);
    write(folder.join("hold"), []).unwrap();
    let mut node = node(&server, 0);
    node["stop-timeout"] = json!(0);
    client.done("blockdev-add", node);
    begin_backup(&mut client, "full", json!({"target": "there"}));
    eventually("the server has the write", || folder.has("has-write"));
    cancel(&mut client);
    guest.request(0, OUT, 0, 2);
    begin_backup(&mut client, "full", json!({"target": "there"}));
    let has_next_write = || folder.has("has-next-write");
    eventually("the job waits, or does not", || {
        has_next_write() || program.stderr().contains("wait until its server has ended")
    });
    assert!(!has_next_write());
    write(folder.join("go"), []).unwrap();
    succeeded(&mut client);
    eventually("the old write is carried out", || folder.has("has-written"));
    program.stop();
    assert_eq!(read(folder.join("there.img")).unwrap(), [2; 4096]);
}
