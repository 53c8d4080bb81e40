//! A SCSI controller in a real guest: four queues, units on two targets, one that comes and goes, one that grows; resets while
//! all are used.

#![allow(clippy::unwrap_used)] // the lint's exception for tests does not reach helper functions

use std::time::Duration;

use guest::{Boot, Device, Scenario, Server, ServerOptions};

const SIZE_BYTES: u64 = 64 << 20;

#[test]
fn a_guest_uses_the_units_of_a_controller() {
    let folder = guest::disk_folder().unwrap();
    let mut options = ServerOptions::new(&folder.path().join("disk.img"), SIZE_BYTES);
    options.num_queues = 4;
    options.monitor = true;
    options.device = Device::Controller { slow: None };
    let server = Server::start(&guest::blockplane().unwrap(), &options)
        .unwrap_or_else(|error| panic!("{error}"));
    let report = Boot::new(&server, Scenario::Controller)
        .run_asking(|question| {
            let (command, arguments) = match question {
                "add" => (
                    "scsi-lun-add",
                    r#"{"id": "e", "node-name": "spare", "target": 1, "lun": 7}"#,
                ),
                "delete" => ("scsi-lun-del", r#"{"id": "e", "target": 1, "lun": 7}"#),
                "grow" => (
                    "block_resize",
                    r#"{"node-name": "third", "size": 134217728}"#,
                ),
                other => panic!("{other}?"),
            };
            server
                .execute(command, arguments)
                .unwrap_or_else(|error| panic!("{error}"));
        })
        .unwrap_or_else(|error| panic!("{error}"));
    for (fact, expected) in [
        ("units", "3"),
        ("queues", "4"),
        ("vendor", "BLKPLANE"),
        ("write_cache", "write_back"),
        ("size_bytes", "67108864"),
        ("third_bytes", "67108864"),
        ("grown_bytes", "134217728"),
    ] {
        assert_eq!(report.fact(fact), Some(expected), "{fact}");
    }
    let discard: u64 = report.fact("discard_max_bytes").unwrap().parse().unwrap();
    assert!(discard > 0, "space is freed");
    server.stop().unwrap_or_else(|error| panic!("{error}"));
}

/// Neither what a disk has under way nor what others write is lost when its unit is reset.
#[test]
fn units_are_reset_while_a_guest_uses_them() {
    let folder = guest::disk_folder().unwrap();
    let mut options = ServerOptions::new(&folder.path().join("disk.img"), SIZE_BYTES);
    options.num_queues = 2;
    options.monitor = true;
    options.device = Device::Controller {
        slow: Some(Duration::from_secs(3)),
    };
    let server = Server::start(&guest::blockplane().unwrap(), &options)
        .unwrap_or_else(|error| panic!("{error}"));
    let report = Boot::new(&server, Scenario::ControllerResets)
        .limit(Duration::from_secs(400))
        .run()
        .unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(report.fact("files"), Some("24"));
    assert_eq!(report.fact("slow_state"), Some("running"));
    server.stop().unwrap_or_else(|error| panic!("{error}"));
}
