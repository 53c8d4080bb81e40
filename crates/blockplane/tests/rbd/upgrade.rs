//! Live upgrades of a daemon with an image, under a verifying load.
//!
//! `BLOCKPLANE_UPGRADES=10` upgrades so often instead of three times. With `--nocapture`, the longest time without a completed write
//! of each upgrade is printed.

use std::thread;

use test_support::ceph::Cluster;
use test_support::deadline::eventually;
use test_support::sockets;

use crate::MIB;
use crate::disk::{Disk, SOCKET, export_of};
use crate::guest::{BLOCK, Guest, IN, OUT};
use crate::load::Load;
use crate::process::Folder;
use crate::upgraded_daemon::Daemon;

/// Upgrades under load by default.
const UPGRADES: u32 = 3;

fn upgrades() -> u32 {
    let value = std::env::var("BLOCKPLANE_UPGRADES").ok();
    value.map_or(UPGRADES, |upgrades| upgrades.parse().expect("a number"))
}

#[test]
fn upgrades_under_load_lose_nothing_and_leave_one_client() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    let disk = Disk::create(cluster, "upgraded");
    let line = format!(
        "--object iothread,id=io0 --object iothread,id=io1 {}",
        disk.line_with("", ",num-queues=2,iothread.0=io0,iothread.1=io1")
    );
    let mut daemon = Daemon::start_in(Folder::new(), &line, &[]);
    let stream = sockets::connect(&daemon.folder.join(SOCKET));
    let mut load = Load::over(sockets::limited(stream), 2, MIB);
    load.run(50);
    daemon.upgrade();
    // The old process has ended, and closed the image before: the cluster would wait for it whenever the lock changes hands.
    assert_eq!(disk.watchers(), 1);
    let mut holders = Vec::new();
    for _ in 0..upgrades() {
        let holder = disk.lock_holder();
        let pause = thread::scope(|scope| {
            let upgrading = scope.spawn(|| {
                daemon.upgrade();
                eventually("the new process has the lock", || {
                    let now = disk.lock_holder();
                    now.is_some() && now != holder
                });
            });
            let pause = load.run_until(|| upgrading.is_finished());
            upgrading.join().unwrap();
            pause
        });
        println!("longest time without a completed write: {pause:?}");
        holders.extend(holder);
    }
    load.read_all();
    // The old processes have released the lock themselves.
    let blocked = cluster.ceph(["osd", "blocklist", "ls"]);
    for holder in holders {
        assert!(!blocked.contains(&holder), "{holder}: {blocked}");
    }
    eventually("one client", || disk.watchers() == 1);
    daemon.stop();
    disk.is_closed();
    load.assert_content(&disk.content());
}

/// A key that was given to the old process is the new one's as well; an idle disk has no lock to move.
#[test]
fn upgrade_of_an_idle_image_with_a_secret_keeps_its_data() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    let disk = Disk::create(cluster, "upgraded-idle");
    let folder = Folder::new();
    let key = cluster.key("admin");
    std::fs::write(folder.join("key"), key).unwrap();
    let monitor = cluster.monitor_address();
    let line = format!(
        "--object secret,id=k,format=base64,file=key \
         --blockdev rbd,node-name=d,pool=rbd,image={},key-secret=k,conf=/dev/null,server.0.host={},server.0.port={} {}",
        disk.name,
        monitor.ip(),
        monitor.port(),
        export_of("d", "")
    );
    let mut daemon = Daemon::start_in(folder, &line, &[]);
    for round in 1..3 {
        let socket = daemon.folder.join(SOCKET);
        let mut guest = Guest::connect(&socket, 1);
        guest.request(0, OUT, 0, round);
        drop(guest);
        std::fs::remove_file(daemon.folder.join("key")).ok();
        daemon.upgrade();
        let mut guest = Guest::connect(&socket, 1);
        guest.request(0, IN, 0, 0);
        assert_eq!(guest.data(0, 0), [round; BLOCK]);
    }
    daemon.stop();
}
