//! An export of an NBD server as the target of a job.

use serde_json::{Value, json};

use crate::process::{Folder, Process};
use crate::servers::Server;
use crate::start;

/// qemu-nbd with an image `there.img` of so many bytes; `None`, with a report, if it is not installed.
pub fn start_qemu_nbd(folder: &Folder, bytes: u64) -> Option<Server> {
    folder.image("there.img", bytes);
    Server::qemu_nbd(folder, "", &folder.join("there.img"))
}

/// Another daemon with such an image, as the export `there` on the socket `nbd`, and its URI.
pub fn start_daemon(folder: &Folder, bytes: u64) -> (Process, String) {
    folder.image("there.img", bytes);
    let line = "--blockdev file,node-name=there,filename=there.img,cache.direct=off \
         --nbd-server addr.type=unix,addr.path=nbd --export nbd,id=x,node-name=there,writable=on";
    // Its monitor answers when the export is there.
    let (daemon, _) = start(folder, line);
    (
        daemon,
        format!("nbd+unix:///there?socket={}", folder.join("nbd").display()),
    )
}

/// Arguments of `blockdev-add` for the node `there` on the server's export.
pub fn node(server: &Server, reconnect_delay: u32) -> Value {
    let address = json!({"type": "unix", "path": server.socket()});
    json!({"driver": "nbd", "node-name": "there", "server": address, "reconnect-delay": reconnect_delay})
}

/// Kills a server and starts it again.
pub fn restart(server: &mut Server) {
    server.kill();
    server.start();
}
