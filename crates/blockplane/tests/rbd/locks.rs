//! One writer at a time: a second host is refused, a crashed daemon's successor goes on, and a migration moves the lock.

use test_support::deadline::eventually;
use test_support::verifying::load::VerifyingLoad;

use crate::disk::{SOCKET, read};
use crate::process::Folder;
use crate::request_driver::{BLOCK, IN, OUT, RequestDriver};
use crate::{IOERR, MIB, new_disk, serve, start};

#[test]
fn second_daemon_reads_and_its_writes_are_refused_with_the_holders_address() {
    let Some(disk) = new_disk("two-writers") else {
        return;
    };
    let folders = [Folder::new(), Folder::new()];
    let [(first, _), (second, mut client)] =
        folders.each_ref().map(|folder| start(folder, &disk.line()));
    let [mut holder, mut other] = folders
        .each_ref()
        .map(|folder| RequestDriver::connect(&folder.join(SOCKET), 1));
    assert_eq!(disk.lock_holder(), None, "nothing was written");
    holder.request(0, OUT, 0, 1);
    let address = disk.lock_holder().expect("a holder");
    other.ask(0, 0, OUT, 0, 2);
    // Neither its reads nor its monitor wait for the lock.
    other.ask(0, 1, IN, 0, 0);
    other.watch(0, 1);
    assert_eq!(other.data(0, 1), [1; BLOCK]);
    client.execute("query-block");
    assert!(!other.is_answered(0, 0), "it waits for the holder");
    let mut lock = || client.execute("query-named-block-nodes")[0]["rbd"].take();
    assert_eq!(lock()["lock"], "waiting");
    other.watch(0, 0);
    assert_eq!(other.status(0, 0), IOERR);
    let refused = lock();
    assert_eq!(refused["lock"], "refused");
    assert_eq!(refused["lock-owner"], address.as_str());
    let log = second.stderr();
    assert!(log.contains(&address), "no {address}: {log}");
    holder.request(0, OUT, 1, 3);
    // The holder leaves, and the other may write.
    first.stop();
    other.request(0, OUT, 0, 4);
    second.stop();
    let content = disk.content();
    assert_eq!(content[..BLOCK], [4; BLOCK]);
    assert_eq!(content[BLOCK..2 * BLOCK], [3; BLOCK]);
}

/// The lock is broken while the cluster still counts the dead client as a watcher: nothing waits for that to end.
#[test]
fn lock_of_a_killed_daemon_is_broken_by_its_successor() {
    let Some((disk, folder, mut program, _)) = serve("killed", "", "") else {
        return;
    };
    let mut load = VerifyingLoad::connect(&mut program, &folder.join(SOCKET), 1, MIB);
    load.run(100);
    load.fill();
    let dead = disk.lock_holder().expect("a holder");
    drop(program);
    // Dropping has killed it.
    let (mut program, _) = start(&folder, &disk.line());
    load = load.move_to(&mut program, &folder.join(SOCKET));
    load.run(100);
    let log = program.stderr();
    let broken = log.contains("breaking the lock of a process of ours that has ended");
    assert!(broken && log.contains(&dead), "{log}");
    let blocked = disk.cluster.ceph(["osd", "blocklist", "ls"]);
    assert!(blocked.contains(&dead), "{dead}: {blocked}");
    load.read_all();
    program.stop();
    load.assert_content(&disk.content());
}

#[test]
fn lock_moves_to_the_destination_of_a_migration_when_the_source_stops() {
    let Some((disk, folder, mut source, _)) = serve("migrated", "", "") else {
        return;
    };
    let mut load = VerifyingLoad::connect(&mut source, &folder.join(SOCKET), 1, MIB);
    load.run(200);
    let holder = disk.lock_holder();
    let there = Folder::new();
    let (mut destination, _) = start(&there, &disk.line());
    eventually("both have it open", || disk.watchers() == 2);
    load.run(200);
    assert_eq!(disk.lock_holder(), holder);
    // The source's machine is paused, and stays connected.
    load.stop_queues();
    load = load.move_to(&mut destination, &there.join(SOCKET));
    load.run(200);
    assert_ne!(disk.lock_holder(), holder);
    load.read_all();
    source.stop();
    load.run(200);
    load.drain();
    destination.stop();
    load.assert_content(&disk.content());
}

