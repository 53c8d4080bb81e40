//! Locks of files that are handed over: no other process gets one meanwhile.

use test_support::lock_contender::LockContender;
use test_support::upgraded_daemon::Daemon;

use crate::process::Folder;

const UPGRADES: usize = 5;

/// Of an image that a guest writes, of a read-only one and of the pidfile. (For failed upgrades see `load`.)
#[test]
fn upgrade_never_releases_locks_of_images_and_the_pidfile() {
    let folder = Folder::new();
    for name in ["disk.img", "read-only.img"] {
        folder.image(name, 16 << 20);
    }
    let line = "--object iothread,id=io0 \
        --blockdev file,node-name=d,filename=disk.img,cache.direct=off \
        --blockdev file,node-name=r,filename=read-only.img,cache.direct=off,read-only=on \
        --export vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path=s,writable=on,iothread=io0 \
        --export vhost-user-blk,id=r,node-name=r,addr.type=unix,addr.path=r,iothread=io0";
    let mut daemon = Daemon::start_in(folder, line, &[]);
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
