//! Real guests on images of a Ceph cluster: booted from one, resized, snapshotted, moved between daemons, and with a daemon that is killed.

#![allow(clippy::unwrap_used)] // the lint's exception for tests does not reach helper functions

use std::path::Path;
use std::thread;
use std::time::Duration;

use guest::{Boot, RbdImage, Scenario, Server, ServerOptions};
use test_support::ceph::Cluster;

const SIZE_BYTES: u64 = 128 << 20;
/// Pieces of the pattern that [`Scenario::Resize`] writes.
const CHUNK_BYTES: usize = 4 << 20;
/// Of the disks that two writers for each CPU write and read back.
const LOAD_BYTES: u64 = 64 << 20;
const QUEUES: u16 = 2;
/// Long enough for QEMU to have connected again (it tries each second) and for the guest to be at work.
const AT_WORK: Duration = Duration::from_millis(1600);
/// For ten moves and more, each of which takes seconds where nothing else runs.
const MOVES_LIMIT: Duration = Duration::from_secs(1800);
/// Moves by default; `BLOCKPLANE_MIGRATIONS=10` makes so many.
const MIGRATIONS: u32 = 2;
const CRASHES: u32 = 5;
const UPGRADES: u32 = 2;

fn options(cluster: &Cluster, name: &str, size_bytes: u64) -> ServerOptions {
    let image = RbdImage {
        name: name.to_owned(),
        conf: cluster.conf(),
    };
    let mut options = ServerOptions::rbd(image, size_bytes);
    options.num_queues = QUEUES;
    options
}

fn start(options: &ServerOptions) -> Server {
    Server::start(&guest::blockplane().unwrap(), options).unwrap_or_else(|error| panic!("{error}"))
}

/// Fails if the server has warned of anything, such as a lock that it did not get.
fn stop(server: Server) {
    assert_eq!(server.warnings(), [""; 0]);
    server.stop().unwrap_or_else(|error| panic!("{error}"));
}

/// The content of an image or a snapshot.
fn export(cluster: &Cluster, name: &str, folder: &Path) -> Vec<u8> {
    let file = folder.join("exported");
    cluster.rbd(["export", "--no-progress", name, path(&file)]);
    let content = std::fs::read(&file).unwrap();
    std::fs::remove_file(file).unwrap();
    content
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Writes a chunk of the guests' pattern over an image's content.
fn put(content: &mut [u8], chunk: usize, at: usize) {
    let pattern = guest::pattern();
    let chunk = &pattern[chunk * CHUNK_BYTES..][..CHUNK_BYTES];
    content[at..][..CHUNK_BYTES].copy_from_slice(chunk);
}

#[test]
fn guest_boots_from_an_image_that_is_snapshotted_and_resized_under_it() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    let folder = guest::disk_folder().unwrap();
    let disk = folder.path().join("disk.img");
    guest::boot_disk(&disk, SIZE_BYTES, Scenario::Resize, None)
        .unwrap_or_else(|error| panic!("{error}"));
    cluster.rbd(["import", "--no-progress", path(&disk), "rbd/boot"]);

    let server = start(&options(cluster, "boot", SIZE_BYTES));
    let resize = |bytes: u64| {
        let size = format!("{bytes}B");
        let resize = ["resize", "--no-progress", "--allow-shrink", "--size", &size];
        cluster.rbd(resize.into_iter().chain(["rbd/boot"]));
    };
    let report = Boot::new(&server, Scenario::Resize)
        .from_disk()
        .run_asking(|question| match question {
            "grow" => {
                cluster.rbd(["snap", "create", "--no-progress", "rbd/boot@filled"]);
                resize(2 * SIZE_BYTES);
            }
            "shrink" => {
                cluster.rbd(["snap", "create", "--no-progress", "rbd/boot@grown"]);
                resize(SIZE_BYTES);
            }
            other => panic!("{other}?"),
        })
        .unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(report.fact("grown_bytes"), Some("268435456"));
    assert_eq!(report.fact("shrunk_bytes"), Some("134217728"));
    stop(server);

    // What the guest had made stable at each time, as `resize.sh` does.
    let size = usize::try_from(SIZE_BYTES).unwrap();
    let mut filled = std::fs::read(&disk).unwrap();
    put(&mut filled, 0, 0);
    put(&mut filled, 1, size - CHUNK_BYTES);
    let mut grown = filled.clone();
    grown.resize(2 * size, 0);
    for at in [0, size, 2 * size - CHUNK_BYTES] {
        put(&mut grown, 2, at);
    }
    for (name, expected) in [
        ("rbd/boot@filled", &*filled),
        ("rbd/boot@grown", &grown),
        ("rbd/boot", &grown[..size]),
    ] {
        let found = export(cluster, name, folder.path());
        // Not `assert_eq`: its message would be the disk.
        assert!(found == expected, "{name} is not what the guest wrote");
    }
}

