//! Nothing of what was set is lost: each setting that can be seen is changed from what it usually is, and is the same after
//! upgrades.
//!
//! There is one of each kind with no options, and one with all. Where the two do not differ a test could not see that a setting
//! is lost: what is listed as [`COMMON`] is none. (Options by themselves have a test of their own in `options`: `golden`.)

use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::net::UnixStream;

use options::reference;
use serde_json::{Map, Value, json};
use test_support::upgraded_daemon::Daemon;

use crate::client::Client;
use crate::process::Folder;
use crate::request_driver::{BLOCK, IN, OUT, RequestDriver};
use crate::wire::{GET_FEATURES, GET_PROTOCOL_FEATURES, GET_QUEUE_NUM};

const MIB: u64 = 1 << 20;

const PLAIN: &str = "--object iothread,id=plain \
    --blockdev file,node-name=plain,filename=plain.img \
    --export vhost-user-blk,id=plain,node-name=plain,addr.type=unix,addr.path=plain \
    --export vhost-user-scsi,id=plain-scsi,node-name=plain,addr.type=unix,addr.path=plain-scsi";

/// With what can only be said at the start; the rest is set over the monitor.
const CHANGED: &str = "--object iothread,id=changed \
    --blockdev file,node-name=changed,filename=changed.img,discard=unmap \
    --blockdev file,node-name=unit,filename=unit.img,cache.direct=off \
    --export vhost-user-blk,id=changed,node-name=changed,addr.type=unix,addr.path=changed,writable=on,\
num-queues=3,queue-size=64,logical-block-size=4096,serial=abc,packed=on,rerror=stop,werror=enospc,request-timeout=7,writethrough=on,\
fixed-buffers=on,fixed-iothread=on,allow-inactive=on,iothread=changed \
    --export vhost-user-scsi,id=changed-scsi,addr.type=unix,addr.path=changed-scsi,writable=on,\
num-queues=3,queue-size=64,packed=on,luns.0.node-name=unit,luns.0.target=3,luns.0.lun=4,luns.0.serial=def,\
luns.0.logical-block-size=4096,luns.0.rotation-rate=7200,writethrough=on,fixed-iothread=on,iothread=changed";

/// Nodes that are compared as a whole.
const OTHERS: &str = "--blockdev raw,node-name=window,file=unit,offset=4096,size=65536,read-only=on \
    --blockdev null-co,node-name=null,size=1M,read-zeroes=on,latency-ns=5";

/// `VIRTIO_BLK_F_CONFIG_WCE`'s byte in the configuration space.
const WCE: u32 = 32;
/// The queue that is disabled during the upgrade.
const DISABLED: u32 = 1;
/// `MQ`, `REPLY_ACK`, `CONFIG`
const PROTOCOL_FEATURES: u64 = 1 | 1 << 3 | 1 << 9;
/// `VHOST_USER_BACKEND_CONFIG_CHANGE_MSG`
const CONFIG_CHANGE: u32 = 2;

/// What an object, a node or an export says of itself, and what its front-end sees. All values, by where they are.
type Said = BTreeMap<String, Value>;

/// What is the same for all: kinds, what no option changes, what is only seen while something is wrong, and what `OTHERS` shows
/// (`node/ro`).
const COMMON: &str = "blk/type front-end/config/discard front-end/config/geometry front-end/config/size_max \
    front-end/config/unused front-end/config/write_zeroes front-end/protocol-features iothread/type \
    node/active node/backing_file_depth node/bps node/bps_rd node/bps_wr node/cache/writeback node/children \
    node/drv node/encrypted node/image/dirty-flag node/image/format node/iops node/iops_rd node/iops_wr \
    node/ro node/write_threshold query-block-exports/blk/io-status query-block-exports/blk/late-requests \
    query-block-exports/blk/shutting-down query-block-exports/blk/type \
    query-block-exports/blk/waiting-requests query-block-exports/scsi/shutting-down \
    query-block-exports/scsi/type scsi/type";

/// Inserts all values inside of `value` by their paths.
fn insert_leaves(at: &str, value: &Value, said: &mut Said) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                insert_leaves(&format!("{at}/{name}"), member, said);
            }
        }
        Value::Array(members) if members.iter().any(|member| !member.is_number()) => {
            for (index, member) in members.iter().enumerate() {
                insert_leaves(&format!("{at}/{index}"), member, said);
            }
        }
        leaf => drop(said.insert(at.to_owned(), leaf.clone())),
    }
}

/// Every property, also those that this test does not know.
fn properties(client: &mut Client, path: &str) -> Value {
    let listed = client.done("qom-list", json!({"path": path}));
    let mut found = Map::new();
    for property in listed.as_array().unwrap() {
        let name = property["name"].as_str().unwrap();
        let arguments = json!({"path": path, "property": name});
        found.insert(name.to_owned(), client.done("qom-get", arguments));
    }
    assert!(found.len() > 2, "{found:?}");
    found.into()
}

