//! Throttle groups over QMP: what they show, changes of limits while requests wait, and ends that do not wait for the budget.
//!
//! A limit of one byte per second lets the first request pass; the next ones would wait for an hour.

use serde_json::{Value, json};
use test_support::deadline::eventually_ok;

use crate::client::Client;
use crate::process::{Folder, Process};
use crate::request_driver::commands::Data;
use crate::request_driver::{BLOCK, OUT, RequestDriver, SLOTS};
use crate::start_with_disk;

/// A throttled file with an export.
const LINE: &str = "--object throttle-group,id=g,limits.bps-total=1 \
    --blockdev file,node-name=d,filename=disk \
    --blockdev throttle,node-name=t,throttle-group=g,file=d \
    --export vhost-user-blk,id=e,node-name=t,addr.type=unix,addr.path=e.sock,writable=on";

fn started(line: &str) -> (Folder, Process, Client, RequestDriver) {
    let (folder, program, client) = start_with_disk(line);
    let guest = RequestDriver::connect(&folder.join("e.sock"), 1);
    (folder, program, client, guest)
}

/// Sets limits of the group, in words.
const SET_LIMITS: &str = "qom-set path=/objects/g property=limits";

/// The entry of the export's throttled node in its statistics.
fn throttle_stats(client: &mut Client) -> Value {
    client.block_stats("e")["throttle"][0].take()
}

