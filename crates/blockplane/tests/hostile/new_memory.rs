//! A new table of the guest's memory, set while a queue is disabled or stopped: the queue then finds requests in
//! the added memory.

use std::os::fd::AsFd;

use virtqueue::testing::TestMemory;

use crate::daemon::{Daemon, HOSTILE};
use crate::guest::*;
use crate::row::Answer;
use crate::wire::*;

const REGION_BYTES: u64 = 1 << 20;

/// What becomes of queue 0 while the table is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meanwhile {
    Runs,
    Disabled,
    Stopped,
}

/// How the front-end says that there is a second region.
#[derive(Clone, Copy, Debug)]
enum Said {
    SetMemTable,
    AddMemReg,
}

fn add_region(guest: &Guest, said: Said) {
    match said {
        Said::SetMemTable => guest.share_memory(),
        Said::AddMemReg => {
            let payload = single_region(guest.regions()[1]);
            guest.must(ADD_MEM_REG, &payload, &[guest.memory.region_file(1)]);
        }
    }
}

fn check(daemon: &Daemon, packed: u64, meanwhile: Meanwhile, said: Said) {
    let mut guest = Guest::connect(&daemon.socket(HOSTILE));
    let regions = [
        (MEMORY, REGION_BYTES),
        // Larger, so that there is a request for which only this one has room.
        (MEMORY + REGION_BYTES, 2 * REGION_BYTES),
    ];
    guest.memory = TestMemory::with_regions(&regions);
    guest.negotiate(FEATURES | packed);
    let first = &guest.regions()[..1];
    let file = guest.memory.region_file(0);
    match said {
        Said::SetMemTable => guest.must(SET_MEM_TABLE, &mem_table(first), &[file]),
        Said::AddMemReg => guest.must(ADD_MEM_REG, &single_region(first[0]), &[file]),
    }
    for index in [0, 1] {
        guest.set_up(index, ENTRIES);
        guest.start(index);
        assert_eq!(guest.verified_io(index as usize, 1, 1), Ok(()));
    }
    let mut base = 0;
    match meanwhile {
        Meanwhile::Runs => {}
        Meanwhile::Disabled => guest.must(SET_VRING_ENABLE, &u32s(&[0, 0]), &[]),
        Meanwhile::Stopped => {
            let reply = guest.wire.ask(GET_VRING_BASE, &u32s(&[0, 0]), &[]);
            base = u32::from_le_bytes(reply.unwrap()[4..8].try_into().unwrap());
        }
    }
    add_region(&guest, said);
    // From here on what is handed out is in the second region.
    guest.memory.alloc(REGION_BYTES, 4096);
    guest.submit(&[&request_header(T_IN, 0)], &[4096, 1]);
    assert_eq!(guest.verified_io(1, 2, 2), Ok(()), "the other queue");
    match meanwhile {
        Meanwhile::Runs => {}
        Meanwhile::Disabled => {
            let answered = guest.queues[0].ring.has_answered();
            assert!(!answered, "a disabled queue takes nothing");
            guest.must(SET_VRING_ENABLE, &u32s(&[0, 1]), &[]);
        }
        Meanwhile::Stopped => {
            guest.must(SET_VRING_BASE, &u32s(&[0, base]), &[]);
            // A queue that has stopped keeps no descriptors.
            let call = guest.queues[0].call.as_fd();
            guest.must(SET_VRING_CALL, &u64s(&[0]), &[call]);
            guest.start(0);
        }
    }
    let outcome = guest.outcome(0);
    assert_eq!(outcome, Answer::Status(0), "{meanwhile:?}, {said:?}");
}

#[test]
fn memory_added_while_a_queue_is_disabled_or_stopped_is_used() {
    let daemon = Daemon::start();
    for packed in [0, RING_PACKED] {
        for meanwhile in [Meanwhile::Runs, Meanwhile::Disabled, Meanwhile::Stopped] {
            for said in [Said::SetMemTable, Said::AddMemReg] {
                check(&daemon, packed, meanwhile, said);
            }
        }
    }
    assert_eq!(daemon.log(), "");
    daemon.stop("tables that change");
}
