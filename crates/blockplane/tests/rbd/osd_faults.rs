//! OSDs and monitors that end, restart and pause, and connections that are cut, under a verifying load: requests wait, none fails,
//! and no data is lost.
//!
//! `BLOCKPLANE_OSD_KILLS=10` kills the OSD so often instead of a few times.

use serde_json::json;
use test_support::ceph::{Auth, Cluster, ClusterOptions, ObjectStore};
use test_support::deadline::eventually;

use crate::client::Client;
use crate::disk::{Disk, SOCKET};
use crate::load::Load;
use crate::process::Folder;
use crate::{MIB, start, start_logging};

/// OSDs that are killed by default.
const KILLS: u32 = 3;

fn kills() -> u32 {
    let value = std::env::var("BLOCKPLANE_OSD_KILLS").ok();
    value.map_or(KILLS, |kills| kills.parse().expect("a number"))
}

/// A cluster whose daemons a test may end.
pub fn own_cluster(store: ObjectStore) -> Option<Cluster> {
    let options = ClusterOptions {
        store,
        auth: Auth::Cephx,
        manager: false,
        watch_timeout: 5,
    };
    Cluster::start_or_report(options)
}

/// No request of the disk has failed so far.
#[track_caller]
fn assert_none_failed(client: &mut Client) {
    let stats = client.done("query-blockstats", json!({}));
    let of_disk = &stats[0]["stats"];
    for failed in [
        "failed_rd_operations",
        "failed_wr_operations",
        "failed_flush_operations",
    ] {
        assert_eq!(of_disk[failed], 0, "{stats}");
    }
}

#[test]
fn killed_osds_and_restarted_monitors_are_a_pause() {
    let Some(mut cluster) = own_cluster(ObjectStore::BlueStore) else {
        return;
    };
    let line = Disk::create(&cluster, "faulty").line_with("", ",num-queues=2");
    let folder = Folder::new();
    let (mut program, mut client) = start(&folder, &line);
    let mut load = Load::connect(&mut program, &folder.join(SOCKET), 2, MIB);
    for _ in 0..kills() {
        load.run(300);
        load.fill();
        cluster.kill_osd();
        cluster.start_osd();
        load.run(300);
        load.fill();
        cluster.restart_monitor();
    }
    load.run(300);
    load.read_all();
    assert_none_failed(&mut client);
    program.stop();
    let disk = Disk::existing(&cluster, "faulty");
    load.assert_content(&disk.content());
}

/// librados closes the daemon's connections to the monitor and to the OSD itself, at random: Ceph's own injection of faults.
#[test]
fn cut_connections_are_a_pause() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    let disk = Disk::create(cluster, "cut-off");
    let line = disk.line_with_setting("cut-off.conf", "ms_inject_socket_failures = 100");
    let folder = Folder::new();
    let (mut program, mut client) = start_logging(&folder, &line, "info");
    let mut load = Load::connect(&mut program, &folder.join(SOCKET), 1, MIB);
    load.run(1000);
    eventually("connections are cut", || {
        program.stderr().contains("injecting socket failure")
    });
    load.read_all();
    assert_none_failed(&mut client);
    program.stop();
    load.assert_content(&disk.content());
}

#[test]
fn paused_osd_is_reported_as_late_requests_and_fails_none() {
    let Some(mut cluster) = own_cluster(ObjectStore::MemStore) else {
        return;
    };
    let line = Disk::create(&cluster, "paused").line_with("", ",request-timeout=1");
    let folder = Folder::new();
    let (mut program, mut client) = start(&folder, &line);
    let mut load = Load::connect(&mut program, &folder.join(SOCKET), 1, MIB);
    load.run(300);
    cluster.pause_osd();
    load.fill();
    let late = client.wait_for_event("BLOCK_EXPORT_REQUESTS_LATE");
    assert_eq!(late["id"], "e", "{late}");
    // Others work.
    client.done("query-block", json!({}));
    cluster.resume_osd();
    load.run(300);
    load.drain();
    program.stop();
    load.assert_content(&Disk::existing(&cluster, "paused").content());
}
