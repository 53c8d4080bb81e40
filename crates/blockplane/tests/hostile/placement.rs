//! Rings at impossible or overlapping addresses.

use std::os::fd::AsFd;

use virtqueue::testing::{Buffer, USER_ADDR_OFFSET};

use crate::front_end::*;
use crate::memory::{MIB, memory_file, region};
use crate::row::Answer::{self, Accepted, Broken, Contained, Dropped};
use crate::row::{DISCONNECTED, Rows};
use crate::wire::*;

/// The end of the guest's memory, as the front-end has it.
const END: u64 = USER_ADDR_OFFSET + MEMORY + MEMORY_BYTES;

pub fn rows(rows: &mut Rows) {
    const NO_REGION: &str = "which is in no memory region";
    for (moved, what) in ["descriptor table", "available ring", "used ring"]
        .iter()
        .enumerate()
    {
        for (place, answer, user_addr, says) in [
            ("at 0", Dropped, 0, NO_REGION),
            ("behind the end", Dropped, END, NO_REGION),
            ("at the last address", Dropped, u64::MAX - 15, NO_REGION),
            ("at an odd address", Dropped, END - MIB + 1, DISCONNECTED),
            (
                "across the end",
                Broken,
                END - 16,
                "is not inside one memory region",
            ),
        ] {
            let what = format!("rings: {what} {place}");
            rows.negotiated(what, answer, move |guest| {
                guest.set_up_first();
                start_with_rings(guest, |rings| rings[moved] = user_addr)
            })
            .says(says);
        }
    }
    for (size, answer, says) in [
        (3, Broken, "a power of two"),
        (1023, Broken, "a power of two"),
        (0, Dropped, "SET_VRING_NUM"),
    ] {
        let row = rows.negotiated(format!("rings: {size} entries"), answer, move |guest| {
            guest.set_up_first();
            guest.must(SET_VRING_NUM, &u32s(&[0, size]), &[]);
            guest.try_start(0)
        });
        row.says(says);
    }
    let row = rows.negotiated("rings: misaligned for the guest only", Broken, |guest| {
        shifted(guest, 8, 0)
    });
    row.says("expected an address aligned");
    let row = rows.negotiated("rings: misaligned by the file offset", Broken, |guest| {
        shifted(guest, 0, 8)
    });
    row.says("expected a mapping aligned");
    rows.running("rings: used and descriptors are one", Contained, |guest| {
        overlapping(guest, |[desc, avail, _]| [desc, avail, desc])
    });
    rows.running("rings: avail and descriptors are one", Contained, |guest| {
        overlapping(guest, |[desc, _, used]| [desc, desc, used])
    });
    rows.running("rings: avail and used are one", Contained, |guest| {
        overlapping(guest, |[desc, avail, _]| {
            [desc, avail, avail].map(|at| at.next_multiple_of(4))
        })
    });
    rows.running("rings: all three are one", Contained, |guest| {
        overlapping(guest, |[desc, _, _]| [desc, desc, desc])
    });
}

/// Tries to start the first queue with its rings elsewhere.
fn start_with_rings(guest: &HostileFrontEnd, change: impl FnOnce(&mut [u64; 3])) -> Answer {
    let layout = guest.queues[0].ring.layout();
    let mut rings =
        [layout.desc, layout.avail, layout.used].map(|addr| guest.memory.user_addr(addr));
    change(&mut rings);
    let [desc, avail, used] = rings;
    match guest.ask(SET_VRING_ADDR, &vring_addr(0, 0, desc, avail, used), &[]) {
        Accepted => guest.try_start(0),
        answer => answer,
    }
}

/// Shares memory whose guest address or file offset is off by so much.
fn shifted(guest: &mut HostileFrontEnd, guest_addr: u64, offset: u64) -> Answer {
    guest.set_up_first();
    let region = region(MEMORY + guest_addr, MIB - 4096, 0x1000, offset);
    let table = mem_table(&[region]);
    guest.must(SET_MEM_TABLE, &table, &[memory_file(MIB).as_fd()]);
    start_with_rings(guest, |rings| *rings = [0x1000, 0x2000, 0x3000])
}

/// Moves the rings onto each other and makes some entries available. Whatever the queue makes of it
/// stays its own business.
fn overlapping(guest: &mut HostileFrontEnd, place: fn([u64; 3]) -> [u64; 3]) -> Answer {
    assert_eq!(guest.wire.stop(0), Ok(0));
    let layout = guest.queues[0].ring.layout();
    let [desc, avail, used] = place([layout.desc, layout.avail, layout.used]);
    // One request that is all right, wherever its descriptors end up.
    let header = guest.memory.alloc_bytes(&request_header(IN, 0));
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
