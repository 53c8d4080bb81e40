//! Rings that a guest changes while they are read.

use test_support::events::signal;
use test_support::repeating_thread::RepeatingThread;
use virtqueue::testing::{DESC_F_NEXT, DESC_F_WRITE};

use crate::front_end::*;
use crate::rings::{desc, write_read};
use crate::row::Answer::{self, Contained};
use crate::row::{OK, Rows};

pub fn rows(rows: &mut Rows) {
    rows.running("avail: flags and event flip all the time", OK, |guest| {
        let (memory, layout) = (guest.memory.clone(), guest.queues[0].ring.layout());
        let event = layout.avail + 4 + 2 * u64::from(layout.size);
        reads_while(guest, move |round| {
            memory.store_u16(layout.avail, round & 1);
            memory.store_u16(event, round);
        })
    });
    rows.running("used: overwritten all the time", Contained, |guest| {
        let (memory, used) = (guest.memory.clone(), guest.queues[0].ring.layout().used);
        let flipping = RepeatingThread::start(move |round| {
            for word in [used, used + 2, used + 4] {
                memory.store_u16(word, round);
            }
        });
        write_read(guest);
        for _ in 0..50 {
            guest.make_available(&[0]);
            assert_eq!(guest.verified_io(1, 4, 0x77), Ok(()), "the other queue");
        }
        drop(flipping);
        Contained
    });
}

/// Reads sectors of queue 0 while something is done over and over on another thread.
pub fn reads_while(guest: &mut HostileFrontEnd, work: impl FnMut(u16) + Send + 'static) -> Answer {
    let _working = RepeatingThread::start(work);
    let mut answers = (0..50).map(|_| guest.read_sector_without_call());
    answers.find(|answer| *answer != OK).unwrap_or(OK)
}

/// The block that no request names which comes about by [`rewritten_while_read`]: both queues have one disk.
pub const UNNAMED: u64 = 0;

/// The first sector that one does name.
const NAMED_FROM: u64 = 8;

/// How often the other queue is used at most while rings are rewritten.
const USES: usize = 50;

/// Rewrites the rings of queue 0 with anything at all, from another thread, while the daemon reads
/// them: it does whenever it serves the other queue, which goes on meanwhile. True when the queue broke, as
/// nearly all do sooner or later.
///
/// What it had taken is still carried out then, and disk and memory are the other queue's as well. So that the
/// other queue can be verified, no request of queue 0's reaches what that one has in memory, or block [`UNNAMED`].
pub fn rewritten_while_read(guest: &mut HostileFrontEnd, seed: u64) -> bool {
    guest.negotiate(FEATURES | INDIRECT_DESC | EVENT_IDX);
    guest.set_up_first();
    guest.set_up(1, ENTRIES);
    // Once more: now the other queue's memory comes first, and from here on all is this one's.
    guest.set_up(0, ENTRIES);
    guest.start(0);
    guest.start(1);
    let (memory, layout) = (guest.memory.clone(), guest.queues[0].ring.layout());
    // Good requests all over the table, so that the device gets somewhere before it trips.
    let header = guest.memory.alloc_bytes(&request_header(IN, NAMED_FROM));
    let data = guest.memory.alloc(4096, 16);
    let good = move |index: u16| match index & 1 {
        0 => desc(header, 16, DESC_F_NEXT, index + 1),
        _ => desc(data, 513, DESC_F_WRITE, 0),
    };
    for index in 0..ENTRIES {
        let ring = guest.queues[0].ring.split();
        ring.write_descriptor(index, good(index));
    }
    let kick = guest.queues[0].kick.try_clone().unwrap();
    let mut state = seed;
    let mut random = move || {
        // A linear congruential generator: the same rings for the same seed.
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    let small = |number: u64, below: u16| u16::try_from(number % u64::from(below)).unwrap();
    let rewriting = RepeatingThread::start(move |round| {
        let index = small(random(), ENTRIES);
        let at = layout.desc + 16 * u64::from(index);
        let entry = layout.avail + 4 + 2 * u64::from(index);
        match random() % 64 {
            0 => memory.store_u16(at + 12, small(random(), 8)),
            1 => memory.store_u16(at + 14, small(random(), ENTRIES + 1)),
            2 => {
                let addr = layout.desc + random() % (2 * MEMORY_BYTES);
                memory.write(at, &addr.to_le_bytes());
            }
            3 => {
                let len = u32::try_from(random() % 70_000).unwrap();
                memory.write(at + 8, &len.to_le_bytes());
            }
            // A header that follows a header is the range of a discard, or of zeroes: from sector 11 or 13 on,
            // which are these kinds' numbers.
            4 => {
                let sector = NAMED_FROM + random() % 200_000;
                memory.write(header, &request_header(small(random(), 20).into(), sector));
            }
            5 => memory.store_u16(entry, small(random(), ENTRIES + 1)),
            // What was there: header and data in turn.
            6..32 => memory.write(at, &good(index).to_bytes()),
            _ => memory.store_u16(entry, index & !1),
        }
        if round % 16 == 0 {
            let ahead = small(random(), ENTRIES);
            let used = memory.load_u16(layout.used + 2);
            memory.store_u16(layout.avail + 2, used.wrapping_add(ahead));
            signal(&kick);
        }
    });
    for _ in 0..USES {
        let other = guest.verified_io(1, UNNAMED, 0x33);
        assert_eq!(other, Ok(()), "the other queue, seed {seed}");
        if is_readable(&guest.queues[0].err) {
            break;
        }
    }
    drop(rewriting);
    is_readable(&guest.queues[0].err)
}
