//! Exports of real NBD servers (nbdkit, qemu-nbd), served by the real program in its sandbox.
//!
//! - `data`: what front-ends write is what the server has; discards, zeroes, sizes, kinds of servers.
//! - `outages`: servers that are killed and started again under a verifying load.
//! - `refusals`: exports that cannot be served, and why.
//! - `tls`: encrypted connections, and servers that are not accepted.
//! - `changes`: live upgrades, reopened nodes, removed nodes, devices that stop while the server is silent.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on fails where it is"
)]

mod changes;
mod data;
mod outages;
mod refusals;
mod tls;

use client::Client;
use process::{Folder, Process, words};
use test_support::nbd_server::NbdServer;
use test_support::{process, qmp as client, request_driver};

const MIB: u64 = 1 << 20;

/// The socket of the disk.
const SOCKET: &str = "s";

/// Options for a monitor of the program.
const MONITOR: &str = "--chardev socket,id=c,path=qmp,server=on,wait=off --monitor chardev=c";

/// The program with a monitor and these options besides, and a client of it.
fn start(folder: &Folder, line: &str) -> (Process, Client) {
    let mut command = folder.command(words(&format!("{line} {MONITOR}")));
    command.env("BLOCKPLANE_LOG", "info");
    let mut program = Process::spawn(command);
    let client = Client::of(program.connection(&folder.join("qmp")));
    (program, client)
}

/// A node `d` on the default export of a server's socket, with more options of it that begin with a comma, and a writable export
/// of it with more options.
fn line(server: &NbdServer, node: &str, export: &str) -> String {
    format!(
        "--blockdev nbd,node-name=d,server.type=unix,server.path={}{node} --export \
         vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path={SOCKET},writable=on{export}",
        server.socket().display()
    )
}

/// How many requests of the disk have failed so far.
fn failed_requests(client: &mut Client) -> u64 {
    let stats = &client.block_stats("e")["stats"];
    let failed = ["rd", "wr", "flush"];
    let failed = failed.map(|kind| &stats[&*format!("failed_{kind}_operations")]);
    failed.map(|count| count.as_u64().unwrap()).iter().sum()
}

/// A file `image` of 1 MiB in a folder, behind nbdkit.
fn file_server(folder: &Folder) -> Option<NbdServer> {
    folder.image("image", MIB);
    let image = folder.join("image");
    NbdServer::nbdkit(folder, &format!("file {}", image.display()))
}

/// The same behind qemu-nbd, which allows one connection.
fn one_connection_server(folder: &Folder) -> Option<NbdServer> {
    folder.image("image", MIB);
    NbdServer::qemu_nbd(folder, "--shared 1", &folder.join("image"))
}
