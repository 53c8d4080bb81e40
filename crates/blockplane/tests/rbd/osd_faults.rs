//! OSDs and monitors that end, restart and pause under a verifying load: requests wait, none fails, and no data is lost.
//!
//! `BLOCKPLANE_OSD_KILLS=10` kills the OSD so often instead of a few times.

use rustix::process::Signal;
use test_support::ceph::{Auth, Cluster, ClusterOptions, ObjectStore};
use test_support::deadline::eventually;
use test_support::verifying::load::VerifyingLoad;

use crate::client::Client;
use crate::disk::{Disk, SOCKET};
use crate::process::Folder;
use crate::seen::{output_of, state};
use crate::{MIB, start};

/// OSDs that are killed by default.
const KILLS: u32 = 2;

fn kills() -> u32 {
    let value = std::env::var("BLOCKPLANE_OSD_KILLS").ok();
    value.map_or(KILLS, |kills| kills.parse().expect("a number"))
}

/// A cluster whose daemons a test may end.
fn own_cluster(store: ObjectStore) -> Option<Cluster> {
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
    let stats = client.execute("query-blockstats");
    for kind in ["rd", "wr", "flush"] {
        let failed = &stats[0]["stats"][&*format!("failed_{kind}_operations")];
        assert_eq!(failed, 0, "{stats}");
    }
}

#[test]
#[ignore = "full run only"]
fn killed_osds_and_restarted_monitors_are_a_pause() {
    let Some(mut cluster) = own_cluster(ObjectStore::BlueStore) else {
        return;
    };
    let line = Disk::create(&cluster, "faulty").line_with("", ",num-queues=2");
    let folder = Folder::new();
    let (mut program, mut client) = start(&folder, &line);
    let mut load = VerifyingLoad::connect(&mut program, &folder.join(SOCKET), 2, MIB);
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

#[test]
fn paused_cluster_is_reported_fails_no_requests_and_does_not_keep_the_daemon_from_ending() {
    let Some(mut cluster) = own_cluster(ObjectStore::MemStore) else {
        return;
    };
    let line = Disk::create(&cluster, "paused").line_with("", ",request-timeout=1");
    let folder = Folder::new();
    let (mut program, mut client) = start(&folder, &line);
    let mut load = VerifyingLoad::connect(&mut program, &folder.join(SOCKET), 1, MIB);
    load.run(300);
    cluster.pause_osd();
    load.fill();
    let late = client.wait_for_event("BLOCK_EXPORT_REQUESTS_LATE");
    assert_eq!(late["id"], "e", "{late}");
    // Others work.
    client.execute("query-block");
    eventually("a cluster that is not answering", || {
        state(&mut client)["state"] == "not-answering"
    });
    let seen = state(&mut client);
    assert!(seen["in-flight"].as_u64().unwrap() > 0, "{seen}");
    assert!(seen["not-answering-ns"].as_u64().unwrap() >= 5_000_000_000);
    let top = output_of(&folder, "top qmp --once --interval 100ms");
    let expected = "\n  rbd:rbd/paused: not answering for ";
    assert!(top.contains(expected), "{top}");
    cluster.resume_osd();
    load.run(300);
    load.read_all();
    assert_eq!(state(&mut client)["state"], "connected");
    program.stop();
    load.assert_content(&Disk::existing(&cluster, "paused").content());

    let (program, _) = start(&folder, &line);
    cluster.pause_osd();
    cluster.pause_monitor();
    program.signal(Signal::TERM);
    // Nothing was written, so there is nothing to wait for.
    assert_eq!(program.ended().code, Some(0));
}
