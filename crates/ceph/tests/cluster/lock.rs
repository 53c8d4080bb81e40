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

use crate::MIB;
use crate::client::{Client, Turn, image, options};
use crate::requester::{Requester, pattern};

/// Key of a client's record in the metadata of an image; its address follows.
const RECORD: &str = "blockplane.client.";

/// Environment variables of another process: the configuration, its images, and whether it takes their locks.
const CONF: &str = "CEPH_TEST_LOCK_CONF";
const IMAGES: &str = "CEPH_TEST_LOCK_IMAGES";
const TAKES: &str = "CEPH_TEST_LOCK_TAKES";

/// The test that is such a process if they are set.
const OTHER: &str =
    "lock::the_lock_of_another_client_is_refused_with_its_address_until_that_is_killed";

/// Another process that holds the lock of an image.
fn holder(cluster: &Cluster, name: &str) -> Process {
    other_process(cluster, &[name], true)
}

/// Another process that has images open, and their locks if it takes them.
fn other_process(cluster: &Cluster, names: &[&str], takes_locks: bool) -> Process {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", OTHER, "--nocapture"]);
    command
        .env(CONF, cluster.conf())
        .env(IMAGES, names.join(" "));
    if takes_locks {
        command.env(TAKES, "1");
    }
    command.process_group(0);
    let mut process = Process::spawn(command);
    let output = process.stderr_file();
    process.wait_until("has its images", || {
        test_support::process::text(&output).contains("ready")
    });
    process
}

/// In that process: keeps the images until it is killed.
fn keep_images(conf: PathBuf) -> ! {
    let options = ClusterOptions {
        conf: Some(conf),
        ..Default::default()
    };
    let connection = Connection::open(&options).unwrap();
    let names = env::var(IMAGES).unwrap();
    let open = |name| Image::open(&connection, &image(name), Arc::new(|| ())).unwrap();
    let images: Vec<_> = names.split(' ').map(open).collect();
    for image in images.iter().filter(|_| env::var_os(TAKES).is_some()) {
        image.lock().unwrap();
        Requester::new(image).write(0, &pattern(1, 4096)).unwrap();
    }
    eprintln!("ready");
    loop {
        std::thread::park();
    }
}

/// SIGKILL.
fn kill(process: Process) {
    process.signal(Signal::KILL);
    assert_eq!(process.ended().code, None);
}

/// The connection of a user with the rights that the documentation asks for.
fn minimal_options(cluster: &Cluster) -> ClusterOptions {
    let osd = ("osd", "profile rbd pool=rbd");
    cluster.create_user("minimal", &[("mon", "profile rbd"), osd]);
    options_of(cluster, "minimal")
}

fn options_of(cluster: &Cluster, user: &str) -> ClusterOptions {
    ClusterOptions {
        user: Some(user.to_owned()),
        ..options(cluster)
    }
}

/// The watchers of an image, sorted.
fn watchers(image: &Image) -> Vec<String> {
    let mut watchers = image.watchers().unwrap();
    watchers.sort();
    watchers
}

/// The addresses of an image's clients that have a record, sorted.
fn recorded(cluster: &Cluster, name: &str) -> Vec<String> {
    let metadata = cluster.rbd(["image-meta", "list", name]);
    let keys = metadata
        .lines()
        .filter_map(|line| line.strip_prefix(RECORD));
    let addresses = keys.map(|key| key.split_whitespace().next().unwrap().to_owned());
    let mut addresses: Vec<_> = addresses.collect();
    addresses.sort();
    addresses
}

#[test]
fn the_lock_of_another_client_is_refused_with_its_address_until_that_is_killed() {
    if let Some(conf) = env::var_os(CONF) {
        keep_images(conf.into());
    }
    let Some((cluster, client)) = Client::with_images(["held"]) else {
        return;
    };
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
    kill(holder);
    // Its watch has not ended: only the record makes the difference.
    assert!(image.watchers().unwrap().contains(owner_address));
    image.lock().unwrap();
    let blocked = cluster.ceph(["osd", "blocklist", "ls"]);
    assert!(blocked.contains(owner_address), "{blocked}");
    requester.write(0, &pattern(2, 4096)).unwrap();
    assert_eq!(requester.read(0, 4096).unwrap(), pattern(2, 4096));
}

#[test]
fn the_lock_of_a_killed_client_without_a_record_is_not_broken() {
    let Some((cluster, client)) = Client::with_images(["unrecorded"]) else {
        return;
    };
    let holder = holder(cluster, "unrecorded");
    let [address] = recorded(cluster, "unrecorded").try_into().unwrap();
    let record = format!("{RECORD}{address}");
    cluster.rbd(["image-meta", "remove", "unrecorded", &record]);
    let image = client.open("unrecorded");
    kill(holder);
    assert!(matches!(image.lock(), Err(LockError::Held { .. })));
}

