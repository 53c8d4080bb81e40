//! A new table of the guest's memory, set while a queue is disabled or stopped: the queue then finds requests in
//! the added memory.

use std::os::fd::AsFd;

use virtqueue::testing::TestMemory;

use crate::daemon::{Daemon, HOSTILE};
use crate::front_end::*;
use crate::row::OK;
use crate::wire::*;

const REGION_BYTES: u64 = 1 << 20;

/// What becomes of queue 0 while the table is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meanwhile {
    Runs,
    Disabled,
    Stopped,
}

/// Says which regions there are, or adds the last of them.
fn share(guest: &HostileFrontEnd, regions: &[Region], add: bool) {
    let files: Vec<_> = (0..regions.len())
        .map(|index| guest.memory.region_file(index))
        .collect();
    let last = regions.len() - 1;
    match add {
        true => guest.must(ADD_MEM_REG, &single_region(regions[last]), &files[last..]),
        false => guest.must(SET_MEM_TABLE, &mem_table(regions), &files),
    }
}

fn check(daemon: &Daemon, packed: u64, meanwhile: Meanwhile, add: bool) {
    let mut guest = HostileFrontEnd::connect(&daemon.socket(HOSTILE));
    guest.memory = TestMemory::with_regions(&[
        (MEMORY, REGION_BYTES),
        // Larger, so that there is a request for which only this one has room.
        (MEMORY + REGION_BYTES, 2 * REGION_BYTES),
    ]);
    guest.negotiate(FEATURES | packed);
    let regions = guest.regions();
    share(&guest, &regions[..1], add);
    for index in [0, 1] {
        guest.set_up(index, ENTRIES);
        guest.start(index);
        assert_eq!(guest.verified_io(index as usize, 1, 1), Ok(()));
    }
    let mut base = 0;
    match meanwhile {
        Meanwhile::Runs => {}
        Meanwhile::Disabled => guest.wire.enable(0, false).unwrap(),
        Meanwhile::Stopped => base = guest.wire.stop(0).unwrap(),
    }
    share(&guest, &regions, add);
    // From here on what is handed out is in the second region.
    guest.memory.alloc(REGION_BYTES, 4096);
    guest.submit(&[&request_header(IN, 0)], &[4096, 1]);
    assert_eq!(guest.verified_io(1, 2, 2), Ok(()), "the other queue");
    match meanwhile {
        Meanwhile::Runs => {}
        Meanwhile::Disabled => {
            let answered = guest.queues[0].ring.has_answered();
            assert!(!answered, "a disabled queue takes nothing");
            guest.wire.enable(0, true).unwrap();
        }
        Meanwhile::Stopped => {
            guest.must(SET_VRING_BASE, &u32s(&[0, base]), &[]);
            // A queue that has stopped keeps no descriptors.
            let call = guest.queues[0].call.as_fd();
            guest.must(SET_VRING_CALL, &u64s(&[0]), &[call]);
            guest.start(0);
        }
    }
    assert_eq!(guest.outcome(0), OK, "{meanwhile:?}, one by one: {add}");
}

#[test]
fn memory_added_while_a_queue_is_disabled_or_stopped_is_used() {
    let daemon = Daemon::start();
    for packed in [0, RING_PACKED] {
        for meanwhile in [Meanwhile::Runs, Meanwhile::Disabled, Meanwhile::Stopped] {
            for add in [false, true] {
                check(&daemon, packed, meanwhile, add);
            }
        }
    }
    assert_eq!(daemon.log(), "");
    daemon.stop();
}
