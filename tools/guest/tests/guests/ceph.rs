//! Real guests on images of a Ceph cluster: booted from one, resized, snapshotted, moved between daemons, and with a daemon that is
//! killed or upgraded.

use std::path::Path;
use std::thread;
use std::time::Duration;

use guest::{Boot, QemuVersion, RbdImage, Server, ServerOptions};
use test_support::ceph::Cluster;

use crate::{AT_WORK, disk, kill_again_and_again, serve};

const SIZE_BYTES: u64 = 128 << 20;
/// Pieces of the pattern that `resize.sh` writes.
const CHUNK_BYTES: usize = 4 << 20;
/// Of the beginning of a disk, which `verified_rounds.sh` writes.
const ROUNDS_BYTES: usize = 32 << 20;
const QUEUES: u16 = 2;
/// For ten moves, each of which takes seconds where nothing else runs.
const MOVES_LIMIT: Duration = Duration::from_secs(1800);

fn options(cluster: &Cluster, name: &str, size_bytes: u64) -> ServerOptions {
    let image = RbdImage {
        name: name.to_owned(),
        conf: cluster.conf(),
    };
    let mut options = ServerOptions::rbd(image, size_bytes);
    options.num_queues = QUEUES;
    options
}

/// Fails if the server has warned of anything, such as a lock that it did not get.
fn stop(server: Server) {
    assert_eq!(server.warnings(), [""; 0]);
    server.stop().unwrap();
}

/// The content of an image or a snapshot.
fn export(cluster: &Cluster, name: &str, folder: &Path) -> Vec<u8> {
    let file = folder.join("exported");
    cluster.rbd(["export", "--no-progress", name, file.to_str().unwrap()]);
    let content = std::fs::read(&file).unwrap();
    std::fs::remove_file(file).unwrap();
    content
}

/// Writes a chunk of the guests' pattern over an image's content.
fn put(content: &mut [u8], chunk: usize, at: usize) {
    let pattern = guest::pattern();
    let chunk = &pattern[chunk * CHUNK_BYTES..][..CHUNK_BYTES];
    content[at..][..CHUNK_BYTES].copy_from_slice(chunk);
}

#[test]
#[ignore = "full run only"]
fn guest_boots_from_an_image_that_is_snapshotted_and_resized_under_it() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    let (folder, on_disk) = disk(SIZE_BYTES);
    guest::boot_disk(&on_disk.disk, SIZE_BYTES, "resize,verified_rounds", None).unwrap();
    let path = on_disk.disk.to_str().unwrap();
    cluster.rbd(["import", "--no-progress", path, "rbd/boot"]);
    let server = serve(&options(cluster, "boot", SIZE_BYTES));
    let snapshot = |name| cluster.rbd(["snap", "create", "--no-progress", name]);
    let resize = |bytes: u64| {
        let size = format!("{bytes}B");
        let resize = ["resize", "--no-progress", "--allow-shrink", "--size", &size];
        cluster.rbd(resize.into_iter().chain(["rbd/boot"]));
    };
    let report = Boot::new(&server, "resize,verified_rounds")
        .from_disk()
        .reconnecting()
        .run_asking(|question, _| match question {
            "grow" => {
                snapshot("rbd/boot@filled");
                resize(2 * SIZE_BYTES);
            }
            "shrink" => {
                snapshot("rbd/boot@grown");
                resize(SIZE_BYTES);
            }
            _ => kill_again_and_again(&server, 2),
        })
        .unwrap();
    for warning in server.warnings() {
        assert!(warning.contains("breaking the lock"), "{warning}");
    }
    server.stop().unwrap();
    assert_eq!(report.fact("grown_bytes"), Some("268435456"));
    assert_eq!(report.fact("shrunk_bytes"), Some("134217728"));
    assert_eq!(report.idle_writer(2 * QUEUES), None);

    // What the guest had made stable at each time, as `resize.sh` does.
    let size = usize::try_from(SIZE_BYTES).unwrap();
    let mut filled = std::fs::read(&on_disk.disk).unwrap();
    put(&mut filled, 0, 0);
    put(&mut filled, 1, size - CHUNK_BYTES);
    let mut grown = filled.clone();
    grown.resize(2 * size, 0);
    for at in [0, size, 2 * size - CHUNK_BYTES] {
        put(&mut grown, 2, at);
    }
    for (name, expected, from) in [
        ("rbd/boot@filled", &*filled, 0),
        ("rbd/boot@grown", &grown, 0),
        ("rbd/boot", &grown[..size], ROUNDS_BYTES),
    ] {
        let found = export(cluster, name, folder.path());
        // Not `assert_eq`: its message would be the disk.
        let is_expected = found.len() == expected.len() && found[from..] == expected[from..];
        assert!(is_expected, "{name} is not what the guest wrote");
    }
}

/// Each move is to a daemon that opens the image while the other one's guest writes to it.
#[test]
#[ignore = "full run only"]
fn guest_moves_between_daemons_of_one_image_under_load() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    cluster.create_image("moved", SIZE_BYTES);
    let mut options = options(cluster, "moved", SIZE_BYTES);
    options.monitor = true;
    options.locking = Some("on");
    let first = serve(&options);
    let mut destination = None;
    let report = Boot::new(&first, "verified_rounds")
        .qemu(QemuVersion::V11_1)
        .limit(MOVES_LIMIT)
        .run_asking(|_, guest| {
            for _ in 0..10 {
                thread::sleep(AT_WORK);
                let next = serve(&options);
                guest.move_to(&next).unwrap();
                if let Some(source) = destination.replace(next) {
                    stop(source);
                }
            }
            thread::sleep(AT_WORK);
        })
        .unwrap();
    assert_eq!(report.idle_writer(2 * QUEUES), None);
    destination.into_iter().chain([first]).for_each(stop);
}

/// The old process releases the lock before it ends: its successor need not break it, which would be in the log.
#[test]
#[ignore = "full run only"]
fn upgrade_moves_the_lock_of_an_image() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    cluster.create_image("upgraded", SIZE_BYTES);
    let mut options = options(cluster, "upgraded", SIZE_BYTES);
    options.monitor = true;
    let server = serve(&options);
    let report = Boot::new(&server, "verified_rounds")
        .run_asking(|_, _| {
            for _ in 0..2 {
                thread::sleep(AT_WORK);
                server.upgrade().unwrap();
            }
            thread::sleep(AT_WORK);
        })
        .unwrap();
    assert_eq!(report.idle_writer(2 * QUEUES), None);
    stop(server);
}