/// Each move is to a daemon that opens the image while the other one's guest writes to it.
#[test]
fn guest_moves_between_daemons_of_one_image_under_load() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    let moves = std::env::var("BLOCKPLANE_MIGRATIONS").ok();
    let moves: u32 = moves.map_or(MIGRATIONS, |moves| moves.parse().expect("a number"));
    cluster.create_image("moved", LOAD_BYTES);
    let mut options = options(cluster, "moved", LOAD_BYTES);
    options.monitor = true;
    options.locking = Some("on");
    let first = start(&options);
    let mut destination = None;
    let report = Boot::new(&first, Scenario::Crashes)
        .limit(MOVES_LIMIT)
        .run_moving(|question, guest| {
            assert_eq!(question, "crashes");
            for _ in 0..moves {
                thread::sleep(AT_WORK);
                let next = start(&options);
                guest
                    .move_to(&next)
                    .unwrap_or_else(|error| panic!("{error}"));
                if let Some(source) = destination.replace(next) {
                    stop(source);
                }
            }
            thread::sleep(AT_WORK);
        })
        .unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(report.idle_writer(2 * QUEUES), None);
    destination.into_iter().chain([first]).for_each(stop);
}

#[test]
fn killing_the_server_of_an_image_goes_unnoticed_by_the_guest() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    cluster.create_image("killed", LOAD_BYTES);
    let server = start(&options(cluster, "killed", LOAD_BYTES));
    let report = Boot::new(&server, Scenario::Crashes)
        .reconnecting()
        .run_asking(|question| {
            assert_eq!(question, "crashes");
            for crash in 0..CRASHES {
                // Not always at the same point of what the guest does.
                thread::sleep(AT_WORK + Duration::from_millis(u64::from(crash * 37)));
                server.crash().unwrap_or_else(|error| panic!("{error}"));
            }
            thread::sleep(AT_WORK);
        })
        .unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(report.idle_writer(2 * QUEUES), None);
    for warning in server.warnings() {
        assert!(warning.contains("breaking the lock"), "{warning}");
    }
    server.stop().unwrap_or_else(|error| panic!("{error}"));
}

/// The old process releases the lock before it ends: its successor need not break it, which would be in the log.
#[test]
fn upgrade_moves_the_lock_of_an_image() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    cluster.create_image("upgraded", LOAD_BYTES);
    let mut options = options(cluster, "upgraded", LOAD_BYTES);
    options.monitor = true;
    let server = start(&options);
    let report = Boot::new(&server, Scenario::Crashes)
        .run_asking(|question| {
            assert_eq!(question, "crashes");
            for _ in 0..UPGRADES {
                thread::sleep(AT_WORK);
                server.upgrade().unwrap_or_else(|error| panic!("{error}"));
            }
            thread::sleep(AT_WORK);
        })
        .unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(report.idle_writer(2 * QUEUES), None);
    stop(server);
}
