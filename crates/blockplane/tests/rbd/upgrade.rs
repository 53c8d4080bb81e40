//! Live upgrades of a daemon with an image, under a verifying load.
//!
//! `BLOCKPLANE_RBD_UPGRADES=10` upgrades so often instead of three times. With `--nocapture`, the longest time without a completed write
//! of each upgrade is printed.

use test_support::deadline::eventually;
use test_support::sockets;
use test_support::upgraded_daemon::Daemon;
use test_support::verifying::load::VerifyingLoad;

use crate::disk::SOCKET;
use crate::process::Folder;
use crate::{MIB, new_disk};

/// Upgrades under load by default.
const UPGRADES: u32 = 3;

fn upgrades() -> u32 {
    let value = std::env::var("BLOCKPLANE_RBD_UPGRADES").ok();
    value.map_or(UPGRADES, |upgrades| upgrades.parse().expect("a number"))
}

#[test]
fn upgrades_under_load_lose_nothing_and_leave_one_client() {
    let Some(disk) = new_disk("upgraded") else {
        return;
    };
    let line = format!(
        "--object iothread,id=io0 --object iothread,id=io1 {}",
        disk.line_with("", ",num-queues=2,iothread.0=io0,iothread.1=io1")
    );
    let mut daemon = Daemon::start_in(Folder::new(), &line, &[]);
    let stream = sockets::connect(&daemon.folder.join(SOCKET));
    let mut load = VerifyingLoad::over(sockets::limited(stream), 2, MIB);
    load.run(50);
    daemon.upgrade();
    // The old process has ended, and closed the image before: the cluster would wait for it whenever the lock changes hands.
    assert_eq!(disk.watchers(), 1);
    let mut holders = Vec::new();
    for _ in 0..upgrades() {
        let holder = disk.lock_holder();
        let pause = load.run_while(|| {
            daemon.upgrade();
            eventually("the new process has the lock", || {
                let now = disk.lock_holder();
                now.is_some() && now != holder
            });
        });
        println!("longest time without a completed write: {pause:?}");
        holders.extend(holder);
    }
    load.read_all();
    // The old processes have released the lock themselves.
    let blocked = disk.cluster.ceph(["osd", "blocklist", "ls"]);
    for holder in holders {
        assert!(!blocked.contains(&holder), "{holder}: {blocked}");
    }
    eventually("one client", || disk.watchers() == 1);
    daemon.stop();
    disk.is_closed();
    load.assert_content(&disk.content());
}
