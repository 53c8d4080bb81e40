//! Invalid rings: they break their queue only.

use virtqueue::testing::{DESC_F_INDIRECT, DESC_F_NEXT, DESC_F_WRITE, RawDescriptor, TestMemory};

use crate::daemon::SLOW;
use crate::guest::*;
use crate::row::Answer::{self, Broken};
use crate::row::{IOERR, OK, Row, Rows};

const OUTSIDE: &str = "is not inside guest memory";

/// A descriptor.
pub fn desc(addr: u64, len: u32, flags: u16, next: u16) -> RawDescriptor {
    RawDescriptor {
        addr,
        len,
        flags,
        next,
    }
}

/// A good read of one sector: header, data, status, with each descriptor to be spoiled.
pub fn read(guest: &mut Guest) -> [RawDescriptor; 3] {
    let header = guest.memory.alloc_bytes(&request_header(T_IN, 0));
    let data = guest.memory.alloc(512, 1);
    let status = guest.memory.alloc(1, 1);
    guest.expect_status_at(status);
    [
        desc(header, 16, DESC_F_NEXT, 1),
        desc(data, 512, DESC_F_NEXT | DESC_F_WRITE, 2),
        desc(status, 1, DESC_F_WRITE, 0),
    ]
}

/// A good read that is spoiled. It breaks the queue, if the log says something.
fn spoiled<'a>(
    rows: &'a mut Rows,
    what: &str,
    says: &'static str,
    spoil: fn(&mut [RawDescriptor; 3]),
) -> &'a mut Row {
    let answer = if says.is_empty() { OK } else { Broken };
    rows.row(format!("chain: {what}"), answer, move |guest| {
        guest.ready_with(FEATURES, ENTRIES);
        let mut chain = read(guest);
        spoil(&mut chain);
        guest.chain(&chain)
    })
    .says(says)
}

/// The same with a table of descriptors in memory, and the one descriptor that refers to it.
fn indirect<'a>(
    rows: &'a mut Rows,
    what: &str,
    says: &'static str,
    spoil: fn(&mut Vec<RawDescriptor>, &mut RawDescriptor),
) -> &'a mut Row {
    let answer = if says.is_empty() { OK } else { Broken };
    rows.row(format!("indirect: {what}"), answer, move |guest| {
        guest.ready_with(FEATURES | INDIRECT_DESC, ENTRIES);
        let mut table = read(guest).to_vec();
        let at = guest.memory.alloc(16 * 1100, 16);
        let mut reference = desc(at, 0, DESC_F_INDIRECT, 0);
        reference.len = 16 * u32::try_from(table.len()).unwrap();
        spoil(&mut table, &mut reference);
        let bytes = guest.queues[0].ring.table(&table);
        guest.memory.write(at, &bytes);
        guest.chain(&[reference])
    })
    .says(says)
}

pub fn rows(rows: &mut Rows) {
    indices(rows);
    of_both_forms(rows);
    crate::changing_rings::rows(rows);
}

/// Rows about chains, nearly all of which packed queues can have as well.
pub fn of_both_forms(rows: &mut Rows) {
    chains(rows);
    indirect_tables(rows);
    regions(rows);
}

/// Rows of available indices that are ahead by more than the ring has entries.
fn indices(rows: &mut Rows) {
    for index in [ENTRIES + 1, 32768, u16::MAX] {
        rows.running(
            format!("avail: index {index} ahead"),
            Broken,
            move |guest| {
                guest.queues[0].ring.split().set_avail_idx(index);
                guest.queues[0].kick();
                guest.outcome(0)
            },
        )
        .says("entries ahead of");
    }
    for head in [ENTRIES, 1000, u16::MAX] {
        rows.running(format!("avail: head {head}"), Broken, move |guest| {
            guest.queues[0].ring.split().make_available(head);
            guest.queues[0].kick();
            guest.outcome(0)
        })
        .says("as head of a chain");
    }
    rows.running("avail: the index goes back by one", Broken, |guest| {
        assert_eq!(guest.read_sector(), OK);
        guest.queues[0].ring.split().set_avail_idx(0);
        guest.queues[0].kick();
        guest.outcome(0)
    })
    .says("entries ahead of");
}

