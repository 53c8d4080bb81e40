//! Locks of files that are handed over: no other process gets one meanwhile.

use crate::daemon::Daemon;
use crate::lock_contender::LockContender;
use crate::process::Folder;

const UPGRADES: usize = 5;

/// An image that a guest writes, and a read-only one.
fn daemon() -> Daemon {
    let folder = Folder::new();
    for name in ["disk.img", "read-only.img"] {
        folder.image(name, 16 << 20);
    }
    let line = "--object iothread,id=io0 \
        --blockdev file,node-name=d,filename=disk.img,cache.direct=off \
        --blockdev file,node-name=r,filename=read-only.img,cache.direct=off,read-only=on \
        --export vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path=s,writable=on,iothread=io0 \
        --export vhost-user-blk,id=r,node-name=r,addr.type=unix,addr.path=r,iothread=io0";
    Daemon::start_in(folder, line, &[])
}

#[test]
fn upgrade_never_releases_locks_of_images_and_the_pidfile() {
    let mut daemon = daemon();
    for name in ["disk.img", "read-only.img", "pid"] {
        let path = daemon.folder.join(name);
        let contender = match name {
            "pid" => LockContender::for_file(&path),
            _ => LockContender::for_image(&path),
        };
        let load = daemon.load(1, 1);
        for _ in 0..UPGRADES {
            daemon.upgrade();
            contender.has_tried_again();
        }
        load.ended_well();
        contender.has_tried_again();
    }
    daemon.stop();
}

/// The new process has the files as well, and ends with them.
#[test]
fn failed_upgrade_never_releases_image_locks() {
    let mut daemon = daemon();
    let contender = LockContender::for_image(&daemon.folder.join("disk.img"));
    let program = env!("CARGO_BIN_EXE_blockplane");
    let load = daemon.load(1, 1);
    let mut failed = 0;
    // With more descriptors each time it comes a step further.
    for limit in (12..200).step_by(4) {
        daemon.replace_program(&format!("ulimit -n {limit}; exec {program} \"$@\""));
        let said = daemon.folder.run("upgrade qmp");
        contender.has_tried_again();
        if said.code == Some(0) {
            daemon.forget_first();
            break;
        }
        failed += 1;
    }
    assert!(failed > 2, "{failed} upgrades failed");
    load.ended_well();
    contender.has_tried_again();
    daemon.stop();
}
