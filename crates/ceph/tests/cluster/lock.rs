//! The exclusive lock: it is ours alone, and that of a killed process of ours is broken.

use std::env;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use ceph::{ClusterOptions, Connection, Image, LockError};
use engine::Errno;
use rustix::process::Signal;
use test_support::ceph::Cluster;
use test_support::deadline::eventually;
use test_support::process::Process;

use crate::client::{Client, image, options};
use crate::requester::{Requester, pattern};

const MIB: u64 = 1 << 20;

/// Environment variables of the process that holds a lock: the configuration and the image.
const CONF: &str = "CEPH_TEST_LOCK_CONF";
const IMAGE: &str = "CEPH_TEST_LOCK_IMAGE";

/// The test that is such a process if they are set.
const HOLDER: &str = "lock::the_lock_of_another_live_client_is_refused_with_its_address";

/// Another process that holds the lock of an image.
fn holder(cluster: &Cluster, name: &str) -> Process {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", HOLDER, "--nocapture"]);
    command.env(CONF, cluster.conf()).env(IMAGE, name);
    command.process_group(0);
    let mut process = Process::spawn(command);
    let output = process.stderr_file();
    process.wait_until("holds the lock", || {
        test_support::process::text(&output).contains("locked")
    });
    process
}

/// In that process: takes the lock and keeps it until the process is killed.
fn hold_lock(conf: PathBuf) -> ! {
    let options = ClusterOptions {
        conf: Some(conf),
        ..Default::default()
    };
    let connection = Connection::open(&options).unwrap();
    let name = env::var(IMAGE).unwrap();
    let image = Image::open(&connection, &image(&name), Arc::new(|| ())).unwrap();
    image.lock().unwrap();
    Requester::new(&image).write(0, &pattern(1, 4096)).unwrap();
    eprintln!("locked");
    loop {
        std::thread::park();
    }
}

#[test]
fn the_lock_of_another_live_client_is_refused_with_its_address() {
    if let Some(conf) = env::var_os(CONF) {
        hold_lock(conf.into());
    }
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    cluster.create_image("rbd/held", MIB);
    let client = Client::connect(cluster);
    let holder = holder(cluster, "held");
    let image = client.open("held");
    let refused = image.lock().unwrap_err();
    let LockError::Held { owner_address, .. } = &refused else {
        panic!("{refused:?}");
    };
    let locks = cluster.rbd(["lock", "ls", "rbd/held"]);
    assert!(locks.contains(owner_address), "{refused}: {locks}");
    assert!(refused.to_string().contains(owner_address));
    // Neither can it be taken by writing.
    let mut requester = Requester::new(&image);
    assert_eq!(requester.write(0, &[0; 512]), Err(Errno::ROFS));
    assert_eq!(requester.read(0, 4096).unwrap(), pattern(1, 4096));
    drop(holder);
}

#[test]
fn the_lock_of_a_killed_process_of_ours_is_broken_at_once() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    cluster.create_image("rbd/orphaned", MIB);
    let client = Client::connect(cluster);
    let holder = holder(cluster, "orphaned");
    let image = client.open("orphaned");
    let Err(LockError::Held { owner_address, .. }) = image.lock() else {
        panic!("not held");
    };
    holder.signal(Signal::KILL);
    assert_eq!(holder.ended().code, None);
    // Its watch has not ended: only the record makes the difference.
    assert!(image.watchers().unwrap().contains(&owner_address));
    image.lock().unwrap();
    // A process that was killed in between would have left both records.
    let records = cluster.rbd(["image-meta", "get", "rbd/orphaned", "blockplane.lock_owner"]);
    let new_address = &image.watchers().unwrap().pop().unwrap();
    for address in [&owner_address, new_address] {
        assert!(records.contains(&format!("address={address}")), "{records}");
    }
    let blocked = cluster.ceph(["osd", "blocklist", "ls"]);
    assert!(blocked.contains(&owner_address), "{blocked}");
    let mut requester = Requester::new(&image);
    requester.write(0, &pattern(2, 4096)).unwrap();
    assert_eq!(requester.read(0, 4096).unwrap(), pattern(2, 4096));
}

#[test]
fn the_lock_of_a_killed_client_without_a_record_is_not_broken() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    cluster.create_image("rbd/unrecorded", MIB);
    let client = Client::connect(cluster);
    let holder = holder(cluster, "unrecorded");
    cluster.rbd([
        "image-meta",
        "remove",
        "rbd/unrecorded",
        "blockplane.lock_owner",
    ]);
    let image = client.open("unrecorded");
    holder.signal(Signal::KILL);
    assert_eq!(holder.ended().code, None);
    assert!(matches!(image.lock(), Err(LockError::Held { .. })));
}

#[test]
fn the_lock_is_free_after_unlocking_and_after_closing() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    cluster.create_image("rbd/passed", MIB);
    let client = Client::connect(cluster);
    let first = client.open("passed");
    first.lock().unwrap();
    // Again is no error.
    first.lock().unwrap();
    let second = client.open("passed");
    // The same process: waits for a moment, since it may be closing the image.
    first.unlock().unwrap();
    second.lock().unwrap();
    drop(second);
    // From another connection, while the image is being closed.
    let other = Connection::open(&options(cluster)).unwrap();
    let third = Image::open(&other, &image("passed"), Arc::new(|| ())).unwrap();
    third.lock().unwrap();
}

#[test]
fn a_lock_that_this_process_releases_meanwhile_is_taken() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    cluster.create_image("rbd/exchanged", MIB);
    let client = Client::connect(cluster);
    let [old, new] = [(), ()].map(|()| client.open("exchanged"));
    old.lock().unwrap();
    let locking = thread::spawn(move || new.lock());
    // Long enough that the attempt is mostly before the release; either order is right.
    thread::sleep(Duration::from_millis(300));
    drop(old);
    assert_eq!(locking.join().unwrap(), Ok(()));
}

#[test]
fn a_client_whose_lock_was_broken_gets_errors() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    cluster.create_image("rbd/broken", MIB);
    let client = Client::connect(cluster);
    let image = client.open("broken");
    image.lock().unwrap();
    let mut requester = Requester::new(&image);
    requester.write(0, &pattern(1, 4096)).unwrap();
    let watcher = image.watchers().unwrap().remove(0);
    cluster.ceph(["osd", "blocklist", "add", &watcher]);
    // The OSD may not have the map with the blocklist yet.
    eventually("the client is refused", || {
        let written = requester.write(0, &pattern(1, 4096));
        assert!(
            matches!(written, Ok(()) | Err(Errno::SHUTDOWN)),
            "{written:?}"
        );
        written.is_err()
    });
}

#[test]
fn an_image_without_the_feature_has_no_lock() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    cluster.rbd([
        "create",
        "--size",
        "1M",
        "--image-feature",
        "layering",
        "rbd/plain",
    ]);
    let client = Client::connect(cluster);
    let refused = client.open("plain").lock().unwrap_err();
    assert!(
        matches!(refused, LockError::Unsupported { .. }),
        "{refused}"
    );
    assert!(refused.to_string().contains("rbd/plain exclusive-lock"));
}
