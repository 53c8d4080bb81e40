//! `RESET_DEVICE`: all queues stop, and what was said of them is forgotten. A driver that follows begins at its rings'
//! beginnings, also if its front-end does not say so.

use crate::daemon::{Daemon, HOSTILE};
use crate::guest::*;
use crate::wire::*;

/// Where a queue that does not run would start.
fn base(guest: &Guest, index: u32) -> u32 {
    let reply = guest.wire.ask(GET_VRING_BASE, &u32s(&[index, 0]), &[]);
    let reply = reply.expect("a stopped queue says where it stands");
    u32::from_le_bytes(reply[4..8].try_into().unwrap())
}

#[test]
fn device_reset_restarts_rings_at_index_0() {
    let daemon = Daemon::start();
    for packed in [0, RING_PACKED] {
        let mut guest = Guest::connect(&daemon.socket(HOSTILE));
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
            assert_ne!(base(&guest, 1), 0);
            guest.must(RESET_DEVICE, &[], &[]);
            for index in [0, 1] {
                assert_eq!(base(&guest, index), 0, "queue {index}");
                guest.set_up_without_base(index, ENTRIES);
                guest.start(index);
            }
        }
        let done = guest.verified_io(0, 1, 99);
        assert_eq!(done, Ok(()), "after the last reset");
    }
    assert_eq!(daemon.log(), "");
    daemon.stop("devices that are reset");
}