/// One request passes, and all others of the queue wait. Each block is written with a byte of its own.
fn fill_queue(client: &mut Client, guest: &mut RequestDriver) {
    guest.ask_all(0, OUT, (0..SLOTS).map(|slot| (slot as u64, byte(slot))));
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

/// All that was written is in the file, and the guest knows it.
fn assert_written(folder: &Folder, guest: &mut RequestDriver) {
    assert_eq!(guest.watch_all(0), [0; SLOTS]);
    let content = std::fs::read(folder.join("disk")).unwrap();
    for slot in 0..SLOTS {
        let block = &content[slot * BLOCK..][..BLOCK];
        assert_eq!(block, [byte(slot); BLOCK], "block {slot}");
    }
}

#[test]
fn limits_are_changed_in_part_and_shown_by_the_group_and_its_nodes() {
    let (_folder, program, mut client, _guest) = started(LINE);
    let limits = |client: &mut Client| client.execute("qom-get path=/objects/g property=limits");
    let listed = client.execute("qom-list-properties typename=throttle-group");
    let property = json!({"name": "limits", "type": "ThrottleLimits"});
    assert!(listed.as_array().unwrap().contains(&property), "{listed}");
    client.execute(&format!(
        "{SET_LIMITS} value.iops-read=100 value.iops-read-max=200 value.iops-read-max-length=3 value.iops-size=4096"
    ));
    let all = limits(&mut client);
    assert_eq!([&all["bps-total"], &all["iops-read-max-length"]], [1, 3]);
    assert_eq!(all["iops-total-max-length"], 1, "a default: {all}");
    assert_eq!(all.as_object().unwrap().len(), 19);

    client.assert_errors(&format!(
        "{SET_LIMITS} value.iops-total=5 => bps/iops/max total values and read/write values cannot
         {SET_LIMITS} value.iops-read-max=1000000000000001 => value must be in range [0, 1000000000000000]
         {SET_LIMITS} value=5 => Invalid parameter type for 'limits', expected: object"
    ));
    assert_eq!(limits(&mut client), all, "a refused change changes nothing");

    let throttled = client.node("t");
    let members = [
        "drv",
        "group",
        "bps",
        "iops",
        "iops_rd",
        "iops_rd_max",
        "iops_rd_max_length",
        "iops_size",
    ];
    let found: Value = members
        .iter()
        .map(|name| throttled[*name].clone())
        .collect();
    assert_eq!(found, json!(["throttle", "g", 1, 0, 100, 200, 3, 4096]));
    assert!(throttled.get("bps_max").is_none(), "{throttled}");
    assert!(client.node("d").get("group").is_none());
    program.stop();
}

#[test]
fn a_group_is_removed_when_no_node_is_a_member() {
    let (_folder, program, mut client) = start_with_disk("--blockdev null-co,node-name=n");
    let node = "driver=throttle node-name=t file=n throttle-group";
    let add = format!("blockdev-add {node}=g");
    let absent = client.error_of(&add);
    assert_eq!(absent, "Throttle group 'g' does not exist");
    client.execute(
        "object-add qom-type=throttle-group id=g limits.iops-total=100
         object-add qom-type=throttle-group id=h limits.iops-total=100",
    );
    client.execute(&add);
    client.assert_errors(
        "object-add qom-type=throttle-group id=g => attempt to add duplicate property 'g'
         object-del id=g => object 'g' is in use, can not be deleted: node 't' is a member",
    );
    let absent = client.reopen_error(&format!("{node}=i"));
    assert_eq!(absent, "Throttle group 'i' does not exist");
    client.reopen(&format!("{node}=h"));
    client.execute("object-del id=g");
    assert_eq!(client.node("t")["group"], "h");
    client.error_of("object-del id=h");
    client.execute(
        "blockdev-del node-name=t
         object-del id=h",
    );
    let listed = client.execute("qom-list path=/objects");
    assert!(!listed.to_string().contains("throttle-group"), "{listed}");
    program.stop();
}

#[test]
fn requests_that_wait_are_shown_and_pass_when_the_limit_is_removed() {
    let (folder, program, mut client, mut guest) = started(LINE);
    fill_queue(&mut client, &mut guest);
    let shown = client.export("e")["throttle"].take();
    assert_eq!([&shown[0]["node-name"], &shown[0]["group"]], ["t", "g"]);
    assert_eq!(shown[0]["waiting"], SLOTS - 1, "{shown}");
    let hits = shown[0]["limit-hits"]["bps-total"].as_u64();
    assert!(hits > Some(0), "{shown}");

    client.execute(&format!("{SET_LIMITS} value.bps-total=0"));
    assert_written(&folder, &mut guest);
    let shown = client.export("e")["throttle"].take();
    let counts = [&shown[0]["waiting"], &shown[0]["waited"]];
    assert_eq!(counts, [0, SLOTS - 1]);
    let by_time = shown[0]["waits"]["counts"].as_array().unwrap().iter();
    let waits: u64 = by_time.filter_map(Value::as_u64).sum();
    assert_eq!(waits, SLOTS as u64 - 1, "{shown}");
    let stats = client.block_stats("e");
    assert_eq!(shown, stats["throttle"], "both queries show the same");

    // A new limit is for the next requests.
    client.execute(&format!("{SET_LIMITS} value.bps-total=1"));
    guest.ask_all(0, OUT, [(0, 1), (1, 1)]);
    eventually_ok("a request waits", || {
        let stats = throttle_stats(&mut client);
        let one_waits = stats["waiting"].as_u64() > Some(0);
        one_waits.then_some(()).ok_or(stats)
    });

    // Those of all units of a SCSI controller are shown; none without limits.
    client.execute(
        "blockdev-add driver=null-co node-name=n
         blockdev-add driver=null-co node-name=m
         blockdev-add driver=throttle node-name=u throttle-group=g file=n
         block-export-add type=vhost-user-scsi id=s luns.0.node-name=m luns.1.node-name=u addr.type=unix addr.path=s
         block-export-add type=vhost-user-scsi id=plain luns.0.node-name=m addr.type=unix addr.path=plain",
    );
    let shown = client.export("s")["throttle"].take();
    assert_eq!(shown.as_array().unwrap().len(), 1, "{shown}");
    assert_eq!(shown[0]["node-name"], "u");
    assert_eq!(client.export("plain").get("throttle"), None);
    program.stop();
}

#[test]
fn a_queue_that_stops_does_not_wait_for_the_budget() {
    let (folder, program, mut client, mut guest) = started(LINE);
    fill_queue(&mut client, &mut guest);
    guest.stop(0);
    assert!((1..SLOTS).all(|slot| guest.is_answered(0, slot)));
    assert_written(&folder, &mut guest);
    program.stop();
}

/// COMPARE AND WRITE excludes other such commands of its unit: the second waits for the first, which waits for the budget.
#[test]
fn a_queue_that_stops_does_not_wait_for_the_budget_of_another_queue() {
    let line = LINE.replace("vhost-user-blk", "vhost-user-scsi,num-queues=2");
    let (folder, program, mut client) = start_with_disk(&line);
    let mut guest = RequestDriver::connect_scsi(&folder.join("e.sock"), 2);
    let unit = (0, 0);
    // The first command reports that the unit was switched on.
    assert_eq!([2, 0], [(); 2].map(|()| guest.command(2, unit, &[0; 6])));
    let mut compare_and_write = [0; 16];
    (compare_and_write[0], compare_and_write[13]) = (0x89, 1);
    for queue in [3, 2] {
        guest.begin(queue, unit, &compare_and_write, Data::Out(&[0; 1024]));
        eventually_ok("it was taken, and the first one waits", || {
            let stats = client.block_stats("e");
            let depth = &stats["queues"][queue as usize]["depth"];
            let is_so = *depth == 1 && stats["throttle"][0]["waiting"] == 1;
            is_so.then_some(()).ok_or(stats)
        });
    }
    guest.stop(2);
    assert!(guest.is_answered(2, 0));
    guest.watch(3, 0);
    program.stop();
}

#[test]
fn the_end_of_the_daemon_does_not_wait_for_the_budget() {
    let (folder, program, mut client, mut guest) = started(LINE);
    fill_queue(&mut client, &mut guest);
    drop(client);
    program.stop().assert_success();
    assert_written(&folder, &mut guest);
}

#[test]
fn a_throttled_node_that_is_taken_away_does_not_keep_its_requests() {
    let line = LINE.replace("--export", "--blockdev raw,node-name=r,file=t --export");
    let line = line.replace("node-name=t,addr", "node-name=r,addr");
    let (folder, program, mut client, mut guest) = started(&line);
    fill_queue(&mut client, &mut guest);
    client.reopen("driver=raw node-name=r file=d");
    client.execute(
        "blockdev-del node-name=t
         object-del id=g",
    );
    assert_written(&folder, &mut guest);
    program.stop();
}

#[test]
fn a_node_that_is_reopened_keeps_its_debts_and_statistics() {
    let (_folder, program, mut client, mut guest) = started(LINE);
    fill_queue(&mut client, &mut guest);
    client.reopen("driver=throttle node-name=t throttle-group=g file=d discard=unmap");
    guest.watch_all(0);
    let stats = throttle_stats(&mut client);
    assert_eq!(stats["waited"], SLOTS - 1, "{stats}");
    guest.ask(0, 0, OUT, 0, 1);
    eventually_ok("the next request pays for those", || {
        let stats = throttle_stats(&mut client);
        (stats["waiting"] == 1).then_some(()).ok_or(stats)
    });
    program.stop();
}
