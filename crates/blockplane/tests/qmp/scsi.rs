//! A virtio SCSI controller is seen as disks are: by units, queues and nodes, in figures, metrics and `top`.

use blockplane::operator::client::Client as Monitor;
use blockplane::operator::interval_load::DaemonLoad;
use blockplane::operator::sample::Sample;
use serde_json::{Value, json};
use test_support::deadline::eventually;

use crate::client::Client;
use crate::guest::Guest;
use crate::process::{Folder, STUCK_AFTER};
use crate::prometheus_client::{Figures, OPENMETRICS, has_parser};
use crate::start;

const TEST_UNIT_READY: [u8; 6] = [0; 6];
const SYNCHRONIZE_CACHE: [u8; 10] = [0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Two units on two iothreads, which run the queues for commands in turn, and a disk that shows one of the nodes as well.
const LINE: &str = "--metrics unix:m --object iothread,id=io0 --object iothread,id=io1 \
    --blockdev null-co,node-name=a,size=1M --blockdev null-co,node-name=b,size=1M \
    --export vhost-user-scsi,id=v,writable=on,num-queues=2,addr.type=unix,addr.path=v.sock,\
iothread.0=io0,iothread.1=io1,luns.0.node-name=a,luns.1.node-name=b,luns.1.target=2,luns.1.lun=5 \
    --export vhost-user-blk,id=e,node-name=b,writable=on,addr.type=unix,addr.path=e.sock";

const FIRST: (u8, u8) = (0, 0);
const SECOND: (u8, u8) = (2, 5);

/// A read or write of 4096 bytes.
fn transfer(opcode: u8, lba: u32) -> [u8; 10] {
    let [a, b, c, d] = lba.to_be_bytes();
    [opcode, 0, a, b, c, d, 0, 0, 8, 0]
}

fn read(lba: u32) -> [u8; 10] {
    transfer(0x28, lba)
}

fn write(lba: u32) -> [u8; 10] {
    transfer(0x2a, lba)
}

/// A guest whose units have said that they were switched on.
fn plug(folder: &Folder) -> Guest {
    let mut guest = Guest::connect_scsi(&folder.join("v.sock"), 2);
    for unit in [FIRST, SECOND] {
        assert_eq!(guest.command(2, unit, &TEST_UNIT_READY), 2);
        assert_eq!(guest.command(2, unit, &TEST_UNIT_READY), 0);
    }
    guest
}

/// Some of everything: to each unit by each queue.
fn work(guest: &mut Guest) {
    for block in 0..10 {
        assert_eq!(guest.command(2, FIRST, &read(block * 8)), 0);
        assert_eq!(guest.command(3, FIRST, &read(block * 8)), 0);
        assert_eq!(guest.command(3, SECOND, &write(block * 8)), 0);
    }
    assert_eq!(guest.command(2, SECOND, &SYNCHRONIZE_CACHE), 0);
    // Beyond the end.
    assert_eq!(guest.command(3, SECOND, &read(2048)), 2);
}

/// Reads, writes, flushes, and reads that were refused.
fn counts(entry: &Value) -> [u64; 4] {
    [
        "rd_operations",
        "wr_operations",
        "flush_operations",
        "invalid_rd_operations",
    ]
    .map(|name| entry["stats"][name].as_u64().unwrap())
}

fn export(client: &mut Client) -> Value {
    client.done("query-blockstats", json!({}))[0].take()
}

#[test]
fn scsi_statistics_agree_across_units_queues_and_nodes() {
    let folder = Folder::new();
    let (program, mut client) = start(&folder, LINE);
    let mut guest = plug(&folder);
    work(&mut guest);
    let mut other = Guest::connect(&folder.join("e.sock"), 1);
    other.request(0, crate::guest::OUT, 0, 0);
    let shown = export(&mut client);
    assert_eq!(counts(&shown), [20, 10, 1, 1]);
    assert_eq!(counts(&shown["queues"][2]), [10, 0, 1, 0]);
    assert_eq!(counts(&shown["queues"][3]), [10, 10, 0, 1]);
    let [first, second] = [&shown["luns"][0], &shown["luns"][1]];
    assert_eq!(
        (counts(first), counts(second)),
        ([20, 0, 0, 0], [0, 10, 1, 1])
    );
    assert_eq!(
        [
            &second["target"],
            &second["lun"],
            &second["node-name"],
            &second["depth"]
        ],
        [&json!(2), &json!(5), &json!("b"), &json!(0)]
    );
    assert_eq!(second["stats"]["wr_bytes"], json!(10 * 4096));
    assert_eq!(second["stats"]["wr_highest_offset"], json!(10 * 4096));
    let latencies = first["latency"]["read"]["counts"].as_array().unwrap();
    assert_eq!(latencies.iter().filter_map(Value::as_u64).sum::<u64>(), 20);

    let nodes = client.done("query-blockstats", json!({"query-nodes": true}));
    // With what the other export did to it.
    assert_eq!(
        (counts(&nodes[0]), counts(&nodes[1])),
        ([20, 0, 0, 0], [0, 11, 1, 1])
    );

    // What comes to the place of another counts from nothing.
    client.done("scsi-lun-del", json!({"id": "v", "target": 2, "lun": 5}));
    client.done(
        "scsi-lun-add",
        json!({"id": "v", "node-name": "b", "target": 2, "lun": 5}),
    );
    assert_eq!(guest.command(2, SECOND, &TEST_UNIT_READY), 2);
    eventually("the second unit is ready", || {
        guest.command(2, SECOND, &TEST_UNIT_READY) == 0
    });
    guest.command(2, SECOND, &write(0));
    let shown = export(&mut client);
    assert_eq!(counts(&shown["luns"][1]), [0, 1, 0, 0]);
    assert_eq!(counts(&shown), [20, 11, 1, 1]);
    program.stop();
}

#[test]
fn histograms_count_requests_of_scsi_units() {
    let folder = Folder::new();
    let (program, mut client) = start(&folder, LINE);
    let mut guest = plug(&folder);
    let boundaries = json!({"id": "v", "boundaries": [u64::MAX]});
    client.done("block-latency-histogram-set", boundaries);
    work(&mut guest);
    let stats = export(&mut client)["stats"].take();
    for (name, count) in [
        ("rd_latency_histogram", 20),
        ("wr_latency_histogram", 10),
        ("flush_latency_histogram", 1),
    ] {
        assert_eq!(stats[name]["bins"], json!([count, 0]), "{name}");
    }
    program.stop();
}

#[test]
fn metrics_have_series_for_scsi_units() {
    if !has_parser() {
        return;
    }
    let folder = Folder::new();
    let (program, _client) = start(&folder, LINE);
    work(&mut plug(&folder));
    let figures = Figures::scrape(&folder.join("m"), OPENMETRICS);
    let unit = |op: &str| json!({"export": "v", "target": "2", "lun": "5", "node": "b", "op": op});
    assert_eq!(
        figures.one("blockplane_lun_operations_total", unit("write")),
        10.0
    );
    assert_eq!(
        figures.one("blockplane_lun_transferred_bytes_total", unit("write")),
        40_960.0
    );
    assert_eq!(
        figures.one("blockplane_lun_latency_seconds_count", unit("write")),
        10.0
    );
    let mut refused = unit("read");
    refused["kind"] = "invalid".into();
    assert_eq!(figures.one("blockplane_lun_errors_total", refused), 1.0);
    let queue = json!({"export": "v", "queue": "3", "op": "write"});
    assert_eq!(
        figures.one("blockplane_queue_operations_total", queue),
        10.0
    );
    program.stop();
}

#[test]
fn top_has_a_row_for_each_scsi_unit() {
    let folder = Folder::new();
    let (program, _client) = start(&folder, LINE);
    let mut guest = plug(&folder);
    let mut monitor = Monitor::connect(&folder.join("qmp"), Some(STUCK_AFTER)).unwrap();
    let mut look = || Sample::take(&mut monitor).unwrap();
    let before = look();
    work(&mut guest);
    let export = DaemonLoad::between(&before, &look()).to_json()["exports"][0].take();
    assert_eq!(
        (&export["reads"], &export["writes"]),
        (&json!(20), &json!(10))
    );
    let luns = export["luns"].as_array().unwrap();
    let rows: Vec<_> = luns
        .iter()
        .map(|lun| {
            (
                &lun["target"],
                &lun["lun"],
                &lun["node-name"],
                &lun["reads"],
                &lun["writes"],
            )
        })
        .map(|row| json!([row.0, row.1, row.2, row.3, row.4]))
        .collect();
    assert_eq!(rows, [json!([0, 0, "a", 20, 0]), json!([2, 5, "b", 0, 10])]);
    program.stop();
}

#[test]
fn scsi_exports_have_properties() {
    let folder = Folder::new();
    let (program, mut client) = start(&folder, LINE);
    let mut get = |property: &str| {
        client.done(
            "qom-get",
            json!({"path": "/exports/v", "property": property}),
        )
    };
    assert_eq!(get("type"), "vhost-user-scsi");
    assert_eq!([get("num-queues"), get("queue-size")], [2, 1024]);
    let luns = get("luns");
    assert_eq!(
        (&luns[1]["node-name"], &luns[1]["target"]),
        (&json!("b"), &json!(2))
    );
    let list = client.done("qom-list", json!({"path": "/exports"}));
    assert_eq!(
        list[1],
        json!({"name": "v", "type": "child<vhost-user-scsi>"})
    );
    let set = json!({"path": "/exports/v", "property": "num-queues", "value": 3});
    let refused = client.fails("qom-set", set);
    assert_eq!(
        refused,
        "Property 'vhost-user-scsi.num-queues' is not writable"
    );
    for kind in ["vhost-user-scsi", "vfio-user-lsi53c895a"] {
        let all = client.done("qom-list-properties", json!({"typename": kind}));
        assert!(
            all.as_array()
                .unwrap()
                .iter()
                .any(|one| one["name"] == "luns")
        );
    }
    program.stop();
}
