//! Copies to an export of the daemon itself.

use serde_json::json;

use crate::client::Client;
use crate::guest::{Guest, OUT};
use crate::process::Folder;
use crate::{MIB, backup, completed, start_with_disks};

/// Adds a node on an export of the daemon.
fn add_node(client: &mut Client, path: &str, export: &str) -> String {
    let node = format!("{export}-{path}");
    let server = json!({"type": "unix", "path": path});
    client.done(
        "blockdev-add",
        json!({"driver": "nbd", "node-name": node, "server": server, "export": export}),
    );
    node
}

/// Each write of the job would be one to the disk, which waits for its own copy.
#[test]
fn disk_is_not_copied_to_itself_by_the_network() {
    let folder = Folder::new();
    let (program, mut client) = start_with_disks(
        &folder,
        MIB,
        "--blockdev null-co,node-name=other,size=1M --nbd-server addr.type=unix,addr.path=nbd \
         --export nbd,id=n1,node-name=disk,writable=on --export nbd,id=n2,node-name=other,name=free,writable=on \
         --export vhost-user-blk,id=e,node-name=disk,writable=on,addr.type=unix,addr.path=e.sock",
    );
    std::os::unix::fs::symlink("nbd", folder.join("link")).unwrap();
    let refused = |client: &mut Client, command, node: &str| {
        assert_eq!(
            client.fails(command, backup("full", json!({"target": node}))),
            format!(
                "Source and target cannot be the same: node '{node}' is an export of this daemon, which shows node 'disk'"
            )
        );
    };
    for path in ["nbd", "link"] {
        let node = add_node(&mut client, path, "disk");
        refused(&mut client, "blockdev-backup", &node);
        refused(&mut client, "blockdev-mirror", &node);
    }
    let window = json!({"driver": "raw", "node-name": "window", "file": "disk"});
    client.done("blockdev-add", window);
    let export = json!({"type": "nbd", "id": "n3", "node-name": "window", "writable": true});
    client.done("block-export-add", export);
    let node = add_node(&mut client, "nbd", "window");
    refused(&mut client, "blockdev-backup", &node);

    let other = add_node(&mut client, "nbd", "free");
    client.done("blockdev-backup", backup("full", json!({"target": other})));
    completed(&mut client);
    let mut guest = Guest::connect(&folder.join("e.sock"), 1);
    guest.request(0, OUT, 0, 1);
    assert_eq!(guest.status(0, 0), 0);
    // At the shutdown there is no server any more.
    client.done("blockdev-del", json!({"node-name": other}));
    program.stop();
}
