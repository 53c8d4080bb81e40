//! Throttle groups over QMP: what they show, changes of limits while requests wait, and ends that do not wait for the budget.
//!
//! A limit of one byte per second lets the first request pass; the next ones would wait for an hour.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use test_support::deadline::eventually_ok;

use crate::client::Client;
use crate::guest::{BLOCK, Guest, OUT, SLOTS};
use crate::process::{Folder, Process};
use crate::start;

const MIB: u64 = 1 << 20;

/// A throttled file with an export.
const LINE: &str = "--object throttle-group,id=g,limits.bps-total=1 \
    --blockdev file,node-name=d,filename=disk \
    --blockdev throttle,node-name=t,throttle-group=g,file=d \
    --export vhost-user-blk,id=e,node-name=t,addr.type=unix,addr.path=e.sock,writable=on";

fn started() -> (Folder, Process, Client, Guest) {
    let folder = Folder::new();
    folder.image("disk", MIB);
    let (program, client) = start(&folder, LINE);
    let guest = Guest::connect(&folder.join("e.sock"), 1);
    (folder, program, client, guest)
}

fn set_limits(limits: Value) -> Value {
    json!({"path": "/objects/g", "property": "limits", "value": limits})
}

fn limits(client: &mut Client) -> Value {
    let get = json!({"path": "/objects/g", "property": "limits"});
    client.done("qom-get", get)
}

/// The entry of the export's throttled node in its statistics.
fn throttle_stats(client: &mut Client) -> Value {
    let mut stats = client.done("query-blockstats", json!({}));
    stats[0]["throttle"][0].take()
}

/// One request passes, and all others of the queue wait. Each block is written with a byte of its own.
fn fill_queue(client: &mut Client, guest: &mut Guest) {
    for slot in 0..SLOTS {
        guest.add(0, slot, OUT, slot as u64, byte(slot));
    }
    guest.submit(0);
    guest.watch(0, 0);
    eventually_ok("all others wait", || {
        let stats = throttle_stats(client);
        let all_wait = stats["waiting"] == SLOTS - 1;
        all_wait.then_some(()).ok_or(stats)
    });
}

fn byte(slot: usize) -> u8 {
    u8::try_from(slot + 1).unwrap()
}

/// All that was written is in the file.
fn assert_written(folder: &Folder) {
    let content = std::fs::read(folder.join("disk")).unwrap();
    for slot in 0..SLOTS {
        let block = &content[slot * BLOCK..][..BLOCK];
        assert_eq!(block, [byte(slot); BLOCK], "block {slot}");
    }
}

#[test]
fn limits_are_changed_in_part_and_shown_by_the_group_and_its_nodes() {
    let (_folder, program, mut client, _guest) = started();
    let listed = client.done("qom-list-properties", json!({"typename": "throttle-group"}));
    let limits_property = json!({"name": "limits", "type": "ThrottleLimits"});
    assert!(
        listed.as_array().unwrap().contains(&limits_property),
        "{listed}"
    );
    let changes = json!({"iops-read": 100, "iops-read-max": 200, "iops-read-max-length": 3, "iops-size": 4096});
    client.done("qom-set", set_limits(changes));
    let all = limits(&mut client);
    assert_eq!(
        (&all["bps-total"], &all["iops-read-max-length"]),
        (&json!(1), &json!(3))
    );
    assert_eq!(all["iops-total-max-length"], 1, "a default: {all}");
    assert_eq!(all.as_object().unwrap().len(), 19);

    let refused = client.fails("qom-set", set_limits(json!({"iops-total": 5})));
    assert!(
        refused.starts_with("bps/iops/max total values and read/write values cannot"),
        "{refused}"
    );
    let too_high = json!({"iops-read-max": 1_000_000_000_000_001_u64});
    let refused = client.fails("qom-set", set_limits(too_high.clone()));
    assert!(
        refused.contains("value must be in range [0, 1000000000000000]"),
        "{refused}"
    );
    let too_low = json!({"iops-read": 2, "iops-read-max": 1});
    for limits in [too_high, too_low] {
        let new = json!({"qom-type": "throttle-group", "id": "h", "limits": limits});
        client.fails("object-add", new);
    }
    client.fails("object-del", json!({"id": "h"}));
    let refused = client.fails("qom-set", set_limits(json!(5)));
    assert_eq!(
        refused,
        "Invalid parameter type for 'limits', expected: object"
    );
    assert_eq!(limits(&mut client), all, "a refused change changes nothing");

    let nodes = client.done("query-named-block-nodes", json!({}));
    let throttled = &nodes[0];
    for (member, value) in [
        ("node-name", json!("t")),
        ("drv", json!("throttle")),
        ("group", json!("g")),
        ("bps", json!(1)),
        ("iops", json!(0)),
        ("iops_rd", json!(100)),
        ("iops_rd_max", json!(200)),
        ("iops_rd_max_length", json!(3)),
        ("iops_size", json!(4096)),
    ] {
        assert_eq!(throttled[member], value, "{member}: {throttled}");
    }
    assert!(throttled.get("bps_max").is_none(), "{throttled}");
    assert!(nodes[1].get("group").is_none(), "{nodes}");
    program.stop();
}

