//! A SCSI controller in a real guest: four queues, units on two targets, one that comes and goes, one that grows; resets while
//! all are used.

use guest::{Boot, Device};
use serde_json::json;

use crate::{disk, serve};

/// Neither what a disk has under way nor what others write is lost when its unit is reset.
#[test]
fn guest_uses_the_units_of_a_controller_and_resets_them() {
    let (_folder, mut options) = disk(64 << 20);
    options.num_queues = 4;
    options.monitor = true;
    options.device = Device::Controller;
    options.has_held_disk = true;
    let server = serve(&options);
    let unit = json!({"id": "e", "node-name": "spare", "target": 1, "lun": 7});
    let report = Boot::new(&server, "controller,controller_resets")
        .run_asking(|question, _| {
            let (command, arguments) = match question {
                "hold" | "release" => return server.hold(question == "hold").unwrap(),
                "add" => ("scsi-lun-add", unit.clone()),
                "delete" => ("scsi-lun-del", json!({"id": "e", "target": 1, "lun": 7})),
                "grow" => (
                    "block_resize",
                    json!({"node-name": "third", "size": 134_217_728}),
                ),
                other => panic!("{other}?"),
            };
            server.query(command, &arguments).unwrap();
        })
        .unwrap();
    server.stop().unwrap();
    for (fact, expected) in [
        ("units", "4"),
        ("queues", "4"),
        ("vendor", "BLKPLANE"),
        ("write_cache", "write_back"),
        ("size_bytes", "67108864"),
        ("third_bytes", "67108864"),
        ("grown_bytes", "134217728"),
        ("files", "8"),
        ("held_state", "running"),
    ] {
        assert_eq!(report.fact(fact), Some(expected), "{fact}");
    }
    let discard: u64 = report.fact("discard_max_bytes").unwrap().parse().unwrap();
    assert!(discard > 0, "space is freed");
}
