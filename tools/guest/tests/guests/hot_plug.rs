//! A disk that is added to a running daemon and plugged into a running guest, and out again.

use std::path::{Path, PathBuf};

use guest::{RunningGuest, Server};
use serde_json::{Value, json};

use crate::wait_until;

/// The second disk of a server.
pub(crate) struct SecondDisk<'a> {
    server: &'a Server,
    image: PathBuf,
    socket: PathBuf,
}

impl<'a> SecondDisk<'a> {
    pub(crate) fn new(server: &'a Server, folder: &Path) -> Self {
        let image = folder.join("second.img");
        let file = std::fs::File::create(&image).unwrap();
        file.set_len(96 << 20).unwrap();
        let socket = server.socket().with_file_name("second.sock");
        Self {
            server,
            image,
            socket,
        }
    }

    /// Adds it to the daemon; QEMU connects to it and gives it to its guest.
    pub(crate) fn plug(&self, guest: &RunningGuest<'_>) {
        let node = json!({"driver": "file", "node-name": "d2", "filename": self.image});
        let address = json!({"type": "unix", "path": self.socket});
        let export = json!({
            "type": "vhost-user-blk", "id": "e2", "node-name": "d2", "writable": true, "num-queues": 2, "serial": "SECOND",
            "addr": address,
        });
        self.server.query("blockdev-add", &node).unwrap();
        self.server.query("block-export-add", &export).unwrap();
        let address = json!({"type": "unix", "data": {"path": self.socket}});
        let socket = json!({"type": "socket", "data": {"server": false, "addr": address}});
        let device = json!({
            "driver": "vhost-user-blk-pci", "id": "vd1", "chardev": "c2", "num-queues": 2, "bus": "slot0",
        });
        let chardev = json!({"id": "c2", "backend": socket});
        guest.qemu("chardev-add", &chardev).unwrap();
        guest.qemu("device_add", &device).unwrap();
    }

    pub(crate) fn unplug(&self, guest: &RunningGuest<'_>) {
        guest.qemu("device_del", &json!({"id": "vd1"})).unwrap();
    }

    /// After the guest has let go: the orderly way, which is refused as long as QEMU's device or connection is there.
    pub(crate) fn remove(&self, guest: &RunningGuest<'_>) {
        let in_daemon =
            |command: &str, arguments: Value| self.server.query(command, &arguments).is_ok();
        wait_until("QEMU removes the connection", || {
            guest.qemu("chardev-remove", &json!({"id": "c2"})).is_ok()
        });
        wait_until("the daemon removes the export", || {
            in_daemon("block-export-del", json!({"id": "e2"}))
        });
        wait_until("the daemon removes the node", || {
            in_daemon("blockdev-del", json!({"node-name": "d2"}))
        });
        assert!(!self.socket.exists(), "its socket goes with an export");
    }
}
