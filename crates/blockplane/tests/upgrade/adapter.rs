//! Host adapters: with nobody connected they are handed over, with somebody they are not.

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
fn an_adapter_without_a_front_end_is_there_after_upgrades() {
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
fn one_with_a_front_end_is_refused_by_name() {
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
