//! Rings at impossible or overlapping addresses.

use std::os::fd::AsFd;

use virtqueue::testing::Buffer;

use crate::guest::*;
use crate::memory::{MIB, memory_file, region};
use crate::row::Answer::{self, Accepted, Broken, Contained, Dropped};
use crate::row::Rows;
use crate::wire::*;

const OUTSIDE: &str = "is not inside one memory region";

pub fn rows(rows: &mut Rows) {
    const NO_REGION: &str = "which is in no memory region";
    for (what, moved) in [
        ("descriptor table", 0),
        ("available ring", 1),
        ("used ring", 2),
    ] {
        for (place, user_addr) in [
            ("at 0", 0),
            (
                "behind the end",
                virtqueue::testing::USER_ADDR_OFFSET + MEMORY + MEMORY_BYTES,
            ),
            ("at the end of all addresses", u64::MAX - 15),
        ] {
            rows.row(format!("rings: {what} {place}"), Dropped, move |guest| {
                start_with_ring_at(guest, moved, user_addr)
            })
            .says(NO_REGION);
        }
        rows.row(
            format!("rings: {what} across the end"),
            Broken,
            move |guest| {
                let end = guest.memory.user_addr(MEMORY + MEMORY_BYTES);
                start_with_ring_at(guest, moved, end - 16)
            },
        )
        .says(OUTSIDE);

        rows.row(
            format!("rings: {what} at an odd address"),
            Dropped,
            move |guest| start_with_ring_at(guest, moved, guest.memory.user_addr(MEMORY) + 1),
        );
    }
    for size in [3, 12, 1023] {
        rows.negotiated(format!("rings: {size} entries"), Broken, move |guest| {
            guest.share_memory();
            guest.set_up(0, ENTRIES);
            guest.must(SET_VRING_NUM, &u32s(&[0, size]), &[]);
            guest.try_start(0)
        })
        .says("a power of two");
    }
    rows.negotiated("rings: 0 entries", Dropped, |guest| {
        guest.share_memory();
        guest.set_up(0, ENTRIES);
        guest.must(SET_VRING_NUM, &u32s(&[0, 0]), &[]);
        guest.try_start(0)
    })
    .says("SET_VRING_NUM");
    rows.row(
        "rings: misaligned for the guest, aligned for the front-end",
        Broken,
        |guest| shifted(guest, 8, 0),
    )
    .says("expected an address aligned");
    rows.row("rings: misaligned by the file offset", Broken, |guest| {
        shifted(guest, 0, 8)
    })
    .says("expected a mapping aligned");
    rows.row(
        "rings: used ring and descriptor table are one",
        Contained,
        |guest| overlapping(guest, |[desc, avail, _]| [desc, avail, desc]),
    );
    rows.row(
        "rings: available and descriptor table are one",
        Contained,
        |guest| overlapping(guest, |[desc, _, used]| [desc, desc, used]),
    );
    rows.row(
        "rings: the used ring is the available ring, it feeds itself",
        Contained,
        |guest| {
            overlapping(guest, |[desc, avail, _]| {
                [desc, avail.next_multiple_of(4), avail.next_multiple_of(4)]
            })
        },
    );
    rows.row("rings: all three are one", Contained, |guest| {
        overlapping(guest, |[desc, _, _]| [desc, desc, desc])
    });
}

/// Sets up a queue with one of its three rings at another address, and tries to start it.
fn start_with_ring_at(guest: &mut Guest, moved: usize, user_addr: u64) -> Answer {
    guest.negotiate(FEATURES);
    guest.share_memory();
    guest.set_up(0, ENTRIES);
    let layout = guest.queues[0].ring.layout();
    let mut rings =
        [layout.desc, layout.avail, layout.used].map(|addr| guest.memory.user_addr(addr));
    rings[moved] = user_addr;
    let [desc, avail, used] = rings;
    match guest.ask(SET_VRING_ADDR, &vring_addr(0, 0, desc, avail, used), &[]) {
        Accepted => guest.try_start(0),
        answer => answer,
    }
}

/// Shares memory whose guest address or file offset is off by so much.
fn shifted(guest: &mut Guest, guest_addr: u64, offset: u64) -> Answer {
    guest.negotiate(FEATURES);
    guest.share_memory();
    guest.set_up(0, ENTRIES);
    let file = memory_file(MIB);
    let region = region(MEMORY + guest_addr, MIB - 4096, 0x1000, offset);
    guest.must(SET_MEM_TABLE, &mem_table(&[region]), &[file.as_fd()]);
    guest.must(
        SET_VRING_ADDR,
        &vring_addr(0, 0, 0x1000, 0x2000, 0x3000),
        &[],
    );
    guest.try_start(0)
}

/// Moves the rings onto each other and makes some entries available. Whatever the queue makes of it
/// stays its own business.
fn overlapping(guest: &mut Guest, place: fn([u64; 3]) -> [u64; 3]) -> Answer {
    guest.ready();
    let old = guest.wire.ask(GET_VRING_BASE, &u32s(&[0, 0]), &[]);
    assert_eq!(old, Some(u32s(&[0, 0])));
    let layout = guest.queues[0].ring.layout();
    let [desc, avail, used] = place([layout.desc, layout.avail, layout.used]);
    // One request that is all right, wherever its descriptors end up.
    let header = guest.memory.alloc_bytes(&request_header(T_IN, 0));
    let data = guest.memory.alloc(513, 1);
    let ring = &mut guest.queues[0].ring;
    ring.add(&[Buffer::readable(header, 16), Buffer::writable(data, 513)]);
    ring.publish();
    guest.memory.store_u16(avail + 2, 1);
    let [desc, avail, used] = [desc, avail, used].map(|addr| guest.memory.user_addr(addr));
    guest.must(SET_VRING_ADDR, &vring_addr(0, 0, desc, avail, used), &[]);
    guest.start(0);
    for _ in 0..100 {
        guest.queues[0].kick();
        assert_eq!(guest.verified_io(1, 4, 0x77), Ok(()), "the other queue");
    }
    assert_eq!(guest.still_there(), Accepted);
    Contained
}
