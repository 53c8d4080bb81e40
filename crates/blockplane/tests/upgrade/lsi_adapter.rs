//! Upgrade with LSI host adapters: they are handed over unless a front-end is connected.

use std::os::unix::net::UnixStream;

use test_support::upgraded_daemon::Daemon;

use crate::process::Folder;

#[test]
fn lsi_adapter_survives_upgrades_which_are_refused_while_it_has_a_front_end() {
    let folder = Folder::new();
    folder.image("disk.img", 1 << 20);
    let line = "--blockdev file,node-name=d,filename=disk.img,cache.direct=off \
        --export vfio-user-lsi53c895a,id=adapter,addr.type=unix,addr.path=s,luns.0.node-name=d,luns.0.target=3,luns.0.pr-file=kept";
    let mut daemon = Daemon::start_in(folder, line, &[]);
    for _ in 0..2 {
        daemon.upgrade();
    }
    // Nor does it stay out of reach when an upgrade fails.
    daemon.replace_program("exit 7");
    daemon.fails_to_upgrade();
    daemon.restore_program();
    let mut client = daemon.client();
    let front_end = UnixStream::connect(daemon.folder.join("s")).unwrap();
    client.event("BLOCK_EXPORT_CONNECTED", "adapter");
    let said = daemon.fails_to_upgrade();
    for expected in [
        "export 'adapter' is a vfio-user-lsi53c895a with a front-end",
        "disconnect it first",
    ] {
        assert!(said.contains(expected), "{said}");
    }
    drop(front_end);
    client.event("BLOCK_EXPORT_DISCONNECTED", "adapter");
    drop(client);
    daemon.upgrade();
    daemon.stop();
}