fn chains(rows: &mut Rows) {
    spoiled(rows, "as it should be", "", |_| ());
    spoiled(
        rows,
        "next beyond the table",
        "is followed by descriptor 16",
        |c| c[0].next = ENTRIES,
    )
    .split_only();
    spoiled(rows, "next 65535", "is followed by descriptor 65535", |c| {
        c[1].next = u16::MAX
    })
    .split_only();
    spoiled(rows, "a loop of one", "it has a loop", |c| c[0].next = 0).split_only();
    spoiled(rows, "back to the header", "device-readable after", |c| {
        c[1].next = 0
    })
    .split_only();
    spoiled(
        rows,
        "a loop of what the device writes",
        "it has a loop",
        |c| {
            c[2].flags |= DESC_F_NEXT;
            c[2].next = 1;
        },
    )
    .split_only();
    spoiled(
        rows,
        "indirect, not negotiated",
        "was not negotiated",
        |c| c[0].flags = DESC_F_INDIRECT,
    );
    spoiled(
        rows,
        "readable after writable",
        "device-readable after",
        |c| c[2].flags = 0,
    );
    spoiled(
        rows,
        "writable before readable",
        "device-readable after",
        |c| c.swap_parts(),
    );
    spoiled(rows, "data outside memory", OUTSIDE, |c| {
        c[1].addr = 1 << 40
    });
    spoiled(rows, "data at address 0", OUTSIDE, |c| c[1].addr = 0);
    spoiled(rows, "data to the end of all addresses", OUTSIDE, |c| {
        c[1].addr = u64::MAX - 511
    });
    spoiled(rows, "data that wraps", OUTSIDE, |c| {
        c[1].addr = u64::MAX - 100
    });
    spoiled(rows, "data across the end of memory", OUTSIDE, |c| {
        c[1].addr = MEMORY + MEMORY_BYTES - 511
    });
    spoiled(rows, "data of 4 GiB - 1", OUTSIDE, |c| c[1].len = u32::MAX);
    spoiled(rows, "data of 2 GiB", OUTSIDE, |c| c[1].len = 1 << 31);
    spoiled(rows, "header outside memory", OUTSIDE, |c| {
        c[0].addr = MEMORY - 1
    });
    spoiled(rows, "status outside memory", OUTSIDE, |c| {
        c[2].addr = MEMORY + MEMORY_BYTES
    });
    spoiled(rows, "a header of 15 bytes", "expected a header", |c| {
        c[0].len = 15
    });
    spoiled(rows, "an empty header", "expected a header", |c| {
        c[0].len = 0
    });
    spoiled(
        rows,
        "no header, only what the device writes",
        "expected a header",
        |c| c[0].flags |= DESC_F_WRITE,
    );
    spoiled(rows, "no status byte", "for its status", |c| c[0].flags = 0);
    rows.running(
        "chain: an empty status: the last byte of the data it is",
        IOERR,
        |guest| {
            let mut chain = read(guest);
            chain[2].len = 0;
            guest.expect_status_at(chain[1].addr + 511);
            guest.chain(&chain)
        },
    );
    spoiled(rows, "empty data", "", |c| c[1].len = 0);
    spoiled(rows, "unknown descriptor flags", "", |c| {
        c[0].flags |= 0xfff8
    })
    .split_only();
    rows.row(
        "chain: more in flight than the ring has entries",
        Broken,
        |guest| {
            guest.ready_with(FEATURES | EVENT_IDX, 4);
            let chain = read(guest);
            for (index, descriptor) in (0..).zip(chain) {
                guest.queues[0]
                    .ring
                    .split()
                    .write_descriptor(index, descriptor);
            }
            // One more, as soon as the last was taken: sooner or later there are five.
            for made in 1.. {
                guest.queues[0].ring.split().make_available(0);
                guest.queues[0].kick();
                guest.wait_until_taken(made);
                if is_readable(&guest.queues[0].err) {
                    break;
                }
            }
            guest.err_of(0)
        },
    )
    .says("more requests in flight")
    .split_only()
    .on(SLOW);
    rows.running("chain: the same head twice at once", OK, |guest| {
        let chain = read(guest);
        for (index, descriptor) in (0..).zip(chain) {
            guest.queues[0]
                .ring
                .split()
                .write_descriptor(index, descriptor);
        }
        guest.queues[0].ring.split().make_available(0);
        guest.queues[0].ring.split().make_available(0);
        guest.queues[0].kick();
        assert_eq!(guest.outcome(0), OK);
        guest.outcome(0)
    })
    .split_only();
    rows.row("chain: 8 times 512 MiB", Broken, |guest| {
        const HALF_GIB: u64 = 512 << 20;
        guest.memory = TestMemory::with_regions(&[(MEMORY, MEMORY_BYTES), (1 << 32, HALF_GIB)]);
        guest.ready();
        let header = guest.memory.alloc_bytes(&request_header(T_OUT, 0));
        let mut chain = vec![desc(header, 16, DESC_F_NEXT, 1)];
        let half_gib = u32::try_from(HALF_GIB).unwrap();
        chain.extend((2..10).map(|next| desc(1 << 32, half_gib, DESC_F_NEXT, next)));
        chain[8].flags = 0;
        guest.chain(&chain)
    })
    .says("descriptor chain of at least");
}

