//! A virtio SCSI controller is seen as disks are: by units, queues and nodes, in figures, metrics and `top`. Its units come and go.

use blockplane::operator::client::Client as Monitor;
use blockplane::operator::interval_load::DaemonLoad;
use blockplane::operator::sample::Sample;
use serde_json::{Value, json};
use test_support::deadline::eventually;
use test_support::prometheus_client::{Figures, OPENMETRICS, has_parser};

use crate::process::STUCK_AFTER;
use crate::request_driver::{OUT, RequestDriver};
use crate::start_with_disk;

const TEST_UNIT_READY: [u8; 6] = [0; 6];
const SYNCHRONIZE_CACHE: [u8; 10] = [0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Two units on two iothreads, which run the queues for commands in turn, and a disk that shows one of the nodes as well. That node
/// is in front of another one.
const LINE: &str = "--metrics unix:m --object iothread,id=io0 --object iothread,id=io1 \
    --blockdev null-co,node-name=a,size=1M --blockdev null-co,node-name=below,size=1M \
    --blockdev raw,node-name=b,file=below \
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

/// Some of everything: to each unit by each queue.
fn work(guest: &mut RequestDriver) {
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

#[test]
fn scsi_figures_agree_across_units_queues_and_nodes() {
    let (folder, program, mut client) = start_with_disk(LINE);
    let mut guest = RequestDriver::connect_scsi(&folder.join("v.sock"), 2);
    for unit in [FIRST, SECOND] {
        // The first command reports that the unit was switched on.
        for status in [2, 0] {
            assert_eq!(guest.command(2, unit, &TEST_UNIT_READY), status);
        }
    }
    let boundaries = json!({"id": "v", "boundaries": [u64::MAX]});
    client.done("block-latency-histogram-set", boundaries);
    let mut monitor = Monitor::connect(&folder.join("qmp"), Some(STUCK_AFTER)).unwrap();
    let mut look = || Sample::take(&mut monitor).unwrap();
    let before = look();
    work(&mut guest);

    let top = DaemonLoad::between(&before, &look()).to_json()["exports"][0].take();
    assert_eq!((&top["reads"], &top["writes"]), (&json!(20), &json!(10)));
    let row = |lun: &Value| -> Value {
        let keys = ["target", "lun", "node-name", "reads", "writes"];
        keys.iter().map(|key| lun[*key].clone()).collect()
    };
    let rows: Vec<Value> = top["luns"].as_array().unwrap().iter().map(row).collect();
    assert_eq!(rows, [json!([0, 0, "a", 20, 0]), json!([2, 5, "b", 0, 10])]);

    let shown = client.block_stats("v");
    assert_eq!(counts(&shown), [20, 10, 1, 1]);
    assert_eq!(counts(&shown["queues"][2]), [10, 0, 1, 0]);
    assert_eq!(counts(&shown["queues"][3]), [10, 10, 0, 1]);
    let [first, second] = [&shown["luns"][0], &shown["luns"][1]];
    assert_eq!(counts(first), [20, 0, 0, 0]);
    assert_eq!(counts(second), [0, 10, 1, 1]);
    assert_eq!(second["depth"], 0);
    assert_eq!(second["stats"]["wr_bytes"], 10 * 4096);
    assert_eq!(second["stats"]["wr_highest_offset"], 10 * 4096);
    let latencies = first["latency"]["read"]["counts"].as_array().unwrap();
    assert_eq!(latencies.iter().filter_map(Value::as_u64).sum::<u64>(), 20);
    for (kind, count) in [("rd", 20), ("wr", 10), ("flush", 1)] {
        let histogram = &shown["stats"][format!("{kind}_latency_histogram")];
        assert_eq!(histogram["bins"], json!([count, 0]), "{kind}");
    }

    // A node counts what the other export does to it as well.
    RequestDriver::connect(&folder.join("e.sock"), 1).request(0, OUT, 0, 0);
    let nodes = client.execute("query-blockstats query-nodes=true");
    assert_eq!(counts(&nodes[0]), [20, 0, 0, 0]);
    assert_eq!(counts(&nodes[1]), [0; 4]);
    assert_eq!(counts(&nodes[2]), [0, 11, 1, 1]);
    assert_eq!(nodes[2]["node-name"], "b");
    assert_eq!(nodes[2]["parent"]["node-name"], "below");

    if has_parser() {
        client.execute("query-iothreads");
        let figures = Figures::scrape(&folder.join("m"), OPENMETRICS);
        for (sample, expected) in [
            ("lun_operations_total{lun=5,node=b,op=write}", 10.0),
            ("lun_transferred_bytes_total{target=2,op=write}", 40_960.0),
            ("lun_latency_seconds_count{export=v,lun=5,op=write}", 10.0),
            ("lun_errors_total{lun=5,op=read,kind=invalid}", 1.0),
            ("queue_operations_total{queue=3,op=write}", 10.0),
        ] {
            assert_eq!(figures.sample(sample), expected, "{sample}");
        }
    }

    // What comes to the place of another counts from nothing.
    client.execute(
        "scsi-lun-del id=v target=2 lun=5
         scsi-lun-add id=v node-name=b target=2 lun=5",
    );
    assert_eq!(guest.command(2, SECOND, &TEST_UNIT_READY), 2);
    eventually("the second unit is ready", || {
        guest.command(2, SECOND, &TEST_UNIT_READY) == 0
    });
    guest.command(2, SECOND, &write(0));
    let shown = client.block_stats("v");
    assert_eq!(counts(&shown["luns"][1]), [0, 1, 0, 0]);
    assert_eq!(counts(&shown), [20, 11, 1, 1]);
    program.stop();
}

const DISKS: &str = "--blockdev null-co,node-name=a,size=1M --blockdev null-co,node-name=b,size=1M \
    --blockdev null-co,node-name=r,size=1M,read-only=on";

#[test]
fn luns_are_added_and_removed_beside_another_controller() {
    let (_folder, program, mut client) = start_with_disk(DISKS);
    // One has no disk yet; the other one has the same node as its only one.
    client.execute(
        "block-export-add type=vhost-user-scsi id=v writable=true addr.type=unix addr.path=v.sock
         block-export-add type=vfio-user-lsi53c895a id=l luns.0.node-name=b addr.type=unix addr.path=l.sock",
    );
    assert_eq!(client.export("v")["type"], "vhost-user-scsi");
    assert_eq!(client.export("l")["type"], "vfio-user-lsi53c895a");
    client.execute(
        "scsi-lun-add id=v node-name=a target=1
         scsi-lun-add id=v node-name=b target=1",
    );
    client.assert_errors(
        "blockdev-del node-name=a => Node a is in use by export 'v'
         scsi-lun-add id=v node-name=a target=1 lun=1 => is node 'b' already
         scsi-lun-add id=v node-name=a lun=16384 => [0, 16383]
         scsi-lun-add id=v node-name=r => is read-only
         scsi-lun-add id=v node-name=x => node-name='x'
         scsi-lun-add id=l node-name=a => only in one of type 'vhost-user-scsi'
         scsi-lun-add id=x node-name=a => is not found
         scsi-lun-del id=v target=1 lun=2 => no LUN 2 at target 1",
    );
    client.execute(
        "scsi-lun-add id=v node-name=r writable=false
         scsi-lun-del id=v target=1 lun=0
         blockdev-del node-name=a
         scsi-lun-del id=v target=1 lun=1",
    );
    client.assert_errors("blockdev-del node-name=b => Node b is in use by export 'l'");
    for id in ["l", "v"] {
        client.execute(&format!("block-export-del id={id}"));
        client.event("BLOCK_EXPORT_DELETED", id);
    }
    client.execute(
        "blockdev-del node-name=b
         blockdev-del node-name=r",
    );
    program.stop();
}
