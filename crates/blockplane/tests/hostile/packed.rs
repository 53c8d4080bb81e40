//! Packed queues: what the other tables have for both forms, and what only these can have wrong.

use test_support::events::signal;
use test_support::repeating_thread::RepeatingThread;
use virtqueue::testing::{DESC_F_NEXT, DESC_F_WRITE};

use crate::changing_rings::reads_while;
use crate::front_end::*;
use crate::rings::read;
use crate::row::Answer::{Broken, Contained};
use crate::row::{OK, Rows};
use crate::wire::*;

pub fn rows(rows: &mut Rows) {
    crate::rings::of_both_forms(rows);
    crate::requests::on_a_writable_disk(rows);
    chains(rows);
    set_up(rows);
    changing(rows);
    rows.make_packed();
}

fn chains(rows: &mut Rows) {
    let row = rows.running("a chain that takes the ring and goes on", Broken, |guest| {
        let mut descriptor = read(guest)[1];
        descriptor.flags = DESC_F_NEXT | DESC_F_WRITE;
        descriptor.len = 1;
        guest.chain(0, &[descriptor; ENTRIES as usize])
    });
    row.says("runs into 0 descriptors that the device has: the ring is of 16");
}

/// Both queues described, and the second one started.
fn second_started(guest: &mut HostileFrontEnd) {
    guest.share_memory();
    for index in 0..2 {
        guest.set_up(index, ENTRIES);
    }
    guest.start(1);
}

fn set_up(rows: &mut Rows) {
    for entries in [3, 100, 1023] {
        rows.row(format!("a ring of {entries}"), OK, move |guest| {
            guest.ready_with(FEATURES | EVENT_IDX, entries);
            for round in 0..20 {
                let done = guest.verified_io(0, u64::from(round), round);
                assert_eq!(done, Ok(()), "round {round}");
            }
            guest.read_sector()
        });
    }
    for base in [u32::from(ENTRIES), 0x8000 | 1000, 0x7fff, u32::MAX] {
        let what = format!("SET_VRING_BASE: {base:#x}");
        let row = rows.negotiated(what, Broken, move |guest| {
            second_started(guest);
            guest.must(SET_VRING_BASE, &u32s(&[0, base]), &[]);
            guest.try_start(0)
        });
        row.says("expected an index below the queue size 16");
    }
    rows.negotiated("a base of 0, as of split queues", OK, |guest| {
        second_started(guest);
        guest.must(SET_VRING_BASE, &u32s(&[0, 0]), &[]);
        guest.start(0);
        guest.read_sector()
    });
    // The wire library checks the others, as for split queues.
    let row = rows.negotiated("driver event area: misaligned", Broken, |guest| {
        second_started(guest);
        let layout = guest.queues[0].ring.layout();
        let [desc, avail, used] =
            [layout.desc, layout.avail + 2, layout.used].map(|addr| guest.memory.user_addr(addr));
        guest.must(SET_VRING_ADDR, &vring_addr(0, 0, desc, avail, used), &[]);
        guest.try_start(0)
    });
    row.says("expected an address aligned to 4 bytes");
}

fn changing(rows: &mut Rows) {
    rows.row("driver event area: flips", OK, |guest| {
        guest.ready_with(FEATURES | EVENT_IDX, ENTRIES);
        let (memory, layout) = (guest.memory.clone(), guest.queues[0].ring.layout());
        reads_while(guest, move |round| {
            memory.store_u16(layout.avail, round.wrapping_mul(7));
            memory.store_u16(layout.avail + 2, round & 3);
        })
    });
    rows.row("device event area: overwritten", Contained, |guest| {
        guest.ready_with(FEATURES | EVENT_IDX, ENTRIES);
        let (memory, layout) = (guest.memory.clone(), guest.queues[0].ring.layout());
        let _flipping = RepeatingThread::start(move |round| {
            memory.store_u16(layout.used, round);
            memory.store_u16(layout.used + 2, round);
        });
        for round in 0..50 {
            for index in [0, 1] {
                assert_eq!(guest.verified_io(index, 4, round), Ok(()), "queue {index}");
            }
        }
        Contained
    });
    rows.row("descriptors: rewritten", Contained, |guest| {
        guest.ready_with(FEATURES | EVENT_IDX | INDIRECT_DESC, ENTRIES);
        let (memory, layout) = (guest.memory.clone(), guest.queues[0].ring.layout());
        let kick = guest.queues[0].kick.try_clone().unwrap();
        let _rewriting = RepeatingThread::start(move |round| {
            let at = layout.desc + 16 * u64::from(round % ENTRIES);
            let scrambled = round.wrapping_mul(0x6255);
            for (offset, word) in [
                (0, scrambled),
                (2, (scrambled >> 9) & 0x3f),
                (8, scrambled >> 3),
                (10, 0),
                (12, round),
                // Mostly available, in one lap or the other.
                (14, scrambled & 0x87 ^ 0x8000),
            ] {
                memory.store_u16(at + offset, word);
            }
            signal(&kick);
        });
        for round in 0..50 {
            assert_eq!(guest.verified_io(1, 4, round), Ok(()), "the other queue");
        }
        Contained
    });
}