#[test]
fn a_group_is_removed_when_no_node_is_a_member() {
    let folder = Folder::new();
    let (program, mut client) = start(&folder, "--blockdev null-co,node-name=n");
    let node = |group: &str| json!({"driver": "throttle", "node-name": "t", "throttle-group": group, "file": "n"});
    let reopen = |group: &str| json!({"options": [node(group)]});
    let add =
        |id: &str| json!({"qom-type": "throttle-group", "id": id, "limits": {"iops-total": 100}});
    assert_eq!(
        client.fails("blockdev-add", node("g")),
        "Throttle group 'g' does not exist"
    );
    client.done("object-add", add("g"));
    client.done("object-add", add("h"));
    let again = client.fails("object-add", add("g"));
    assert!(
        again.contains("attempt to add duplicate property 'g'"),
        "{again}"
    );
    client.done("blockdev-add", node("g"));
    let in_use = client.fails("object-del", json!({"id": "g"}));
    assert!(
        in_use.starts_with("object 'g' is in use, can not be deleted: node 't' is a member"),
        "{in_use}"
    );
    assert_eq!(
        client.fails("blockdev-reopen", reopen("i")),
        "Throttle group 'i' does not exist"
    );
    client.done("blockdev-reopen", reopen("h"));
    client.done("object-del", json!({"id": "g"}));
    let nodes = client.done("query-named-block-nodes", json!({}));
    assert_eq!(nodes[0]["group"], "h", "{nodes}");
    client.fails("object-del", json!({"id": "h"}));
    client.done("blockdev-del", json!({"node-name": "t"}));
    client.done("object-del", json!({"id": "h"}));
    let listed = client.done("qom-list", json!({"path": "/objects"}));
    assert!(!listed.to_string().contains("throttle-group"), "{listed}");
    program.stop();
}

#[test]
fn requests_that_wait_pass_when_the_limit_is_removed() {
    let (folder, program, mut client, mut guest) = started();
    fill_queue(&mut client, &mut guest);
    let stats = throttle_stats(&mut client);
    assert_eq!(
        (&stats["node-name"], &stats["group"]),
        (&json!("t"), &json!("g"))
    );
    assert!(
        stats["limit-hits"]["bps-total"].as_u64().unwrap() > 0,
        "{stats}"
    );
    client.done("qom-set", set_limits(json!({"bps-total": 0})));
    for slot in 1..SLOTS {
        guest.watch(0, slot);
        assert_eq!(guest.status(0, slot), 0);
    }
    let stats = throttle_stats(&mut client);
    assert_eq!(
        (&stats["waiting"], &stats["waited"]),
        (&json!(0), &json!(SLOTS - 1))
    );
    assert_written(&folder);
    program.stop();
}

#[test]
fn an_export_shows_the_waits_at_the_throttled_nodes_of_its_disks() {
    let (_folder, program, mut client, mut guest) = started();
    let throttle = |client: &mut Client, id: &str| {
        let exports = client.done("query-block-exports", json!({}));
        let mut exports = exports.as_array().unwrap().iter();
        let export = exports.find(|export| export["id"] == id).unwrap();
        export.get("throttle").cloned()
    };
    fill_queue(&mut client, &mut guest);
    let shown = throttle(&mut client, "e").unwrap();
    let entry = &shown[0];
    assert_eq!(
        (&entry["node-name"], &entry["group"]),
        (&json!("t"), &json!("g"))
    );
    assert_eq!(entry["waiting"], SLOTS - 1, "{shown}");
    assert!(
        entry["limit-hits"]["bps-total"].as_u64().unwrap() > 0,
        "{shown}"
    );

    client.done("qom-set", set_limits(json!({"bps-total": 0})));
    for slot in 1..SLOTS {
        guest.watch(0, slot);
    }
    let shown = throttle(&mut client, "e").unwrap();
    assert_eq!(
        (&shown[0]["waiting"], &shown[0]["waited"]),
        (&json!(0), &json!(SLOTS - 1))
    );
    let stats = client.done("query-blockstats", json!({}));
    assert_eq!(shown, stats[0]["throttle"], "both queries show the same");

    // Those of all units of a SCSI controller; no member without limits.
    for node in ["n", "m"] {
        let null = json!({"driver": "null-co", "node-name": node});
        client.done("blockdev-add", null);
    }
    let filter =
        json!({"driver": "throttle", "node-name": "u", "throttle-group": "g", "file": "n"});
    client.done("blockdev-add", filter);
    let add = |id: &str, luns: Value| json!({"type": "vhost-user-scsi", "id": id, "luns": luns, "addr": {"type": "unix", "path": id}});
    let luns = json!([{"node-name": "m"}, {"node-name": "u"}]);
    client.done("block-export-add", add("scsi", luns));
    let shown = throttle(&mut client, "scsi").unwrap();
    assert_eq!(shown.as_array().unwrap().len(), 1, "{shown}");
    assert_eq!(shown[0]["node-name"], "u");
    client.done(
        "block-export-add",
        add("plain", json!([{"node-name": "m"}])),
    );
    assert_eq!(throttle(&mut client, "plain"), None);
    program.stop();
}

