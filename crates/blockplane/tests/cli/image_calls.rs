//! Calls of an image of Ceph while no thread can be started. There is no cluster.

use crate::control_threads::limit_threads;
use crate::request_driver::{OUT, RequestDriver};
use crate::stub_image::{Control, EXCLUSIVE_LOCK, Served};

/// A daemon that exports an image with an exclusive lock, and its guest.
fn start() -> Option<(Served, RequestDriver)> {
    let options = "--export vhost-user-blk,id=e,node-name=d,writable=on,addr.type=unix,addr.path=s";
    let served = Served::start(options, EXCLUSIVE_LOCK)?;
    let guest = RequestDriver::connect(&served.folder.join("s"), 1);
    Some((served, guest))
}

/// Removes the node, whose image is then closed.
fn remove_and_stop(mut served: Served, guest: RequestDriver) {
    drop(guest);
    served.client.execute(
        "block-export-del id=e mode=hard
         blockdev-del node-name=d",
    );
    served.wait_for(Control::Closed, 1);
    served.program.stop();
}

#[test]
fn first_write_acquires_the_lock_while_no_thread_can_be_started() {
    let Some((served, mut guest)) = start() else {
        return;
    };
    limit_threads(&served.program, Some(1));
    guest.request(0, OUT, 0, 1);
    assert_eq!(served.get(Control::OwnsLock), 1);
    limit_threads(&served.program, None);
    remove_and_stop(served, guest);
}

#[test]
fn lock_is_released_while_no_thread_can_be_started() {
    let Some((served, mut guest)) = start() else {
        return;
    };
    guest.request(0, OUT, 0, 1);
    limit_threads(&served.program, Some(1));
    guest.stop(0);
    served.wait_for(Control::OwnsLock, 0);
    limit_threads(&served.program, None);
    remove_and_stop(served, guest);
}
