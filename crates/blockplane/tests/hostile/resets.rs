//! Resets of a device (`RESET_DEVICE`) and of one queue (`VIRTIO_F_RING_RESET`, which a front-end carries out by stopping the queue
//! and setting it up anew, elsewhere and of another size).

use crate::daemon::{Daemon, HOSTILE, SLOW};
use crate::front_end::*;
use crate::inflight::{self, INFLIGHT_SHMFD};
use crate::row::OK;
use crate::wire::*;

/// `VIRTIO_F_RING_RESET`
const RING_RESET: u64 = 1 << 40;
/// A queue that stops leaves what is not done in its record.
const GET_VRING_BASE_INFLIGHT: u64 = 1 << 20;

/// All queues stop, and what was said of them is forgotten. A driver that follows begins at its rings' beginnings, also if its
/// front-end does not say so.
#[test]
fn device_reset_restarts_rings_at_index_0() {
    let daemon = Daemon::start();
    for packed in [0, RING_PACKED] {
        let mut guest = HostileFrontEnd::connect(&daemon.socket(HOSTILE));
        guest.ready_with(FEATURES | packed, ENTRIES);
        for round in 1..4 {
            for index in [0, 1] {
                // Past the ring's end.
                for block in 0..u64::from(ENTRIES) {
                    let done = guest.verified_io(index, block, round);
                    assert_eq!(done, Ok(()), "round {round}, queue {index}");
                }
            }
            // One has stopped already, and its front-end knows where; the other has not.
            assert_ne!(guest.wire.stop(1), Ok(0));
            guest.must(RESET_DEVICE, &[], &[]);
            for index in [0, 1] {
                assert_eq!(guest.wire.stop(index), Ok(0), "queue {index}");
                guest.set_up_without_base(index, ENTRIES);
                guest.start(index);
            }
        }
        let done = guest.verified_io(0, 1, 99);
        assert_eq!(done, Ok(()), "after the last reset");
    }
    assert_eq!(daemon.log(), "");
    daemon.stop();
}

/// A request that the previous driver has left in flight must not be carried out for the next one.
#[test]
fn device_reset_clears_the_records_of_requests_in_flight() {
    let daemon = Daemon::start();
    let mut guest = HostileFrontEnd::connect(&daemon.socket(HOSTILE));
    guest.negotiate_also(FEATURES, INFLIGHT_SHMFD);
    guest.share_memory();
    let words = inflight::words_of_ninth_descriptor_in_flight();
    inflight::pass(&guest, &inflight::buffer(&words));
    guest.must(RESET_DEVICE, &[], &[]);
    for index in [0, 1] {
        guest.set_up(index, ENTRIES);
        guest.start(index);
        let done = guest.verified_io(index as usize, 3, 7);
        assert_eq!(done, Ok(()), "queue {index}");
    }
    assert_eq!(daemon.log(), "");
    daemon.stop();
}

/// Also of a queue with an in-flight region, but without requests in flight.
#[test]
fn queue_reset_does_not_disturb_the_other_queue() {
    let daemon = Daemon::start();
    for (packed, recorded) in [
        (0, false),
        (0, true),
        (RING_PACKED, false),
        (RING_PACKED, true),
    ] {
        let mut guest = HostileFrontEnd::connect(&daemon.socket(HOSTILE));
        let also = match recorded {
            true => INFLIGHT_SHMFD | GET_VRING_BASE_INFLIGHT,
            false => 0,
        };
        guest.negotiate_also(FEATURES | RING_RESET | EVENT_IDX | packed, also);
        guest.share_memory();
        if recorded {
            inflight::pass(&guest, &inflight::file(1 << 16));
        }
        for index in 0..2 {
            guest.set_up(index, ENTRIES);
            guest.start(index);
        }
        let sizes = if recorded {
            vec![ENTRIES, 8, 16]
        } else {
            vec![ENTRIES, 4, 256, 8, 1024, 16]
        };
        for (round, entries) in (1u8..).zip(sizes) {
            for index in [0, 1] {
                assert_eq!(guest.verified_io(index, 3, round), Ok(()), "queue {index}");
            }
            guest.wire.stop(0).unwrap();
            // What it did not take is forgotten with it.
            guest.submit_read();
            let other = guest.verified_io(1, 4, round);
            assert_eq!(other, Ok(()), "beside a stopped one");
            guest.set_up(0, entries);
            guest.start(0);
        }
        assert_eq!(guest.verified_io(0, 3, 99), Ok(()), "after the last reset");
    }
    assert_eq!(daemon.log(), "");
    daemon.stop();
}

#[test]
fn queue_reset_waits_for_its_own_requests_only() {
    let daemon = Daemon::start();
    // Where the queue stands when it has taken three requests.
    for (packed, taken, base) in [(0, 3, 3), (RING_PACKED, 9, 0x8009_8009)] {
        let mut guest = HostileFrontEnd::connect(&daemon.socket(SLOW));
        guest.ready_with(FEATURES | RING_RESET | EVENT_IDX | packed, ENTRIES);
        for _ in 0..3 {
            guest.submit_read();
        }
        let last = guest.queues[0].status;
        // The other queue has one as well; it is answered whatever becomes of this one.
        guest.begin(1, IN, 0);
        guest.wait_until_taken(taken);
        assert_eq!(guest.wire.stop(0), Ok(base), "all that it took");
        assert_eq!(guest.memory.read(last, 1), [0], "answered");
        assert_eq!(guest.outcome(1), OK, "the other queue");
        guest.set_up(0, 8);
        guest.start(0);
        guest.begin(0, IN, 0);
        assert_eq!(guest.outcome(0), OK, "the queue made anew");
    }
    daemon.stop();
}
