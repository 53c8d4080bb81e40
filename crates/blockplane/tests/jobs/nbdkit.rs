//! Jobs whose target is an export of nbdkit, with its filters for slow and failing disks. nbdcopy reads what is there.

use std::os::unix::fs::PermissionsExt;

use serde_json::json;
use test_support::deadline::eventually;
use test_support::report;
use test_support::verifying::blocks::BLOCK;
use test_support::verifying::device::Device;

use crate::client::Client;
use crate::ends::assert_holds_all_writes;
use crate::guest::{Guest, OUT};
use crate::load::{Load, QUEUES, assert_is_of_one_moment};
use crate::mirror::mirror;
use crate::nbd_target::node;
use crate::process::{Folder, Process};
use crate::servers::Server;
use crate::{
    MIB, assert_same_content, await_progress, backup, bitmap, completed, start, start_with_disks,
};

const BYTES: u64 = 8 * MIB;

/// Copies the content of the export to a file; false, with a report, if nbdcopy is not installed.
fn read_export(folder: &Folder, server: &Server, file: &str) -> bool {
    if !report::installed("nbdcopy") {
        return false;
    }
    let uri = format!("nbd+unix:///?socket={}", server.socket().display());
    let mut command = std::process::Command::new("nbdcopy");
    command.arg(uri).arg(folder.join(file));
    let output = Process::spawn(command).ended();
    assert!(output.code == Some(0), "{output:?}");
    true
}

/// A disk that a guest writes without a pause. One iothread: not all exports of nbdkit allow several connections.
fn line() -> String {
    format!(
        "--blockdev file,node-name=disk,filename=disk.img,cache.direct=off \
         --export vhost-user-blk,id=e,node-name=disk,writable=on,num-queues={QUEUES},addr.type=unix,addr.path=e.sock"
    )
}

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
    let (program, mut client) = start_with_disks(
        &folder,
        BYTES,
        "--export vhost-user-blk,id=e,node-name=disk,writable=on,addr.type=unix,addr.path=e.sock",
    );
    std::fs::copy(folder.join("disk.img"), folder.join("before.img")).unwrap();
    let mut guest = Guest::connect(&folder.join("e.sock"), 1);
    client.done("blockdev-add", node(&server, 0));
    client.done(
        "blockdev-backup",
        backup("full", json!({"target": "there", "speed": 1})),
    );
    for block in [1000, 1001, 1017, 2047] {
        guest.request(0, OUT, block, 255);
    }
    client.done("block-job-set-speed", json!({"device": "j", "speed": 0}));
    let data = completed(&mut client);
    assert!(data.get("error").is_none(), "{data}");
    client.done("blockdev-del", json!({"node-name": "there"}));
    program.stop();
    assert_same_content(&folder, "base.img", "before.img");
}

#[test]
fn backup_to_a_slow_server_is_of_one_moment() {
    let folder = Folder::new();
    folder.image("disk.img", BYTES);
    folder.image("base.img", BYTES);
    let filters = format!(
        "--filter=delay --filter=cow file {} wdelay=3ms delay-zero=1ms",
        folder.join("base.img").display()
    );
    let Some(server) = Server::nbdkit(&folder, &filters) else {
        return;
    };
    let (program, mut client) = start(&folder, &line());
    let load = Load::begin(folder.join("e.sock"), Device::Blk, BYTES / BLOCK as u64);
    load.goes_on(3000);
    client.done("blockdev-add", node(&server, 0));
    let after = load.now();
    client.done(
        "blockdev-backup",
        backup("full", json!({"target": "there"})),
    );
    let before = load.now();
    let data = completed(&mut client);
    assert!(data.get("error").is_none(), "{data}");
    client.done("blockdev-del", json!({"node-name": "there"}));
    let writes = load.end();
    program.stop();
    if read_export(&folder, &server, "read.img") {
        let content = std::fs::read(folder.join("read.img")).unwrap();
        assert_is_of_one_moment(&content, &writes, after, before);
    }
}

