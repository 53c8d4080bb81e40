//! Tests of tracepoints: commands of a virtio SCSI controller, and a disk's requests beside them.

use test_support::tracer::{Hit, Tracer};

use crate::request_driver::{GET_ID, OUT, RequestDriver};
use crate::start_with_disk;

/// Their names are no other test's.
const LINE: &str = "--blockdev null-co,node-name=a,size=1M --blockdev null-co,node-name=b,size=1M \
    --export vhost-user-scsi,id=traced-scsi,writable=on,num-queues=2,addr.type=unix,addr.path=v.sock,\
luns.0.node-name=a,luns.1.node-name=b,luns.1.target=2,luns.1.lun=5 \
    --export vhost-user-blk,id=traced-blk,node-name=b,writable=on,addr.type=unix,addr.path=e.sock";

const UNIT: (u8, u8) = (2, 5);

/// A read of 4096 bytes.
fn read(lba: u16) -> [u8; 10] {
    let [high, low] = lba.to_be_bytes();
    [0x28, 0, 0, 0, high, low, 0, 0, 8, 0]
}

/// Without what is another number each time: the request's name, and how long it took.
fn steps(hits: &[Hit]) -> Vec<(&str, Vec<u64>)> {
    let step = |hit: &Hit| {
        let mut arguments = hit.arguments.clone();
        arguments.remove(1);
        if hit.probe == "request_complete" {
            arguments.pop();
        }
        arguments
    };
    hits.iter()
        .map(|hit| (hit.probe.as_str(), step(hit)))
        .collect()
}

fn with_probe(hits: Vec<Hit>, probe: &str) -> (Vec<Hit>, Vec<Hit>) {
    hits.into_iter().partition(|hit| hit.probe == probe)
}

#[test]
fn probes_fire_for_each_command_and_request() {
    let probes = [
        "request_start",
        "request_submit",
        "request_complete",
        "request_answer",
        "scsi_command",
        "scsi_status",
        "notify",
    ];
    let (folder, program, _client) = start_with_disk(LINE);
    let mut guest = RequestDriver::connect_scsi(&folder.join("v.sock"), 2);
    let mut other = RequestDriver::connect(&folder.join("e.sock"), 1);
    let Some(tracer) = Tracer::attach(&probes, &["traced-scsi", "traced-blk"]) else {
        return;
    };
    assert_eq!(guest.command(2, UNIT, &[0; 6]), 2);
    assert_eq!(guest.command(3, UNIT, &read(16)), 0);
    assert_eq!(guest.command(3, UNIT, &read(2048)), 2);
    other.request(0, OUT, 1, 0x11);
    other.request(0, GET_ID, 0, 0);
    program.stop();

    let (probed, hits) = with_probe(tracer.hits("traced-scsi"), "notify");
    // Queue, then what the page on tracing says: 29/00 is the unit's word that it was switched on, 21/00 that there is no such block.
    assert_eq!(
        steps(&hits),
        [
            ("request_start", vec![2, 256, 0, 0]),
            ("scsi_command", vec![2, 2, 5, 0]),
            ("request_answer", vec![2, 1]),
            ("scsi_status", vec![2, 0, 2, 0x06_2900]),
            ("request_start", vec![3, 0, 16, 4096]),
            ("scsi_command", vec![3, 2, 5, 0x28]),
            ("request_submit", vec![3, 0, 16, 4096]),
            ("request_complete", vec![3, 0, 0]),
            ("scsi_status", vec![3, 0, 0, 0]),
            ("request_start", vec![3, 0, 2048, 4096]),
            ("scsi_command", vec![3, 2, 5, 0x28]),
            ("request_answer", vec![3, 1]),
            ("scsi_status", vec![3, 0, 2, 0x05_2100]),
        ]
    );
    let of_disk: u64 = probed.iter().map(|hit| hit.arguments[1]).sum();
    assert_eq!(of_disk, 1, "{probed:?}");

    let (probed, hits) = with_probe(tracer.hits("traced-blk"), "notify");
    assert_eq!(
        steps(&hits),
        [
            ("request_start", vec![0, 1, 8, 4096]),
            ("request_submit", vec![0, 1, 8, 4096]),
            ("request_complete", vec![0, 1, 0]),
            ("request_start", vec![0, 8, 0, 4096]),
            ("request_answer", vec![0, 0]),
        ]
    );
    let of_disk: u64 = probed.iter().map(|hit| hit.arguments[1]).sum();
    assert_eq!(of_disk, 1, "{probed:?}");
}
