//! Writes of drivers that can flush, and of drivers that cannot, seen in the host's page cache: what is dirty there is lost
//! with the host.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::Path;

use crate::process::Folder;
use crate::request_driver::{BLOCK, FLUSH, OUT, RequestDriver};

const BLOCKS: u64 = 64;

/// Pages of a file that are in the page cache only. `None`: the kernel does not say that (Linux has since 6.5).
fn dirty(path: &Path) -> Option<u64> {
    const CACHESTAT: libc::c_long = 451;
    let file = File::open(path).unwrap();
    let range = [0_u64; 2];
    let mut found = [0_u64; 5];
    // SAFETY: a range, to the file's end, and room for the five numbers that the kernel writes.
    let result = unsafe { libc::syscall(CACHESTAT, file.as_raw_fd(), &range, &mut found, 0) };
    // Dirty pages, and those that are being written.
    (result == 0).then(|| found[1] + found[2])
}

/// Whether the page cache tells what was synced. If not, that was said.
fn is_observable(folder: &Folder) -> bool {
    let path = folder.join("probe");
    let mut file = File::create(&path).unwrap();
    file.write_all(&[1; 4096]).unwrap();
    let written = dirty(&path);
    file.sync_data().unwrap();
    let observable = written > Some(0) && dirty(&path) == Some(0);
    if !observable {
        test_support::report::not_run("cachestat(2) does not tell dirty pages from others here");
    }
    observable
}

/// A driver that can flush is followed by one that cannot, which connects anew or negotiates on the same connection.
#[test]
fn writes_are_stable_for_a_driver_that_cannot_flush() {
    for reconnects in [true, false] {
        let folder = Folder::new();
        if is_observable(&folder) {
            next_is_without_flush(&folder, reconnects);
        }
    }
}

/// The writes of the driver that cannot flush must be on the disk once they are completed.
fn next_is_without_flush(folder: &Folder, reconnects: bool) {
    folder.image("disk.img", BLOCKS * BLOCK as u64);
    let line = "--blockdev file,node-name=d,filename=disk.img,cache.direct=off \
         --export vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path=s,writable=on";
    let server = folder.start(line, "s");
    let image = folder.join("disk.img");
    let mut guest = RequestDriver::connect(&folder.join("s"), 1);
    guest.request(0, OUT, 1, 7);
    // The kernel may be quick; once it is not.
    for block in 2..10 {
        if dirty(&image) == Some(0) {
            guest.request(0, OUT, block, 7);
        }
    }
    assert_ne!(dirty(&image), Some(0), "writes of a driver that can flush");
    let base = guest.stop(0);
    if reconnects {
        drop(guest);
        guest = RequestDriver::connect_without_flush(&folder.join("s"), 1);
    } else {
        guest.negotiate_without_flush();
        guest.start(0, base);
    }
    assert_eq!(dirty(&image), Some(0), "what was written before");
    for block in 20..40 {
        guest.request(0, OUT, block, 8);
        assert_eq!(
            dirty(&image),
            Some(0),
            "a write of a driver that cannot flush"
        );
    }
    drop(guest);
    // A driver that can flush does so by itself again.
    let mut guest = RequestDriver::connect(&folder.join("s"), 1);
    guest.request(0, OUT, 1, 9);
    guest.request(0, FLUSH, 0, 0);
    assert_eq!(dirty(&image), Some(0), "after a flush");
    drop(guest);
    server.stop();
}