/// Notifications, for which a release of the lock waits, would wait for each dead watcher for 5 s.
#[test]
fn a_killed_process_that_never_had_the_lock_is_not_waited_for_and_a_living_one_stays() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    cluster.create_image("rbd/opened", MIB);
    let turn = Turn::wait();
    let connection = Connection::open(&minimal_options(cluster)).unwrap();
    let image = Image::open(&connection, &image("opened"), Arc::new(|| ())).unwrap();
    let own = watchers(&image);
    let living = other_process(cluster, &["opened"], false);
    let two = watchers(&image);
    let killed = other_process(cluster, &["opened"], false);
    let three = watchers(&image);
    assert_eq!([own.len(), two.len(), three.len()], [1, 2, 3]);
    assert_eq!(recorded(cluster, "opened"), three);
    kill(killed);
    assert_eq!(watchers(&image), three);

    image.lock().unwrap();
    assert_eq!(watchers(&image), two);
    image.unlock().unwrap();
    // Of a client that has gone, no record stays.
    let again = Image::open(&connection, &self::image("opened"), Arc::new(|| ())).unwrap();
    assert_eq!(recorded(cluster, "opened"), two);
    let blocked = cluster.ceph(["osd", "blocklist", "ls"]);
    for address in &three {
        let is_dead = !two.contains(address);
        assert_eq!(blocked.contains(address), is_dead, "{address}: {blocked}");
    }
    drop((image, again, connection));
    drop(turn);
    drop(living);
}

#[test]
fn without_the_right_to_block_clients_only_the_lock_of_a_dead_one_is_refused() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    cluster.create_image("rbd/watched", MIB);
    cluster.create_image("rbd/owned", MIB);
    let osd = ("osd", "profile rbd pool=rbd");
    cluster.create_user("weak", &[("mon", "allow r"), osd]);
    kill(other_process(cluster, &["watched"], false));
    kill(holder(cluster, "owned"));
    let turn = Turn::wait();
    let connection = Connection::open(&options_of(cluster, "weak")).unwrap();
    let open = |name| Image::open(&connection, &image(name), Arc::new(|| ())).unwrap();
    open("watched").lock().unwrap();
    let refused = open("owned").lock().unwrap_err();
    assert!(matches!(refused, LockError::Failed { .. }), "{refused}");
    drop(connection);
    drop(turn);
}

/// A monitor may add one client in a second.
#[test]
fn a_killed_process_is_put_on_the_blocklist_once_for_all_of_its_images() {
    let names = ["first", "second", "third"];
    let Some((cluster, client)) = Client::with_images(names) else {
        return;
    };
    let images = names.map(|name| client.open(name));
    let own = watchers(&images[0]);
    let killed = other_process(cluster, &names, true);
    let mut dead = watchers(&images[0]);
    dead.retain(|address| !own.contains(address));
    kill(killed);
    for image in &images {
        image.lock().unwrap();
    }
    // The monitor's log has additions in their order.
    let last = "127.0.0.1:0/1";
    cluster.ceph(["osd", "blocklist", "add", last]);
    let log = || cluster.ceph(["log", "last", "1000", "debug", "audit"]);
    let additions = |log: &str, address: &str| {
        let address = format!("\"addr\": \"{address}\"");
        let lines = log.lines().filter(|line| line.contains("dispatch"));
        lines.filter(|line| line.contains(&address)).count()
    };
    eventually("the last one is logged", || additions(&log(), last) == 1);
    assert_eq!(additions(&log(), &dead[0]), 1);
}

#[test]
fn the_lock_is_free_after_unlocking_and_after_closing() {
    let Some((cluster, client)) = Client::with_images(["passed"]) else {
        return;
    };
    let first = client.open("passed");
    first.lock().unwrap();
    // Again is no error.
    first.lock().unwrap();
    let second = client.open("passed");
    // The same process: waits for a moment, since it may be closing the image.
    first.unlock().unwrap();
    second.lock().unwrap();
    let third = client.open("passed");
    let locking = thread::spawn(move || {
        third.lock().unwrap();
        third
    });
    // Long enough that the attempt is mostly before the release; either order is right.
    thread::sleep(Duration::from_millis(300));
    drop(second);
    drop(locking.join().unwrap());
    // From another connection, while the image is being closed.
    let other = Connection::open(&options(cluster)).unwrap();
    let fourth = Image::open(&other, &image("passed"), Arc::new(|| ())).unwrap();
    fourth.lock().unwrap();
}
