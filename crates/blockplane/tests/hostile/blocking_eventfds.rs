//! Eventfds that a front-end fills and makes blocking after the daemon has accepted them: the flag and the counter belong to
//! the file, which both sides hold.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{OFlags, fcntl_setfl};
use test_support::deadline::eventually;

use crate::daemon::{Daemon, HOSTILE};
use crate::front_end::*;
use crate::wire::*;

/// What the daemon logs when a write has blocked.
const WARNING: &str = "made an eventfd blocking and filled it";

/// Most that an eventfd counts by writes.
const FULL: u64 = u64::MAX - 1;

/// Makes the next write to an eventfd block.
fn fill_and_make_blocking(eventfd: &OwnedFd) {
    rustix::io::write(eventfd, &FULL.to_ne_bytes()).unwrap_or_else(|_| {
        // The signal that a new descriptor gets is in it: room for one less.
        rustix::io::write(eventfd, &(FULL - 1).to_ne_bytes()).unwrap()
    });
    fcntl_setfl(eventfd, OFlags::empty()).unwrap();
}

fn offender(daemon: &Daemon) -> HostileFrontEnd {
    let mut guest = HostileFrontEnd::connect(&daemon.socket(HOSTILE));
    guest.ready();
    guest
}

fn warnings(daemon: &Daemon) -> usize {
    daemon.log().matches(WARNING).count()
}

/// Once: after that the front-ends of this export are not signalled by writes.
#[test]
fn blocking_call_descriptor_does_not_block_the_iothread() {
    let daemon = Daemon::start();
    let guest = daemon.start_undisturbed_guest();
    for _ in 0..20 {
        let mut offender = offender(&daemon);
        let call = event();
        offender.must(SET_VRING_CALL, &u64s(&[0]), &[call.as_fd()]);
        // Answered after the message before it was taken by the iothread.
        offender.share_memory();
        fill_and_make_blocking(&call);
        for _ in 0..3 {
            offender.submit_read();
            offender.wait_for_used(0);
        }
        // The iothread is in, or past, the call now.
        guest.goes_on("a call that blocks");
    }
    eventually("the warning", || warnings(&daemon) > 0);
    let done = offender(&daemon).verified_io(0, 2, 0x5a);
    assert_eq!(done, Ok(()), "the next one is signalled");
    guest.stop();
    assert_eq!(warnings(&daemon), 1, "{}", daemon.log());
    daemon.stop();
}

#[test]
fn blocking_err_descriptor_does_not_block_the_iothread() {
    let daemon = Daemon::start();
    let guest = daemon.start_undisturbed_guest();
    let mut offender = offender(&daemon);
    fill_and_make_blocking(&offender.queues[0].err);
    // A request without a status byte.
    offender.submit(&[&request_header(IN, 0)], &[]);
    eventually("the warning", || warnings(&daemon) > 0);
    guest.goes_on("an err descriptor that blocks");
    let other = offender.verified_io(1, 2, 0x5a);
    assert_eq!(other, Ok(()), "the other queue");
    guest.stop();
    daemon.stop();
}

/// The control thread signals a queue that starts.
#[test]
fn blocking_call_descriptor_does_not_keep_a_queue_from_starting() {
    let daemon = Daemon::start();
    let mut guest = HostileFrontEnd::connect(&daemon.socket(HOSTILE));
    guest.negotiate(FEATURES);
    guest.set_up_first();
    fill_and_make_blocking(&guest.queues[0].call);
    guest.start(0);
    guest.submit_read();
    guest.wait_for_used(0);
    daemon.stop();
}
