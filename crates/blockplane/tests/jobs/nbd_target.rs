//! Jobs whose target is an export of an NBD server: one with large blocks, one that fails, and one that was started again: it may have
//! lost what it had answered and not flushed.

use std::fs::{read, write};
use std::os::unix::fs::PermissionsExt;

use rustix::process::Signal;
use serde_json::{Value, json};
use test_support::deadline::eventually;
use test_support::nbd_server::NbdServer;

use crate::client::Client;
use crate::process::{Folder, Process};
use crate::request_driver::OUT;
use crate::{
    MIB, add_bitmap, assert_same_content, await_progress, begin_backup, begin_mirror, bitmap,
    cancel, copy, failed, start, start_with_disks, start_with_guest, succeeded,
};

const BYTES: u64 = 8 * MIB;

/// qemu-nbd with an image `there.img` of so many bytes; `None`, with a report, if it is not installed.
pub fn start_qemu_nbd(folder: &Folder, bytes: u64) -> Option<NbdServer> {
    folder.image("there.img", bytes);
    NbdServer::qemu_nbd(folder, "", &folder.join("there.img"))
}

/// Another daemon with such an image, as the export `there` on the socket `nbd`, and its URI.
pub fn start_daemon(folder: &Folder, bytes: u64) -> (Process, String) {
    folder.image("there.img", bytes);
    let line = "--blockdev file,node-name=there,filename=there.img,cache.direct=off \
         --nbd-server addr.type=unix,addr.path=nbd --export nbd,id=x,node-name=there,writable=on";
    // Its monitor answers when the export is there.
    let (daemon, _) = start(folder, line);
    let uri = format!("nbd+unix:///there?socket={}", folder.join("nbd").display());
    (daemon, uri)
}

/// Arguments of `blockdev-add` for the node `there` on the server's export.
fn node(server: &NbdServer, reconnect_delay: u32) -> Value {
    let address = json!({"type": "unix", "path": server.socket()});
    json!({"driver": "nbd", "node-name": "there", "server": address, "reconnect-delay": reconnect_delay})
}

/// Kills a server and starts it again.
fn restart(server: &mut NbdServer) {
    server.kill();
    server.start();
}

/// What the server had answered and not flushed may be lost, whatever it says to a later flush.
#[test]
fn job_fails_if_its_server_was_started_again_meanwhile() {
    let folder = Folder::new();
    let Some(mut server) = start_qemu_nbd(&folder, BYTES) else {
        return;
    };
    let (program, mut client) = start_with_disks(&folder, BYTES, "");
    for command in ["blockdev-backup", "blockdev-mirror"] {
        client.done("blockdev-add", node(&server, 60));
        let arguments = json!({"target": "there", "speed": 1, "on-target-error": "stop"});
        client.done(command, copy("full", arguments));
        await_progress(&mut client, 1);
        restart(&mut server);
        client.execute("block-job-set-speed device=j speed=0");
        let error = failed(&mut client);
        assert!(error.contains("may have lost"), "{command}: {error}");
        client.execute("blockdev-del node-name=there");
    }
    for (command, key) in [("job-complete", "id"), ("block-job-cancel", "device")] {
        client.done("blockdev-add", node(&server, 60));
        begin_mirror(&mut client, json!({"target": "there"}));
        client.wait_for_event("BLOCK_JOB_READY");
        restart(&mut server);
        client.done(command, json!({key: "j"}));
        let error = failed(&mut client);
        assert!(error.contains("may have lost"), "{command}: {error}");
        client.execute("blockdev-del node-name=there");
    }
    program.stop();
}

/// The disk of which all is dirty in the bitmap `b`, and a node on the server's export.
fn start_with_dirty_disk(folder: &Folder, node: Value) -> (Process, Client) {
    let (program, mut client, mut guest) = start_with_guest(folder, BYTES, "");
    client.done("blockdev-add", node);
    add_bitmap(&mut client, "disk", "b");
    for block in (0..2048).step_by(16) {
        guest.request(0, OUT, block, 1);
    }
    (program, client)
}

/// Whether all is dirty after a backup that was cancelled when it had copied something, and after something else.
fn is_all_dirty_after_cancel(client: &mut Client, happens: impl FnOnce()) -> bool {
    let arguments = json!({"target": "there", "bitmap": "b", "bitmap-mode": "always", "speed": 1});
    begin_backup(client, "bitmap", arguments);
    // The first part is copied before the limit of speed holds.
    await_progress(client, 1);
    happens();
    cancel(client);
    bitmap(client, "disk", "b")["count"] == BYTES
}

