//! Traces of a killed server in a cluster: its writes that arrive late never replace what a later server has written, and its
//! lock is waited for if it may not be broken.

use std::collections::BTreeMap;

use rustix::process::Signal;
use test_support::ceph::{Auth, Cluster, ClusterOptions, ObjectStore};
use test_support::deadline::eventually;

use crate::blocks::{BLOCK, bytes};
use crate::device::{Device, Op};
use crate::guest::VerifyingGuest;
use crate::image::Image;
use crate::server::Server;
use crate::slow_disk::late_requests;
use crate::wire::Wire;

const BLOCKS: u64 = 16;
const DISK_BYTES: u64 = BLOCKS * BLOCK as u64;
/// The block that is written.
const WRITTEN: usize = 5;
/// Of clusters for a test of their own.
const OPTIONS: ClusterOptions = ClusterOptions {
    store: ObjectStore::BlueStore,
    auth: Auth::None,
    manager: false,
    watch_timeout: 5,
};

fn server(image: Image) -> Server {
    let export = "vhost-user-blk,node-name=d,iothread=io,request-timeout=1";
    Server::new(DISK_BYTES, image.nodes(), export)
}

fn guest() -> VerifyingGuest {
    VerifyingGuest::new(Device::Blk, false, 1, BLOCKS)
}

/// Writes the block and waits for the answer; returns what was written.
fn write(guest: &mut VerifyingGuest, link: &Wire) -> u64 {
    let value = guest.ask(0, Op::Write, WRITTEN);
    guest.drains_to(0, link);
    value
}

fn assert_written(image: Image, server: &Server, value: u64) {
    let content = image.content(&server.folder);
    let found = &content[WRITTEN * BLOCK..][..BLOCK];
    assert!(
        found == bytes(WRITTEN, value),
        "an older write came later: {:?} instead of {value}",
        &found[..8]
    );
}

/// The writes are in the socket of an OSD that stands still when their server is killed.
#[test]
fn writes_that_wait_in_an_osd_do_not_replace_later_ones() {
    let Some(mut cluster) = Cluster::start_or_report(OPTIONS) else {
        return;
    };
    cluster.create_image("late", DISK_BYTES);
    let (mut server, mut guest) = (server(Image::on(&cluster, "late")), guest());
    let mut link = server.connect_guest(&mut guest);
    for _ in 0..3 {
        write(&mut guest, &link);
        let late = late_requests(&mut server) + 2;
        cluster.pause_osd();
        guest.ask(0, Op::Write, WRITTEN);
        guest.ask(0, Op::Read, WRITTEN);
        eventually("both wait", || late_requests(&mut server) == late);
        server.kill();
        server.start();
        cluster.resume_osd();
        link = server.connect_guest(&mut guest);
        guest.ask(0, Op::Read, WRITTEN);
        guest.drains_to(0, &link);
        let last = write(&mut guest, &link);
        guest.ask(0, Op::Read, WRITTEN);
        guest.drains_to(0, &link);
        assert_written(Image::on(&cluster, "late"), &server, last);
    }
    server.stop();
}

/// The first server stands still with a write, as requests do that a network delays, and counts as dead. It sends the write
/// after its successor has written.
#[test]
fn write_that_arrives_after_its_owners_lock_was_broken_is_refused() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    let image = Image::rbd(cluster, "fenced", DISK_BYTES);
    let [mut first, mut second] = [(), ()].map(|()| server(image));
    let [mut old, mut new] = [(), ()].map(|()| guest());
    let link = first.connect_guest(&mut old);
    write(&mut old, &link);
    declare_owner_dead(cluster, "fenced");
    first.pause();
    let late = old.ask(0, Op::Write, WRITTEN);

    let new_link = second.connect_guest(&mut new);
    let last = write(&mut new, &new_link);
    assert_ne!(late, last);

    first.signal(Signal::CONT);
    // It is answered: with an error, since its server is shut out.
    assert_eq!(old.sleep(&link), Ok(()));
    new.ask(0, Op::Read, WRITTEN);
    new.drains_to(0, &new_link);
    assert_written(image, &second, last);
    first.kill();
    second.stop();
}

/// As after the crash of another host, of whose processes nothing is known.
#[test]
fn lock_of_an_unknown_client_is_waited_for_until_the_cluster_releases_it() {
    // A living owner is waited for for 10 s.
    let options = ClusterOptions {
        watch_timeout: 15,
        ..OPTIONS
    };
    let Some(cluster) = Cluster::start_or_report(options) else {
        return;
    };
    let image = Image::rbd(&cluster, "unknown", DISK_BYTES);
    let (mut server, mut guest) = (server(image), guest());
    let link = server.connect_guest(&mut guest);
    write(&mut guest, &link);
    let (key, _) = record(&cluster, "unknown");
    cluster.rbd(["image-meta", "remove", "unknown", &key]);
    server.kill();
    let link = server.connect_guest(&mut guest);
    let last = write(&mut guest, &link);
    server.stop();
    assert_written(image, &server, last);
}

/// The record of the only client of an image, with its key.
fn record(cluster: &Cluster, image: &str) -> (String, String) {
    let metadata = cluster.rbd(["image-meta", "list", "--format", "json", image]);
    let metadata: BTreeMap<String, String> = serde_json::from_str(&metadata).unwrap();
    let [record] = Vec::from_iter(metadata).try_into().unwrap();
    record
}

/// Changes the record of the lock's owner: another process had its number, and has ended.
fn declare_owner_dead(cluster: &Cluster, image: &str) {
    let (key, record) = record(cluster, image);
    let words = record.split_whitespace().map(|word| {
        let is_start = word.starts_with("start-ticks=");
        if is_start { "start-ticks=1" } else { word }
    });
    let record = words.collect::<Vec<_>>().join(" ");
    cluster.rbd(["image-meta", "set", image, &key, &record]);
}
