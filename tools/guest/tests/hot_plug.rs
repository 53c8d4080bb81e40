//! QEMU attaches a running guest to a disk that was added to a running daemon, and lets go of it.

#![allow(clippy::unwrap_used)] // the lint's exception for tests does not reach helper functions

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use guest::{Boot, Scenario, Server, ServerOptions};

/// From the guest's last look at a disk to QEMU's, which takes no time unless something hangs.
const LIMIT: Duration = Duration::from_secs(30);

#[test]
fn a_disk_added_to_a_running_daemon_is_plugged_into_a_running_guest_and_out_again() {
    let folder = guest::disk_folder().unwrap();
    let mut options = ServerOptions::new(&folder.path().join("disk.img"), 64 << 20);
    options.num_queues = 2;
    options.monitor = true;
    let server = Server::start(&guest::blockplane().unwrap(), &options)
        .unwrap_or_else(|error| panic!("{error}"));
    let image = folder.path().join("second.img");
    std::fs::File::create(&image)
        .and_then(|file| file.set_len(96 << 20))
        .unwrap();
    let socket = server.socket().with_file_name("second.sock");
    let qemu = server.socket().with_file_name("qemu.sock");
    let report = Boot::new(&server, Scenario::HotPlug)
        .monitor(&qemu)
        .run_asking(|question| match question {
            "plug" => {
                add(&server, &image, &socket);
                attach(&qemu, &socket);
            }
            "unplug" => ask(&qemu, "device_del", r#"{"id": "vd1"}"#),
            "gone" => {
                remove_chardev(&qemu);
                remove(&server);
                assert!(!socket.exists(), "its socket goes with an export");
            }
            other => panic!("{other}?"),
        })
        .unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(report.fact("second_bytes"), Some("100663296"));
    assert_eq!(report.fact("second_queues"), Some("2"));
    assert_eq!(report.fact("second_serial"), Some("SECOND"));
    server.stop().unwrap_or_else(|error| panic!("{error}"));
}

/// A second disk in the daemon.
fn add(server: &Server, image: &Path, socket: &Path) {
    let (image, socket) = (image.display(), socket.display());
    let node = format!(r#"{{"driver": "file", "node-name": "d2", "filename": "{image}"}}"#);
    let export = format!(
        r#"{{"type": "vhost-user-blk", "id": "e2", "node-name": "d2", "writable": true, "num-queues": 2, "serial": "SECOND", "addr": {{"type": "unix", "path": "{socket}"}}}}"#
    );
    for (command, arguments) in [("blockdev-add", node), ("block-export-add", export)] {
        server
            .execute(command, &arguments)
            .unwrap_or_else(|error| panic!("{error}"));
    }
}

/// It goes by the orderly way, which is refused as long as a front-end is connected.
fn remove(server: &Server) {
    eventually(|| server.execute("block-export-del", r#"{"id": "e2"}"#));
    eventually(|| server.execute("blockdev-del", r#"{"node-name": "d2"}"#));
}

/// QEMU connects to it and gives it to its guest.
fn attach(qemu: &Path, socket: &Path) {
    let socket = socket.display();
    ask(
        qemu,
        "chardev-add",
        &format!(
            r#"{{"id": "c2", "backend": {{"type": "socket", "data": {{"server": false, "addr": {{"type": "unix", "data": {{"path": "{socket}"}}}}}}}}}}"#
        ),
    );
    ask(
        qemu,
        "device_add",
        r#"{"driver": "vhost-user-blk-pci", "id": "vd1", "chardev": "c2", "num-queues": 2, "bus": "slot0"}"#,
    );
}

/// QEMU has it in use until its device is gone, which is after the guest has let go.
fn remove_chardev(qemu: &Path) {
    eventually(|| guest::execute(qemu, "chardev-remove", r#"{"id": "c2"}"#));
}

fn ask(qemu: &Path, command: &str, arguments: &str) {
    guest::execute(qemu, command, arguments).unwrap_or_else(|error| panic!("{error}"));
}

/// Until it succeeds.
fn eventually(mut attempt: impl FnMut() -> guest::Result<()>) {
    let deadline = Instant::now() + LIMIT;
    while let Err(error) = attempt() {
        assert!(Instant::now() < deadline, "{error}");
        thread::sleep(Duration::from_millis(50));
    }
}
