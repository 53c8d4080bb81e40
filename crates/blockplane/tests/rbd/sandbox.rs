//! Images that a monitor adds to a daemon in its sandbox, which was started without one.

use std::fs;

use test_support::upgraded_daemon::Daemon;

use crate::disk::{SOCKET, read};
use crate::process::Folder;
use crate::request_driver::{BLOCK, OUT, RequestDriver};
use crate::{new_disk, start};

/// A keyring may be in /etc, or beside the configuration.
#[test]
fn keyring_that_the_sandbox_hides_is_named() {
    let Some(disk) = new_disk("hidden-keyring") else {
        return;
    };
    let (folder, elsewhere) = (Folder::new(), Folder::new());
    let keyring = elsewhere.join("keyring");
    fs::copy(disk.cluster.keyring(), &keyring).unwrap();
    let (monitor, path) = (disk.cluster.monitor_address(), keyring.display());
    let conf = format!("[global]\nmon_host = v2:{monitor}\nkeyring = {path}\n");
    fs::write(folder.join("ceph.conf"), conf).unwrap();
    let line = format!(
        "serve rbd:rbd/{}:conf=ceph.conf --socket {SOCKET}",
        disk.name
    );
    let output = folder.run(&line);
    output.assert_fails_naming(&["client.admin", &path.to_string(), "the sandbox permits"]);
    // librados takes the first keyring that it can open.
    let conf = format!("[global]\nmon_host = v2:{monitor}\nkeyring = /nonexistent/a,{path}\n");
    fs::write(folder.join("ceph.conf"), conf).unwrap();
    let line = format!("{line} --sandbox off");
    folder.start(&line, SOCKET).stop();
}

/// The configuration of the cluster is where no sandbox expects it, and the new process of an upgrade is in the same sandbox.
#[test]
fn image_added_by_a_monitor_needs_the_sandbox_to_allow_it() {
    let Some(disk) = new_disk("allowed") else {
        return;
    };
    let folder = Folder::new();
    let (program, mut client) = start(&folder, "");
    let refused = client.fails("blockdev-add", disk.node_json("d"));
    assert!(refused.contains("--sandbox on,rbd=allow"), "{refused}");
    program.stop();
    let (program, mut client) = start(&folder, "--sandbox off");
    client.done("blockdev-add", disk.node_json("d"));
    program.stop();

    let mut daemon = Daemon::start_in(Folder::new(), "--sandbox on,rbd=allow", &[]);
    disk.add_to(&mut daemon.client());
    for byte in 1..3 {
        let mut guest = RequestDriver::connect(&daemon.folder.join(SOCKET), 1);
        guest.request(0, OUT, 0, byte);
        assert_eq!(read(&mut guest, 0), [byte; BLOCK]);
        drop(guest);
        daemon.upgrade();
    }
    daemon.stop();
}
