//! Real guests with an LSI 53C895A, in a QEMU that has vfio-user: Linux with the driver that it has for it, and the
//! firmware that boots from its disk.

#![allow(clippy::unwrap_used)] // the lint's exception for tests does not reach helper functions

use std::time::Duration;

use guest::{Boot, Chipset, Device, Scenario, Server, ServerOptions};
use serde_json::Value;

const SIZE_BYTES: u64 = 128 << 20;

fn options(folder: &tempfile::TempDir, slow: Option<Duration>) -> ServerOptions {
    let mut options = ServerOptions::new(&folder.path().join("disk.img"), SIZE_BYTES);
    options.device = Device::HostAdapter { slow };
    options.monitor = true;
    options
}

fn start(options: &ServerOptions) -> Server {
    Server::start(&guest::blockplane().unwrap(), options).unwrap_or_else(|error| panic!("{error}"))
}

/// What the server counted.
fn figures(server: &Server) -> Value {
    let reply = server
        .query("query-blockstats", "{}")
        .unwrap_or_else(|error| panic!("{error}"));
    serde_json::from_str::<Value>(&reply).unwrap()["return"][0].take()
}

/// Tagged queueing, files by many writers at once, resets of the device, the bus and the adapter, and a command that is
/// called back.
#[test]
fn linux_uses_the_disk_with_many_commands_at_once_and_through_resets_and_aborts() {
    let folder = guest::disk_folder().unwrap();
    let server = start(&options(&folder, Some(Duration::from_secs(3))));
    let (mut before, mut after, mut depth) = (Value::Null, Value::Null, None);
    let report = Boot::new(&server, Scenario::HostAdapter)
        .run_asking(|question| match question {
            "before_large" => before = figures(&server),
            "after_large" => after = figures(&server),
            "busy" => depth = figures(&server)["queues"][0]["depth"].as_u64(),
            other => panic!("{other}?"),
        })
        .unwrap_or_else(|error| panic!("{error}"));
    let facts = [
        ("driver", "sym53c8xx"),
        ("vendor", "BLKPLANE"),
        ("serial", "BP-GUEST-0001"),
        ("tags", "simple"),
        ("queue_depth", "16"),
        ("files", "24"),
        ("slow_state", "running"),
    ];
    for (key, value) in facts {
        assert_eq!(report.fact(key), Some(value), "{key}");
    }
    assert_ne!(report.fact("aborts"), Some("0"));
    // A request of the guest's is one of the node's, also when it is large.
    let written =
        |key: &str| after["stats"][key].as_u64().unwrap() - before["stats"][key].as_u64().unwrap();
    assert_eq!(written("wr_bytes"), 64 * (64 << 10));
    assert_eq!(written("wr_operations"), 64);
    assert!(depth >= Some(16), "at the node: {depth:?}");
    server.stop().unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn the_firmware_boots_a_guest_from_the_disk() {
    let folder = guest::disk_folder().unwrap();
    let options = options(&folder, None);
    guest::boot_disk(&options.disk, SIZE_BYTES, Scenario::Booted, None)
        .unwrap_or_else(|error| panic!("{error}"));
    let server = start(&options);
    let report = Boot::new(&server, Scenario::Booted)
        .chipset(Chipset::Pc)
        .from_disk()
        .run()
        .unwrap_or_else(|error| panic!("{error}"));
    // The loader's kernel and not QEMU's: it says where it is from.
    let command_line = report.fact("command_line").unwrap();
    assert!(
        command_line.starts_with("BOOT_IMAGE=(hd0,msdos1)/vmlinuz "),
        "{command_line}"
    );
    assert_eq!(report.fact("driver"), Some("sym53c8xx"));
    assert_eq!(report.fact("size_bytes"), Some("134217728"));
    server.stop().unwrap_or_else(|error| panic!("{error}"));
}