#[test]
fn image_without_the_feature_is_served_with_a_warning_and_refused_with_locking_on() {
    let Some(disk) = new_disk("unlocked") else {
        return;
    };
    let features = "object-map fast-diff exclusive-lock";
    let disable = ["feature", "disable", "unlocked"];
    disk.cluster
        .rbd(disable.into_iter().chain(features.split(' ')));
    for (locking, status) in [("auto", 0), ("on", IOERR)] {
        let folder = Folder::new();
        let options = format!(",locking={locking}");
        let (program, _) = start(&folder, &disk.line_with(&options, ""));
        let mut guest = RequestDriver::connect(&folder.join(SOCKET), 1);
        assert_eq!(guest.status_of(0, OUT, 0, 1), status, "{locking}");
        let log = program.stop().stderr;
        assert!(log.contains("no exclusive lock"), "{log}");
    }
}

/// While the lock is held: no permission to write outlives it, and none is refused for good.
#[test]
fn lock_follows_the_feature_of_a_served_image() {
    let Some((disk, folder, program, mut client)) = serve("featured", "", "") else {
        return;
    };
    let mut guest = RequestDriver::connect(&folder.join(SOCKET), 1);
    let mut lock = || client.execute("query-named-block-nodes")[0]["rbd"]["lock"].take();
    guest.request(0, OUT, 0, 1);
    assert_eq!(lock(), "held");
    for (change, features, state, byte) in [
        (
            "disable",
            "object-map fast-diff exclusive-lock",
            "unsupported",
            2,
        ),
        ("enable", "exclusive-lock", "held", 3),
    ] {
        let change = ["feature", change, "featured"];
        disk.cluster
            .rbd(change.into_iter().chain(features.split(' ')));
        eventually("the permission ends", || lock() == "released");
        guest.request(0, OUT, 0, byte);
        assert_eq!(lock(), state);
        assert_eq!(disk.lock_holder().is_some(), state == "held");
    }
    let log = program.stop().stderr;
    let lines = log.matches("is not what it was").count();
    assert_eq!(lines, 2, "{log}");
    assert_eq!(disk.content()[..BLOCK], [3; BLOCK]);
}

/// librbd would wait for the end of that lock, with a processor.
#[test]
fn write_to_an_image_that_is_locked_by_hand_fails_with_the_remedy_in_the_log() {
    let Some((disk, folder, program, _)) = serve("by-hand", "", "") else {
        return;
    };
    disk.cluster.rbd(["lock", "add", "by-hand", "mine"]);
    let mut guest = RequestDriver::connect(&folder.join(SOCKET), 1);
    assert_eq!(guest.status_of(0, OUT, 0, 1), IOERR);
    let list = disk.cluster.rbd(["lock", "ls", "by-hand"]);
    let locker = list.lines().last().unwrap().split_whitespace().next();
    let locker = locker.unwrap();
    let log = program.stderr();
    let remedy = format!("rbd lock rm rbd/by-hand 'mine' {locker}");
    assert!(log.contains(&remedy), "no {remedy}: {log}");
    disk.cluster.rbd(["lock", "rm", "by-hand", "mine", locker]);
    guest.request(0, OUT, 0, 2);
    program.stop();
    assert_eq!(disk.content()[..BLOCK], [2; BLOCK]);
}

#[test]
fn the_first_read_of_an_image_with_a_journal_acquires_the_lock_and_writes_with_it_succeed() {
    let Some(disk) = new_disk("journal") else {
        return;
    };
    let enable = ["feature", "enable", "journal", "journaling"];
    disk.cluster.rbd(enable);
    let folder = Folder::new();
    let (program, _) = start(&folder, &disk.line());
    let mut guest = RequestDriver::connect(&folder.join(SOCKET), 1);
    guest.ask(0, 0, IN, 0, 0);
    guest.ask(0, 1, OUT, 1, 1);
    for slot in [0, 1] {
        guest.watch(0, slot);
        assert_eq!(guest.status(0, slot), 0);
    }
    program.stop();
    disk.is_closed();
    // librbd would acquire the lock on its own: other clients can take that one.
    let (program, mut client) = start(&folder, &disk.line());
    let mut guest = RequestDriver::connect(&folder.join(SOCKET), 1);
    assert_eq!(read(&mut guest, 1), [1; BLOCK]);
    let nodes = client.execute("query-named-block-nodes");
    assert_eq!(nodes[0]["rbd"]["lock"], "held");
    program.stop();
}
