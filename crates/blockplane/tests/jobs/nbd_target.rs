//! An export of an NBD server as the target of a job.

use serde_json::{Value, json};

use crate::process::Folder;
use crate::servers::Server;

/// qemu-nbd with an image `there.img` of so many bytes; `None`, with a report, if it is not installed.
pub fn start_qemu_nbd(folder: &Folder, bytes: u64) -> Option<Server> {
    folder.image("there.img", bytes);
    Server::qemu_nbd(folder, "", &folder.join("there.img"))
}

/// Arguments of `blockdev-add` for the node `there` on the server's export.
pub fn node(server: &Server, reconnect_delay: u32) -> Value {
    let address = json!({"type": "unix", "path": server.socket().display().to_string()});
    json!({"driver": "nbd", "node-name": "there", "server": address, "reconnect-delay": reconnect_delay})
}
