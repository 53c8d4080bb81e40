//! Packed queues: what the other tables have for both forms, and what only these can have wrong.

use virtqueue::testing::{
    DESC_F_INDIRECT, DESC_F_NEXT, DESC_F_WRITE, PACKED_DESC_F_AVAIL, RawPackedDescriptor,
};

use crate::changing_rings::repeat_on_thread;
use crate::guest::*;
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
    rows.running("a chain that takes the ring and goes on", Broken, |guest| {
        let mut descriptor = read(guest)[1];
        descriptor.flags = DESC_F_NEXT | DESC_F_WRITE;
        descriptor.len = 1;
        guest.chain(&[descriptor; ENTRIES as usize])
    })
    .says("runs into 0 descriptors that the device has: the ring is of 16");
    rows.running(
        "a chain that goes on where nothing is available",
        Broken,
        |guest| {
            let descriptor = RawPackedDescriptor {
                addr: MEMORY,
                len: 16,
                id: 0,
                flags: PACKED_DESC_F_AVAIL | DESC_F_NEXT,
            };
            guest.queues[0]
                .ring
                .packed()
                .write_descriptor(0, descriptor);
            guest.queues[0].kick();
            guest.outcome(0)
        },
    )
    .says("do not say available");
    rows.row(
        "an indirect table behind a direct descriptor",
        Broken,
        |guest| {
            guest.ready_with(FEATURES | INDIRECT_DESC, ENTRIES);
            let mut chain = read(guest);
            chain[1].flags = DESC_F_INDIRECT;
            guest.chain(&chain)
        },
    )
    .says("not the only one of its chain");
}

fn set_up(rows: &mut Rows) {
    for entries in [3, 5, 7, 100, 1000, 1023] {
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
        rows.negotiated(format!("SET_VRING_BASE: {base:#x}"), Broken, move |guest| {
            guest.share_memory();
            for index in 0..2 {
                guest.set_up(index, ENTRIES);
            }
            guest.start(1);
            guest.must(SET_VRING_BASE, &u32s(&[0, base]), &[]);
            guest.try_start(0)
        })
        .says("expected an index below the queue size 16");
    }
    rows.negotiated(
        "a base of 0, which front-ends of split queues give",
        OK,
        |guest| {
            guest.share_memory();
            guest.set_up(0, ENTRIES);
            guest.must(SET_VRING_BASE, &u32s(&[0, 0]), &[]);
            guest.start(0);
            guest.read_sector()
        },
    );

    // The wire library checks the others, as for split queues.
    rows.negotiated("driver event area: misaligned", Broken, |guest| {
        guest.share_memory();
        for index in 0..2 {
            guest.set_up(index, ENTRIES);
        }
        guest.start(1);
        let layout = guest.queues[0].ring.layout();
        let [desc, avail, used] =
            [layout.desc, layout.avail + 2, layout.used].map(|addr| guest.memory.user_addr(addr));
        guest.must(SET_VRING_ADDR, &vring_addr(0, 0, desc, avail, used), &[]);
        guest.try_start(0)
    })
    .says("expected an address aligned to 4 bytes");
}

fn changing(rows: &mut Rows) {
    rows.row("driver event area: flips all the time", OK, |guest| {
        guest.ready_with(FEATURES | EVENT_IDX, ENTRIES);
        let (memory, layout) = (guest.memory.clone(), guest.queues[0].ring.layout());
        let flipping = repeat_on_thread(move |round| {
            memory.store_u16(layout.avail, round.wrapping_mul(7));
            memory.store_u16(layout.avail + 2, round & 3);
        });
        let read = |_| guest.read_sector_without_call();
        let answers: Vec<_> = (0..50).map(read).collect();
        drop(flipping);
        let bad = answers.into_iter().find(|answer| *answer != OK);
        bad.unwrap_or(OK)
    });
    rows.row(
        "device event area: overwritten all the time",
        Contained,
        |guest| {
            guest.ready_with(FEATURES | EVENT_IDX, ENTRIES);
            let (memory, layout) = (guest.memory.clone(), guest.queues[0].ring.layout());
            let flipping = repeat_on_thread(move |round| {
                memory.store_u16(layout.used, round);
                memory.store_u16(layout.used + 2, round);
            });
            for round in 0..50 {
                for index in [0, 1] {
                    assert_eq!(guest.verified_io(index, 4, round), Ok(()), "queue {index}");
                }
            }
            drop(flipping);
            Contained
        },
    );
    rows.row(
        "descriptors: rewritten all the time with anything at all",
        Contained,
        |guest| {
            guest.ready_with(FEATURES | EVENT_IDX | INDIRECT_DESC, ENTRIES);
            let (memory, layout) = (guest.memory.clone(), guest.queues[0].ring.layout());
            let kick = guest.queues[0].kick.try_clone().unwrap();
            let rewriting = repeat_on_thread(move |round| {
                let at = layout.desc + 16 * u64::from(round % ENTRIES);
                let scrambled = round.wrapping_mul(0x6255);
                memory.store_u16(at, scrambled);
                memory.store_u16(at + 2, (scrambled >> 9) & 0x3f);
                memory.store_u16(at + 8, scrambled >> 3);
                memory.store_u16(at + 10, 0);
                memory.store_u16(at + 12, round);
                // Mostly available, in one lap or the other.
                let flags = scrambled & 0x87 ^ 0x8000;
                memory.store_u16(at + 14, flags);
                rustix::io::write(&kick, &1u64.to_ne_bytes()).unwrap();
            });
            for round in 0..50 {
                assert_eq!(guest.verified_io(1, 4, round), Ok(()), "the other queue");
            }
            drop(rewriting);
            Contained
        },
    );
}