/// All of those whose names begin so.
fn said(client: &mut Client, name: &str, guest: &RequestDriver) -> Said {
    let mut said = Said::new();
    let scsi = format!("{name}-scsi");
    let iothreads = client.done("query-iothreads", json!({}));
    let mut iothreads = iothreads.as_array().unwrap().iter();
    let iothread = iothreads.find(|iothread| iothread["id"] == name);
    let mut iothread = iothread.unwrap().clone();
    for of_process in ["thread-id", "stats"] {
        iothread.as_object_mut().unwrap().remove(of_process);
    }
    insert_leaves("query-iothreads", &iothread, &mut said);
    let path = format!("/objects/{name}");
    insert_leaves("iothread", &properties(client, &path), &mut said);
    let mut node = client.node(name);
    let image = node["image"].as_object_mut().unwrap();
    image.remove("actual-size").expect("what the file has");
    insert_leaves("node", &node, &mut said);
    for (kind, id) in [("blk", name), ("scsi", &scsi)] {
        let at = format!("query-block-exports/{kind}");
        insert_leaves(&at, &client.export(id), &mut said);
        let path = format!("/exports/{id}");
        insert_leaves(kind, &properties(client, &path), &mut said);
    }
    for (question, request) in [
        ("features", GET_FEATURES),
        ("protocol-features", GET_PROTOCOL_FEATURES),
        ("queues", GET_QUEUE_NUM),
    ] {
        said.insert(format!("front-end/{question}"), guest.query(request).into());
    }
    let config = guest.config_space();
    for (field, bytes) in [
        ("capacity", 0..8),
        ("size_max", 8..12),
        ("seg_max", 12..16),
        ("geometry", 16..20),
        ("blk_size", 20..24),
        ("topology", 24..32),
        ("writeback", 32..33),
        ("unused", 33..34),
        ("num_queues", 34..36),
        ("discard", 36..48),
        ("write_zeroes", 48..60),
    ] {
        said.insert(format!("front-end/config/{field}"), config[bytes].into());
    }
    said
}

/// Changes all settings that a monitor can change.
fn change_all_settings(client: &mut Client) {
    let of_iothread = "poll-max-ns=1 poll-grow=2 poll-shrink=3 poll-cpu-max=4 aio-max-batch=5 aio-max-events=600 \
                       thread-pool-max=8 thread-pool-min=7 cpu-affinity=[0]";
    let of_export = "request-merging=false max-merge-requests=6 max-merge-bytes=4096";
    for (path, settings) in [
        ("/objects/changed", of_iothread),
        ("/exports/changed", of_export),
    ] {
        for setting in settings.split_whitespace() {
            let (property, value) = setting.split_once('=').unwrap();
            client.execute(&format!(
                "qom-set path={path} property={property} value={value}"
            ));
        }
    }
    client.reopen(
        "driver=file node-name=changed filename=changed.img discard=unmap aio=threads detect-zeroes=unmap \
         cache.direct=false cache.no-flush=true",
    );
    client.execute(&format!("block_resize node-name=changed size={}", 3 * MIB));
}

/// The next message of the device's own.
fn next_message(mut channel: &UnixStream) -> u32 {
    let mut header = [0; 12];
    channel.read_exact(&mut header).expect("a message");
    u32::from_ne_bytes(header[..4].try_into().unwrap())
}

#[test]
fn round_trip_of_upgrades_keeps_every_setting() {
    let folder = Folder::new();
    for name in ["plain.img", "changed.img", "unit.img"] {
        folder.image(name, 2 * MIB);
    }
    let mut daemon = Daemon::start_in(folder, &format!("{PLAIN} {CHANGED} {OTHERS}"), &[]);
    let mut client = daemon.client();
    change_all_settings(&mut client);
    let plain_guest = RequestDriver::connect(&daemon.folder.join("plain"), 1);
    let mut guest = RequestDriver::connect(&daemon.folder.join("changed"), 3);
    let channel = guest.listen(PROTOCOL_FEATURES);
    // Both guests set the mode that their exports do not begin with.
    plain_guest.set_config(WCE, 0);
    guest.set_config(WCE, 1);
    guest.enable(DISABLED, false);
    guest.ask(DISABLED, 0, OUT, 1, 7);
    let plain = said(&mut client, "plain", &plain_guest);
    let changed = said(&mut client, "changed", &guest);
    let same = |(at, value): (&String, &Value)| (plain.get(at) == Some(value)).then(|| at.clone());
    let same: Vec<String> = changed.iter().filter_map(same).collect();
    let is_option = |at: &str| {
        let name = at.rsplit('/').next().unwrap_or(at);
        let mut keys = reference::KEYS.iter().flat_map(|group| group.keys);
        keys.any(|key| key.name == name)
    };
    let common: Vec<&str> = COMMON.split(' ').collect();
    let unexpected: Vec<&String> = same
        .iter()
        .filter(|at| !common.contains(&at.as_str()) && !is_option(at))
        .collect();
    assert_eq!(
        unexpected, [""; 0],
        "settings that have their defaults: change them, or a test would not see that they are lost"
    );
    let others = ["query-chardev", "query-named-block-nodes"];
    let others = |client: &mut Client| others.map(|query| client.done(query, json!({})));
    let others_before = others(&mut client);
    drop(client);
    for upgrade in 0..2 {
        daemon.upgrade();
        let mut client = daemon.client();
        for (name, guest, before) in [
            ("plain", &plain_guest, &plain),
            ("changed", &guest, &changed),
        ] {
            let after = said(&mut client, name, guest);
            for (at, before) in before {
                assert_eq!(
                    after.get(at),
                    Some(before),
                    "{name}, upgrade {upgrade}: {at}"
                );
            }
            assert_eq!(after.len(), before.len());
        }
        assert_eq!(others(&mut client), others_before);
        // Queues are as they were: the others are served, and this one is not.
        guest.request(0, IN, 0, 0);
        guest.request(2, IN, 0, 0);
        assert!(!guest.is_answered(DISABLED, 0));
    }
    guest.enable(DISABLED, true);
    guest.wait(DISABLED, 0);
    guest.request(0, IN, 1, 0);
    assert_eq!(guest.data(0, 0), [7; BLOCK]);
    // So is the channel of the device's own.
    let mut client = daemon.client();
    client.execute(&format!("block_resize node-name=changed size={}", 4 * MIB));
    assert_eq!(next_message(&channel), CONFIG_CHANGE);
    assert_eq!(guest.capacity(), 4 * MIB);
    drop((client, guest, plain_guest));
    daemon.stop();
}
