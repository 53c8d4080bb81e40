//! `VIRTIO_F_RING_RESET` over vhost-user: a driver resets one queue, which the front-end carries out by
//! stopping it and setting it up anew, elsewhere and of another size. The other queue does not stop.

use crate::daemon::{Daemon, HOSTILE, SLOW};
use crate::guest::*;
use crate::inflight::{INFLIGHT_SHMFD, pass};
use crate::row::Answer;
use crate::wire::*;

/// `VIRTIO_F_RING_RESET`
const RING_RESET: u64 = 1 << 40;
/// A queue that stops leaves what is not done in its record.
const GET_VRING_BASE_INFLIGHT: u64 = 1 << 20;

fn guest(daemon: &Daemon, export: &str, also: u64) -> Guest {
    let mut guest = Guest::connect(&daemon.socket(export));
    guest.ready_with(FEATURES | RING_RESET | EVENT_IDX | also, ENTRIES);
    guest
}

/// Stops queue 0; where it stood.
fn stop(guest: &Guest) -> u32 {
    let reply = guest.wire.ask(GET_VRING_BASE, &u32s(&[0, 0]), &[]);
    let reply = reply.expect("a stopped queue says where it stands");
    assert_eq!(reply[..4], [0; 4], "it is queue 0");
    u32::from_le_bytes(reply[4..8].try_into().unwrap())
}

#[test]
fn queue_reset_does_not_disturb_the_other_queue() {
    let daemon = Daemon::start();
    for packed in [0, RING_PACKED] {
        let mut guest = guest(&daemon, HOSTILE, packed);
        for (round, entries) in (1u8..).zip([ENTRIES, 4, 256, 8, 1024, 16]) {
            for index in [0, 1] {
                assert_eq!(guest.verified_io(index, 3, round), Ok(()), "queue {index}");
            }
            stop(&guest);
            // What it did not take is forgotten with it.
            guest.submit_read();
            assert_eq!(
                guest.verified_io(1, 4, round),
                Ok(()),
                "beside a stopped one"
            );
            guest.set_up_anew(0, entries);
            guest.start(0);
        }
        assert_eq!(guest.verified_io(0, 3, 99), Ok(()), "after the last reset");
    }
    assert_eq!(daemon.log(), "");
    daemon.stop("queues that are reset");
}

/// A queue with an in-flight region, but without requests in flight, can be reset.
#[test]
fn queue_with_inflight_region_can_be_reset() {
    let daemon = Daemon::start();
    for packed in [0, RING_PACKED] {
        let mut guest = Guest::connect(&daemon.socket(HOSTILE));
        guest.negotiate(FEATURES | RING_RESET | packed);
        let also = INFLIGHT_SHMFD | GET_VRING_BASE_INFLIGHT;
        let features = ALL_PROTOCOL_FEATURES | also;
        guest.must(SET_PROTOCOL_FEATURES, &u64s(&[features]), &[]);
        guest.share_memory();
        let _record = pass(&guest, &[]);
        guest.set_up(0, ENTRIES);
        guest.start(0);
        for (round, entries) in (1u8..).zip([ENTRIES, 8, 16]) {
            assert_eq!(guest.verified_io(0, 3, round), Ok(()), "round {round}");
            stop(&guest);
            guest.set_up_anew(0, entries);
            guest.start(0);
        }
        assert_eq!(guest.verified_io(0, 3, 99), Ok(()), "after the last reset");
    }
    assert_eq!(daemon.log(), "");
    daemon.stop("queues with a record that are reset");
}

#[test]
fn queue_reset_waits_for_its_own_requests_only() {
    let daemon = Daemon::start();
    for packed in [0, RING_PACKED] {
        let mut guest = guest(&daemon, SLOW, packed);
        for _ in 0..3 {
            guest.submit_read();
        }
        let last = guest.queues[0].status;
        // The other queue has one as well; it is answered whatever becomes of this one.
        guest.begin(1, T_IN, 0);
        guest.wait_until_taken(if packed == 0 { 3 } else { 9 });
        let base = stop(&guest);
        assert_eq!(guest.memory.read(last, 1), [0], "answered");
        let taken = if packed == 0 { 3 } else { 0x8009_8009 };
        assert_eq!(base, taken, "all that it took");
        assert_eq!(guest.outcome(1), Answer::Status(0), "the other queue");
        guest.set_up_anew(0, 8);
        guest.start(0);
        guest.begin(0, T_IN, 0);
        assert_eq!(guest.outcome(0), Answer::Status(0), "the queue made anew");
    }
    daemon.stop("queues that are reset with requests in flight");
}
