//! Copies to an export of the daemon itself.

use serde_json::json;

use crate::client::Client;
use crate::process::Folder;
use crate::request_driver::OUT;
use crate::{MIB, begin_backup, copy, start_with_guest, succeeded};

/// Adds a node on an export of the daemon.
fn add_node(client: &mut Client, path: &str, export: &str) -> String {
    let node = format!("{export}-{path}");
    let server = format!("server.type=unix server.path={path} export={export}");
    let options = format!("driver=nbd node-name={node} {server}");
    client.execute(&format!("blockdev-add {options}"));
    node
}

/// Each write of the job would be one to the disk, which waits for its own copy.
#[test]
fn disk_is_not_copied_to_itself_by_the_network() {
    let folder = Folder::new();
    let (program, mut client, mut guest) = start_with_guest(
        &folder,
        MIB,
        "--blockdev null-co,node-name=other,size=1M --nbd-server addr.type=unix,addr.path=nbd \
         --export nbd,id=n1,node-name=disk,writable=on --export nbd,id=n2,node-name=other,name=free,writable=on",
    );
    std::os::unix::fs::symlink("nbd", folder.join("link")).unwrap();
    let refused = |client: &mut Client, command, node: &str| {
        let said = client.fails(command, copy("full", json!({"target": node})));
        let shown = format!("node '{node}' is an export of this daemon, which shows node 'disk'");
        assert_eq!(
            said,
            format!("Source and target cannot be the same: {shown}")
        );
    };
    for path in ["nbd", "link"] {
        let node = add_node(&mut client, path, "disk");
        refused(&mut client, "blockdev-backup", &node);
        refused(&mut client, "blockdev-mirror", &node);
    }
    client.execute("blockdev-add driver=raw node-name=window file=disk");
    client.execute("block-export-add type=nbd id=n3 node-name=window writable=true");
    let node = add_node(&mut client, "nbd", "window");
    refused(&mut client, "blockdev-backup", &node);
    let other = add_node(&mut client, "nbd", "free");
    begin_backup(&mut client, "full", json!({"target": other}));
    succeeded(&mut client);
    guest.request(0, OUT, 0, 1);
    // At the shutdown there is no server any more.
    client.done("blockdev-del", json!({"node-name": other}));
    program.stop();
}
