//! A virtio disk that a guest writes with packed queues, while it changes and its server is upgraded, and that another guest of
//! another server process reads with split ones.

use guest::Boot;
use serde_json::json;
use test_support::reserved_port::ReservedPort;

use crate::hot_plug::SecondDisk;
use crate::kills::upgrade_again_and_again;
use crate::{disk, serve};

const SIZE_BYTES: u64 = 256 << 20;
const MIB: u64 = 1 << 20;
const QUEUES: u16 = 4;

#[test]
fn disk_written_through_packed_queues_is_read_through_split_ones() {
    let (folder, mut options) = disk(SIZE_BYTES);
    let port = ReservedPort::reserve();
    options.nbd_port = Some(port.address().port());
    options.num_queues = QUEUES;
    options.packed = true;
    options.monitor = true;
    let server = serve(&options);
    let second_disk = SecondDisk::new(&server, folder.path());
    let resize = |bytes: u64| {
        let size = json!({"node-name": "d", "size": bytes});
        server.query("block_resize", &size).unwrap();
        assert_eq!(std::fs::metadata(&options.disk).unwrap().len(), bytes);
    };
    let mut occupied = Vec::new();
    // `verified_rounds` looks for errors in the kernel's log, where NBD may leave some on a busy machine.
    let scenarios = "verified_rounds,nbd,resize,hot_plug,discard,first_boot";
    let written = Boot::new(&server, scenarios)
        .run_asking(|question, guest| match question {
            "grow" => resize(2 * SIZE_BYTES),
            "shrink" => resize(SIZE_BYTES),
            "plug" => second_disk.plug(guest),
            "unplug" => second_disk.unplug(guest),
            "gone" => second_disk.remove(guest),
            // QEMU does not connect again: the upgraded server has the connection of the one before.
            "verified_rounds" => upgrade_again_and_again(&server, 2),
            // Of `discard`, which looks at what the image takes.
            name => occupied.push((name.to_owned(), server.allocated_bytes().unwrap())),
        })
        .unwrap();
    server.stop().unwrap();
    for (fact, expected) in [
        ("queues", "4"),
        ("packed", "1"),
        ("nbd_bytes", "268435456"),
        ("nbd_write_cache", "write_back"),
        ("nbd_read_only", "0"),
        ("grown_bytes", "536870912"),
        ("shrunk_bytes", "268435456"),
        ("second_bytes", "100663296"),
        ("second_queues", "2"),
        ("second_serial", "SECOND"),
        // A file is served: what was punched out of it reads as zeroes.
        ("discarded_reads_zero", "yes"),
    ] {
        assert_eq!(written.fact(fact), Some(expected), "{fact}");
    }
    let number = |fact: &str| written.fact(fact).unwrap().parse::<u64>().unwrap();
    assert_eq!(written.idle_writer(2 * QUEUES), None);
    assert!(number("nbd_discard_max_bytes") > 0, "space is freed");
    for queue in 0..QUEUES {
        assert!(number(&format!("interrupts.req.{queue}")) > 0, "{queue}");
    }
    let at = |name: &str| occupied.iter().find(|(question, _)| question == name);
    let freed = |before, after| at(before).unwrap().1 - at(after).unwrap().1;
    // Of the raw partition 4 MiB are discarded; the deleted file has 16 MiB, and the file system's own blocks come and go beside it.
    assert!(
        freed("raw_written", "raw_discarded") >= 4 * MIB,
        "{occupied:?}"
    );
    assert!(
        freed("file_written", "file_trimmed") >= 15 * MIB,
        "{occupied:?}"
    );

    let before = std::fs::read(&options.disk).unwrap();
    options.packed = false;
    options.monitor = false;
    options.nbd_port = None;
    options.read_only = true;
    let server = serve(&options);
    let read = Boot::new(&server, "readonly_boot").run().unwrap();
    server.stop().unwrap();
    assert_eq!(read.fact("packed"), Some("0"));
    assert_eq!(read.fact("read_only"), Some("1"));
    // 11 sizes, 8 small files, one by direct I/O, one raw region for each CPU.
    assert_eq!(written.sums().len(), 11 + 8 + 1 + usize::from(QUEUES));
    assert_eq!(written.sums(), read.sums());
    // Not `assert_eq`: its message would be the disk.
    let is_unchanged = before == std::fs::read(&options.disk).unwrap();
    assert!(is_unchanged, "the image has changed");
}
