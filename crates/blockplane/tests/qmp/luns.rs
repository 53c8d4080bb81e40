//! Units of SCSI controllers come and go by a monitor; of virtio SCSI and the LSI 53C895A side by side.

use serde_json::{Value, json};

use crate::client::Client;
use crate::process::Folder;
use crate::start;

const DISKS: &str = "--blockdev null-co,node-name=a,size=1M --blockdev null-co,node-name=b,size=1M \
    --blockdev null-co,node-name=r,size=1M,read-only=on";

fn add(client: &mut Client, kind: &str, id: &str, more: &Value) {
    let mut options = json!({"type": kind, "id": id,
        "addr": {"type": "unix", "path": format!("{id}.sock")}});
    for (key, value) in more.as_object().unwrap() {
        options[key] = value.clone();
    }
    client.done("block-export-add", options);
}

#[test]
fn luns_are_added_and_removed_beside_another_controller() {
    let folder = Folder::new();
    let (program, mut client) = start(&folder, DISKS);
    // One has no disk yet; the other one has the same node as its only one.
    add(
        &mut client,
        "vhost-user-scsi",
        "v",
        &json!({"writable": true}),
    );
    let luns = json!({"luns": [{"node-name": "b"}]});
    add(&mut client, "vfio-user-lsi53c895a", "l", &luns);
    let exports = client.done("query-block-exports", json!({}));
    let mut shown: Vec<_> = exports.as_array().unwrap().iter().collect();
    shown.sort_by_key(|export| export["id"].to_string());
    let types: Vec<_> = shown.iter().map(|export| &export["type"]).collect();
    assert_eq!(types, ["vfio-user-lsi53c895a", "vhost-user-scsi"]);

    client.done(
        "scsi-lun-add",
        json!({"id": "v", "node-name": "a", "target": 1}),
    );
    client.done(
        "scsi-lun-add",
        json!({"id": "v", "node-name": "b", "target": 1}),
    );
    let used = client.fails("blockdev-del", json!({"node-name": "a"}));
    assert_eq!(used, "Node a is in use by export 'v'");
    for (options, expected) in [
        (
            json!({"id": "v", "node-name": "a", "target": 1, "lun": 1}),
            "is node 'b' already",
        ),
        (
            json!({"id": "v", "node-name": "a", "lun": 16_384}),
            "[0, 16383]",
        ),
        (json!({"id": "v", "node-name": "r"}), "is read-only"),
        (json!({"id": "v", "node-name": "x"}), "node-name='x'"),
        (
            json!({"id": "l", "node-name": "a"}),
            "only in one of type 'vhost-user-scsi'",
        ),
        (json!({"id": "x", "node-name": "a"}), "is not found"),
    ] {
        let refused = client.fails("scsi-lun-add", options.clone());
        assert!(refused.contains(expected), "{options}: {refused}");
    }
    let read_only = json!({"id": "v", "node-name": "r", "writable": false});
    client.done("scsi-lun-add", read_only);

    let none = client.fails("scsi-lun-del", json!({"id": "v", "target": 1, "lun": 2}));
    assert!(none.contains("no LUN 2 at target 1"), "{none}");
    client.done("scsi-lun-del", json!({"id": "v", "target": 1, "lun": 0}));
    client.done("blockdev-del", json!({"node-name": "a"}));
    client.done("scsi-lun-del", json!({"id": "v", "target": 1, "lun": 1}));
    let used = client.fails("blockdev-del", json!({"node-name": "b"}));
    assert_eq!(used, "Node b is in use by export 'l'");
    for id in ["l", "v"] {
        client.done("block-export-del", json!({"id": id}));
        client.event("BLOCK_EXPORT_DELETED", id);
    }
    for node in ["b", "r"] {
        client.done("blockdev-del", json!({"node-name": node}));
    }
    program.stop();
}