#[test]
fn cancelled_backup_leaves_nothing_clean_that_a_crashed_server_may_have_lost() {
    let folder = Folder::new();
    let Some(mut server) = start_qemu_nbd(&folder, BYTES) else {
        return;
    };
    let (program, mut client) = start_with_dirty_disk(&folder, node(&server, 60));
    assert!(is_all_dirty_after_cancel(&mut client, || restart(
        &mut server
    )));
    assert!(!is_all_dirty_after_cancel(&mut client, || ()));
    program.stop();
}

/// What is on a target does not matter after its job has failed: so it can be tried again, and the daemon ends in order.
#[test]
fn target_of_a_failed_job_is_closed_without_its_server() {
    let folder = Folder::new();
    let Some(mut server) = start_qemu_nbd(&folder, BYTES) else {
        return;
    };
    let (program, mut client) = start_with_disks(&folder, BYTES, "");
    let socket = server.socket().display().to_string();
    for command in ["backup", "mirror"] {
        let line = format!("{command} qmp disk nbd+unix:///?socket={socket} --speed 1M");
        let command = Process::spawn(folder.command(line.split_whitespace()));
        await_progress(&mut client, 1);
        server.kill();
        // Otherwise a mirror waits for a minute for the server.
        let id = client.execute("query-jobs")[0]["id"].clone();
        client.done("job-cancel", json!({"id": id}));
        let output = command.ended();
        assert!(output.stderr.contains("interrupted"), "{output:?}");
        let nodes = client.execute("query-named-block-nodes");
        assert_eq!(nodes.as_array().unwrap().len(), 2, "the target is closed");
        server.start();
    }
    client.done("blockdev-add", node(&server, 0));
    let slow = json!({"target": "there", "speed": MIB});
    begin_backup(&mut client, "full", slow);
    await_progress(&mut client, 1);
    server.kill();
    failed(&mut client);
    program.stop();
}

/// What others have written to the same server is flushed.
#[test]
fn failed_job_leaves_the_flush_to_others_that_use_its_targets_server() {
    let folder = Folder::new();
    let Some(mut server) = start_qemu_nbd(&folder, 2 * BYTES) else {
        return;
    };
    let line = format!(
        "--blockdev nbd,node-name=there,server.type=unix,server.path={} \
         --blockdev raw,node-name=first,file=there,size={BYTES} \
         --blockdev raw,node-name=second,file=there,offset={BYTES},size={BYTES} \
         --export vhost-user-blk,id=e,node-name=second,writable=on,addr.type=unix,addr.path=e.sock",
        server.socket().display()
    );
    let (program, mut client, mut guest) = start_with_guest(&folder, BYTES, &line);
    guest.request(0, OUT, 5, 1);
    let slow = json!({"target": "first", "speed": MIB});
    begin_backup(&mut client, "full", slow);
    await_progress(&mut client, 1);
    cancel(&mut client);
    server.kill();
    program.signal(Signal::TERM);
    let output = program.ended();
    // The guest's write was not flushed.
    assert_eq!(output.code, Some(1), "{output:?}");
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
    let Some(server) = NbdServer::nbdkit(&folder, &filters) else {
        return;
    };
    let (program, mut client, mut guest) = start_with_guest(&folder, BYTES, "");
    std::fs::copy(folder.join("disk.img"), folder.join("before.img")).unwrap();
    client.done("blockdev-add", node(&server, 0));
    begin_backup(&mut client, "full", json!({"target": "there", "speed": 1}));
    for block in [1000, 1001, 1017, 2047] {
        guest.request(0, OUT, block, 255);
    }
    client.execute("block-job-set-speed device=j speed=0");
    succeeded(&mut client);
    client.execute("blockdev-del node-name=there");
    program.stop();
    assert_same_content(&folder, "base.img", "before.img");
}

/// nbdkit with this script as its disk.
fn start_script(folder: &Folder, script: &str) -> Option<NbdServer> {
    let script = script.replace("FOLDER", &folder.path().display().to_string());
    let path = folder.join("script");
    write(&path, format!("#!/bin/sh\n{script}")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    NbdServer::nbdkit(folder, &format!("sh {}", path.display()))
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
    let (program, mut client) = start_with_dirty_disk(&folder, node(&server, 0));
    write(folder.join("bad"), []).unwrap();
    assert!(is_all_dirty_after_cancel(&mut client, || ()));
    std::fs::remove_file(folder.join("bad")).unwrap();
    assert!(!is_all_dirty_after_cancel(&mut client, || ()));
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
    node["stop-timeout"] = json!(1);
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