#[test]
fn a_guest_gets_no_more_than_the_new_limit_after_a_change() {
    const IOPS: u64 = 200;
    let (_folder, program, mut client, mut guest) = started();
    client.done(
        "qom-set",
        set_limits(json!({"bps-total": 0, "iops-total": 100_000})),
    );
    guest.request(0, OUT, 0, 1);
    client.done("qom-set", set_limits(json!({"iops-total": IOPS})));
    let (begin, mut requests) = (Instant::now(), 0);
    while begin.elapsed() < Duration::from_secs(1) {
        for slot in 0..SLOTS {
            guest.add(0, slot, OUT, slot as u64, 1);
        }
        guest.submit(0);
        for slot in 0..SLOTS {
            guest.watch(0, slot);
        }
        requests += SLOTS as u64;
    }
    let milliseconds = u64::try_from(begin.elapsed().as_millis()).unwrap() + 1;
    // The bucket and the account hold 0.11 s of the limit.
    let most = IOPS * (milliseconds + 110) / 1000 + 1;
    assert!(
        requests <= most,
        "{requests} requests in {milliseconds} ms: at most {most}"
    );
    let stats = throttle_stats(&mut client);
    assert!(stats["waited"].as_u64().unwrap() > requests / 2, "{stats}");
    program.stop();
}

#[test]
fn a_queue_that_stops_does_not_wait_for_the_budget() {
    let (folder, program, mut client, mut guest) = started();
    fill_queue(&mut client, &mut guest);
    guest.stop(0);
    for slot in 1..SLOTS {
        assert!(guest.is_answered(0, slot), "request {slot}");
        assert_eq!(guest.status(0, slot), 0);
    }
    assert_written(&folder);
    program.stop();
}

#[test]
fn the_end_of_the_daemon_does_not_wait_for_the_budget() {
    let (folder, program, mut client, mut guest) = started();
    fill_queue(&mut client, &mut guest);
    drop(client);
    program.stop().assert_success();
    assert_written(&folder);
}

#[test]
fn a_throttled_node_that_is_taken_away_does_not_keep_its_requests() {
    let folder = Folder::new();
    folder.image("disk", MIB);
    let line = LINE.replace("--export", "--blockdev raw,node-name=r,file=t --export");
    let (program, mut client) = start(
        &folder,
        &line.replace("node-name=t,addr", "node-name=r,addr"),
    );
    let mut guest = Guest::connect(&folder.join("e.sock"), 1);
    fill_queue(&mut client, &mut guest);
    let onto = json!({"options": [{"driver": "raw", "node-name": "r", "file": "d"}]});
    client.done("blockdev-reopen", onto);
    client.done("blockdev-del", json!({"node-name": "t"}));
    client.done("object-del", json!({"id": "g"}));
    for slot in 1..SLOTS {
        guest.watch(0, slot);
        assert_eq!(guest.status(0, slot), 0);
    }
    assert_written(&folder);
    program.stop();
}
#[test]
fn a_node_that_is_reopened_keeps_its_debts_and_statistics() {
    let (_folder, program, mut client, mut guest) = started();
    fill_queue(&mut client, &mut guest);
    let options = json!({"driver": "throttle", "node-name": "t", "throttle-group": "g", "file": "d", "discard": "unmap"});
    client.done("blockdev-reopen", json!({"options": [options]}));
    for slot in 1..SLOTS {
        guest.watch(0, slot);
    }
    let stats = throttle_stats(&mut client);
    assert_eq!(stats["waited"], SLOTS - 1, "{stats}");
    guest.ask(0, 0, OUT, 0, 1);
    eventually_ok("the next request pays for those", || {
        let stats = throttle_stats(&mut client);
        (stats["waiting"] == 1).then_some(()).ok_or(stats)
    });
    program.stop();
}
