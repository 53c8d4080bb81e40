//! Real guests on a served disk: what they wrote is there, for the next guest and the next server.
//!
//! Each test boots one or two guests of 10 to 20 seconds. Nothing is skipped: where QEMU or the
//! kernel cannot be had, the tests fail and say what to install.

#![allow(clippy::unwrap_used)] // the lint's exception for tests does not reach helper functions

use guest::{Boot, Report, Scenario, Server, ServerOptions};

const SIZE_BYTES: u64 = 256 << 20;
const MIB: u64 = 1 << 20;

/// A new disk in a folder that lives as long as the test.
fn disk(num_queues: u16) -> (tempfile::TempDir, ServerOptions) {
    let folder = guest::disk_folder().unwrap();
    let mut options = ServerOptions::new(&folder.path().join("disk.img"), SIZE_BYTES);
    options.num_queues = num_queues;
    (folder, options)
}

fn start(options: &ServerOptions) -> Server {
    Server::start(&guest::blockplane().unwrap(), options).unwrap_or_else(|error| panic!("{error}"))
}

fn boot(server: &Server, scenario: Scenario) -> Report {
    Boot::new(server, scenario)
        .run()
        .unwrap_or_else(|error| panic!("{error}"))
}

fn stop(server: Server) {
    server.stop().unwrap_or_else(|error| panic!("{error}"));
}

/// 12 sizes, 24 small files, one by direct I/O, one raw region for each CPU.
fn assert_same_data(wrote: &Report, read: &Report, num_queues: usize) {
    assert_eq!(wrote.sums().len(), 12 + 24 + 1 + num_queues);
    assert_eq!(wrote.sums(), read.sums());
}

#[test]
fn server_process_serves_several_guests_in_turn() {
    let (_folder, options) = disk(1);
    let server = start(&options);
    let first = boot(&server, Scenario::FirstBoot);
    assert_eq!(first.fact("queues"), Some("1"));
    assert_eq!(first.fact("size_bytes"), Some("268435456"));
    // The guest is off; its server is as before and takes the next one on the same socket.
    server.check_running().unwrap();
    let second = boot(&server, Scenario::SecondBoot);
    assert_same_data(&first, &second, 1);
    stop(server);
}

#[test]
fn four_queues_all_carry_data_and_it_outlives_the_server() {
    let (_folder, options) = disk(4);
    let server = start(&options);
    let first = boot(&server, Scenario::FirstBoot);
    assert_eq!(first.fact("queues"), Some("4"));
    for queue in 0..4 {
        let interrupts = first
            .fact(&format!("interrupts.req.{queue}"))
            .map(|count| count.parse::<u64>().unwrap());
        assert!(
            interrupts.is_some_and(|count| count > 0),
            "queue {queue}: {interrupts:?}"
        );
    }
    stop(server);
    let server = start(&options);
    let second = boot(&server, Scenario::SecondBoot);
    assert_same_data(&first, &second, 4);
    stop(server);
}

/// The same two with packed queues; the server is another process for the second guest.
#[test]
fn packed_queues_carry_data_with_one_and_with_four() {
    for num_queues in [1, 4] {
        let (_folder, mut options) = disk(num_queues);
        options.packed = true;
        let server = start(&options);
        let first = boot(&server, Scenario::FirstBoot);
        assert_eq!(first.fact("packed"), Some("1"));
        assert_eq!(first.fact("queues"), Some(&*num_queues.to_string()));
        stop(server);
        // A guest without packed queues finds what one with them wrote.
        options.packed = false;
        let server = start(&options);
        let second = boot(&server, Scenario::SecondBoot);
        assert_eq!(second.fact("packed"), Some("0"));
        assert_same_data(&first, &second, num_queues.into());
        stop(server);
    }
}

#[test]
fn discard_and_trim_free_space_on_the_host() {
    let (_folder, options) = disk(2);
    let server = start(&options);
    let mut occupied = Vec::new();
    let report = Boot::new(&server, Scenario::Discard)
        .run_asking(|question| {
            occupied.push((question.to_owned(), server.allocated_bytes().unwrap()))
        })
        .unwrap_or_else(|error| panic!("{error}"));
    let at = |name: &str| {
        occupied
            .iter()
            .find(|(question, _)| question == name)
            .map(|(_, bytes)| *bytes)
            .unwrap_or_else(|| panic!("{name}"))
    };
    // The raw partition is filled with 12 MiB, of which 4 MiB are discarded; the deleted file has 16 MiB,
    // and the file system's own blocks come and go beside it.
    assert!(at("raw_written") >= 12 * MIB, "{occupied:?}");
    assert!(
        at("raw_written") - at("raw_discarded") >= 4 * MIB,
        "{occupied:?}"
    );
    assert!(
        at("file_written") - at("file_trimmed") >= 15 * MIB,
        "{occupied:?}"
    );
    // A file is served: what was punched out of it reads as zeroes.
    assert_eq!(report.fact("discarded_reads_zero"), Some("yes"));
    stop(server);
}

#[test]
fn read_only_disk_is_readable_and_unchanged() {
    let (_folder, mut options) = disk(1);
    let server = start(&options);
    let first = boot(&server, Scenario::FirstBoot);
    stop(server);

    let before = std::fs::read(&options.disk).unwrap();
    options.read_only = true;
    let server = start(&options);
    let read_only = boot(&server, Scenario::ReadonlyBoot);
    assert_eq!(read_only.fact("read_only"), Some("1"));
    assert_same_data(&first, &read_only, 1);
    stop(server);
    // Not `assert_eq`: its message would be the disk.
    assert!(
        before == std::fs::read(&options.disk).unwrap(),
        "the image has changed"
    );
}
