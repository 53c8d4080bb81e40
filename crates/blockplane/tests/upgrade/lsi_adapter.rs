//! Upgrade with LSI host adapters: they are handed over unless a front-end is connected.

use std::os::unix::net::UnixStream;

use crate::daemon::Daemon;
use crate::process::Folder;

fn adapter() -> Daemon {
    let folder = Folder::new();
    folder.image("disk.img", 1 << 20);
    let line = "--blockdev file,node-name=d,filename=disk.img,cache.direct=off \
        --export vfio-user-lsi53c895a,id=adapter,addr.type=unix,addr.path=s,luns.0.node-name=d,luns.0.target=3,luns.0.pr-file=kept";
    Daemon::start_in(folder, line, &[])
}

#[test]
fn lsi_adapter_without_a_front_end_survives_upgrades() {
    let mut daemon = adapter();
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
    drop(front_end);
    client.event("BLOCK_EXPORT_DISCONNECTED", "adapter");
    drop(client);
    daemon.stop();
}

#[test]
fn upgrade_refuses_an_lsi_adapter_with_a_front_end() {
    let mut daemon = adapter();
    let mut client = daemon.client();
    let front_end = UnixStream::connect(daemon.folder.join("s")).unwrap();
    client.event("BLOCK_EXPORT_CONNECTED", "adapter");
    let said = daemon.fails_to_upgrade();
    assert!(
        said.contains("export 'adapter' is a vfio-user-lsi53c895a with a front-end"),
        "{said}"
    );
    assert!(said.contains("disconnect it first"), "{said}");
    drop(front_end);
    client.event("BLOCK_EXPORT_DISCONNECTED", "adapter");
    drop(client);
    daemon.upgrade();
    daemon.stop();
}