fn indirect_tables(rows: &mut Rows) {
    const LENGTH: &str = "expected 1 to 1024 descriptors";
    indirect(rows, "as it should be", "", |_, _| ());
    indirect(rows, "empty table", LENGTH, |_, reference| {
        reference.len = 0
    });
    indirect(rows, "8 bytes", LENGTH, |_, reference| reference.len = 8);
    indirect(rows, "47 bytes", LENGTH, |_, reference| reference.len = 47);
    indirect(rows, "1025 descriptors", LENGTH, |_, reference| {
        reference.len = 16 * 1025
    });
    indirect(rows, "2^32 - 16 bytes", LENGTH, |_, reference| {
        reference.len = u32::MAX - 15
    });
    indirect(
        rows,
        "and next",
        "both the INDIRECT and the NEXT flag",
        |_, reference| reference.flags |= DESC_F_NEXT,
    );
    indirect(
        rows,
        "inside of indirect",
        "is indirect itself",
        |table, _| table[1].flags |= DESC_F_INDIRECT,
    )
    .split_only();
    indirect(rows, "a loop", "it has a loop", |table, _| {
        table[0].next = 0
    })
    .split_only();
    indirect(
        rows,
        "next beyond the table",
        "is followed by descriptor 3",
        |table, _| {
            table[2].flags |= DESC_F_NEXT;
            table[2].next = 3;
        },
    )
    .split_only();
    indirect(
        rows,
        "table outside memory",
        "is not inside one memory region",
        |_, reference| reference.addr = 1 << 40,
    );
    indirect(
        rows,
        "table across the end of memory",
        "is not inside one memory region",
        |_, reference| reference.addr = MEMORY + MEMORY_BYTES - 8,
    );
    indirect(
        rows,
        "table that wraps",
        "is not inside one memory region",
        |_, reference| reference.addr = u64::MAX - 15,
    );
    rows.row("indirect: a table at an odd address", OK, |guest| {
        guest.ready_with(FEATURES | INDIRECT_DESC, ENTRIES);
        let chain = read(guest);
        let bytes = guest.queues[0].ring.table(&chain);
        let at = guest.memory.alloc(49, 16) + 1;
        guest.memory.write(at, &bytes);
        guest.chain(&[desc(at, 48, DESC_F_INDIRECT, 0)])
    });
    indirect(
        rows,
        "readable after writable in it",
        "device-readable after",
        |table, _| table[2].flags = 0,
    );
    indirect(rows, "buffer outside memory in it", OUTSIDE, |table, _| {
        table[1].addr = 1 << 50
    });
    indirect(
        rows,
        "1024 descriptors of one byte",
        "",
        |table, reference| {
            let (data, status) = (table[1], table[2]);
            table.truncate(1);
            table
                .extend((2..1024).map(|next| desc(data.addr, 1, DESC_F_NEXT | DESC_F_WRITE, next)));
            table.push(desc(status.addr, 1, DESC_F_WRITE, 0));
            reference.len = 16 * 1024;
        },
    )
    .answers(IOERR);
}

/// Buffers across the borders of regions: fine where there is memory on both sides.
fn regions(rows: &mut Rows) {
    const MIB: u64 = 1 << 20;
    fn across(guest: &mut Guest, second: u64) -> Answer {
        guest.memory = TestMemory::with_regions(&[(MEMORY, MIB), (second, MIB)]);
        guest.ready();
        let mut chain = read(guest);
        chain[1].addr = MEMORY + MIB - 100;
        guest.chain(&chain)
    }
    rows.row("regions: data across two that touch", OK, |guest| {
        across(guest, MEMORY + MIB)
    });
    rows.row(
        "regions: data across two with a page between",
        Broken,
        |guest| across(guest, MEMORY + MIB + 4096),
    )
    .says(OUTSIDE);
    rows.row(
        "regions: data across 200 of one page each",
        IOERR,
        |guest| {
            let pages: Vec<_> = (0..200).map(|n| ((1 << 32) + 4096 * n, 4096)).collect();
            guest.negotiate(FEATURES);
            let memory = [&[(MEMORY, MIB)], &pages[..]].concat();
            guest.memory = TestMemory::with_regions(&memory);
            // More than one table holds: slot by slot.
            for (index, region) in guest.regions().into_iter().enumerate() {
                let file = guest.memory.region_file(index);
                guest.must(
                    crate::wire::ADD_MEM_REG,
                    &crate::wire::single_region(region),
                    &[file],
                );
            }
            guest.set_up(0, ENTRIES);
            guest.start(0);
            let mut chain = read(guest);
            chain[1].addr = 1 << 32;
            chain[1].len = 150 * 4096;
            guest.chain(&chain)
        },
    );
}

/// For spoiling: parts in another order.
trait SwapParts {
    fn swap_parts(&mut self);
}

impl SwapParts for [RawDescriptor; 3] {
    fn swap_parts(&mut self) {
        let [header, data, status] = *self;
        self[0] = desc(data.addr, data.len, data.flags, 1);
        self[1] = desc(header.addr, header.len, header.flags, 2);
        self[2] = status;
    }
}
