//! An LSI 53C895A in a real guest, in a QEMU that has vfio-user: Linux uses it with its driver for it, and firmware boots from its
//! disk.

use guest::{Boot, Device};
use serde_json::{Value, json};

use crate::{disk, serve, wait_until};

const SIZE_BYTES: u64 = 192 << 20;

/// Tagged queueing, files by many writers at once, resets of the device, the bus and the adapter, and a command that is
/// called back.
#[test]
fn linux_uses_the_disk_with_many_commands_at_once_and_through_resets_and_aborts() {
    let (_folder, mut options) = disk(SIZE_BYTES);
    options.monitor = true;
    options.device = Device::HostAdapter;
    options.has_held_disk = true;
    let server = serve(&options);
    // What the server counted.
    let figures = || server.query("query-blockstats", &json!({})).unwrap()[0].take();
    let (mut before, mut after) = (Value::Null, Value::Null);
    let report = Boot::new(&server, "host_adapter")
        .run_asking(|question, _| match question {
            "hold" | "release" => server.hold(question == "hold").unwrap(),
            "before_large" => before = figures(),
            "after_large" => after = figures(),
            "busy" => wait_until("all is at the node", || {
                figures()["queues"][0]["depth"].as_u64() >= Some(16)
            }),
            other => panic!("{other}?"),
        })
        .unwrap();
    server.stop().unwrap();
    for (fact, expected) in [
        ("driver", "sym53c8xx"),
        ("vendor", "BLKPLANE"),
        ("serial", "BP-GUEST-0001"),
        ("tags", "simple"),
        ("queue_depth", "16"),
        ("files", "8"),
        ("held_state", "running"),
    ] {
        assert_eq!(report.fact(fact), Some(expected), "{fact}");
    }
    assert_ne!(report.fact("aborts"), Some("0"));
    // A request of the guest's is one of the node's, also when it is large.
    let written =
        |key: &str| after["stats"][key].as_u64().unwrap() - before["stats"][key].as_u64().unwrap();
    assert_eq!(written("wr_bytes"), 64 * (64 << 10));
    assert_eq!(written("wr_operations"), 64);
}

/// Behind the older chipset, for whose interrupts SeaBIOS has a driver for this adapter.
#[test]
#[ignore = "full run only"]
fn firmware_boots_linux_from_the_disk() {
    let (_folder, mut options) = disk(SIZE_BYTES);
    options.device = Device::HostAdapter;
    guest::boot_disk(&options.disk, SIZE_BYTES, "installed", None).unwrap();
    let server = serve(&options);
    let boot = Boot::new(&server, "installed").pc().from_disk();
    let report = boot.run().unwrap();
    server.stop().unwrap();
    // The loader's kernel and not QEMU's: it says where it is from.
    let command_line = report.fact("command_line").unwrap();
    let begin = "BOOT_IMAGE=(hd0,msdos1)/vmlinuz ";
    assert!(command_line.starts_with(begin), "{command_line}");
    for (fact, expected) in [
        ("boot", "first"),
        ("driver", "sym53c8xx"),
        ("size_bytes", "201326592"),
    ] {
        assert_eq!(report.fact(fact), Some(expected), "{fact}");
    }
}