#[test]
fn busy_guest_goes_over_to_a_server_with_a_limited_rate() {
    let folder = Folder::new();
    folder.image("disk.img", BYTES);
    let Some(server) = Server::nbdkit(&folder, "--filter=rate memory 8M rate=200M") else {
        return;
    };
    let (program, mut client) = start(&folder, &line());
    let load = Load::begin(folder.join("e.sock"), Device::Blk, BYTES / BLOCK as u64);
    client.done("blockdev-add", node(&server, 0));
    let arguments = json!({"target": "there", "copy-mode": "write-blocking"});
    client.done("blockdev-mirror", mirror(arguments));
    client.wait_for_event("BLOCK_JOB_READY");
    load.goes_on(200);
    client.done("job-complete", json!({"id": "j"}));
    let data = completed(&mut client);
    assert!(data.get("error").is_none(), "{data}");
    load.goes_on(200);
    let writes = load.end();
    program.stop();
    if read_export(&folder, &server, "read.img") {
        assert_holds_all_writes(&folder, "read.img", &writes);
    }
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

/// nbdkit with this script as its disk.
fn start_script(folder: &Folder, script: &str) -> Option<Server> {
    let script = script.replace("FOLDER/", &folder.join("").display().to_string());
    std::fs::write(folder.join("script"), format!("#!/bin/sh\n{script}")).unwrap();
    let path = folder.join("script").display().to_string();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    Server::nbdkit(folder, &format!("sh {path}"))
}

#[test]
fn cancelled_backup_leaves_nothing_clean_that_its_target_may_lose() {
    let folder = Folder::new();
    let Some(server) = start_script(&folder, SCRIPT) else {
        return;
    };
    let export =
        "--export vhost-user-blk,id=e,node-name=disk,writable=on,addr.type=unix,addr.path=e.sock";
    let (program, mut client) = start_with_disks(&folder, BYTES, export);
    client.done("blockdev-add", node(&server, 0));
    client.done(
        "block-dirty-bitmap-add",
        json!({"node": "disk", "name": "b"}),
    );
    let mut guest = Guest::connect(&folder.join("e.sock"), 1);
    for block in (0..2048).step_by(16) {
        guest.request(0, OUT, block, 1);
    }
    let dirty = |client: &mut Client| bitmap(client, "disk", "b")["count"].as_u64();
    let mut after_cancel = || {
        let arguments =
            json!({"target": "there", "bitmap": "b", "bitmap-mode": "always", "speed": 1});
        client.done("blockdev-backup", backup("bitmap", arguments));
        // The first part is copied before the limit of speed holds.
        await_progress(&mut client);
        client.done("job-cancel", json!({"id": "j"}));
        client.wait_for_event("BLOCK_JOB_CANCELLED");
        dirty(&mut client)
    };
    std::fs::write(folder.join("bad"), []).unwrap();
    assert_eq!(after_cancel(), Some(BYTES));
    std::fs::remove_file(folder.join("bad")).unwrap();
    assert!(after_cancel() < Some(BYTES));
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
    let export =
        "--export vhost-user-blk,id=e,node-name=disk,writable=on,addr.type=unix,addr.path=e.sock";
    let (program, mut client) = start_with_disks(&folder, 4096, export);
    let mut guest = Guest::connect(&folder.join("e.sock"), 1);
    guest.request(0, OUT, 0, 1);
    std::fs::write(folder.join("hold"), []).unwrap();
    let mut node = node(&server, 0);
    node["stop-timeout"] = json!(0);
    client.done("blockdev-add", node);
    let arguments = || backup("full", json!({"target": "there"}));
    client.done("blockdev-backup", arguments());
    eventually("the server has the write", || {
        folder.join("has-write").exists()
    });
    client.done("job-cancel", json!({"id": "j"}));
    client.wait_for_event("BLOCK_JOB_CANCELLED");
    guest.request(0, OUT, 0, 2);
    client.done("blockdev-backup", arguments());
    let has_next_write = || folder.join("has-next-write").exists();
    eventually("the job waits, or does not", || {
        has_next_write() || program.stderr().contains("wait until its server has ended")
    });
    assert!(!has_next_write());
    std::fs::write(folder.join("go"), []).unwrap();
    let data = completed(&mut client);
    assert!(data.get("error").is_none(), "{data}");
    eventually("the old write is carried out", || {
        folder.join("has-written").exists()
    });
    program.stop();
    let content = std::fs::read(folder.join("there.img")).unwrap();
    assert!(content.iter().all(|byte| *byte == 2));
}

#[test]
fn job_waits_until_a_server_that_is_full_has_space() {
    for command in ["blockdev-backup", "blockdev-mirror"] {
        let folder = Folder::new();
        std::fs::write(folder.join("full"), []).unwrap();
        let filters = format!(
            "--filter=error memory 4M error=ENOSPC error-pwrite-rate=100% error-file={}",
            folder.join("full").display()
        );
        let Some(server) = Server::nbdkit(&folder, &filters) else {
            return;
        };
        let (program, mut client) = start_with_disks(&folder, 4 * MIB, "");
        client.done("blockdev-add", node(&server, 0));
        let arguments = backup(
            "full",
            json!({"target": "there", "on-target-error": "enospc"}),
        );
        client.done(command, arguments);
        let error = client.wait_for_event("BLOCK_JOB_ERROR");
        assert_eq!(error["action"], "stop", "{command}: {error}");
        let job = client.done("query-block-jobs", json!({}))[0].take();
        assert_eq!(job["io-status"], "nospace", "{command}");
        std::fs::remove_file(folder.join("full")).unwrap();
        client.done("job-resume", json!({"id": "j"}));
        if command == "blockdev-mirror" {
            client.wait_for_event("BLOCK_JOB_READY");
            client.done("block-job-cancel", json!({"device": "j"}));
        }
        let data = completed(&mut client);
        assert!(data.get("error").is_none(), "{command}: {data}");
        program.stop();
        if read_export(&folder, &server, "read.img") {
            assert_same_content(&folder, "disk.img", "read.img");
        }
    }
}
