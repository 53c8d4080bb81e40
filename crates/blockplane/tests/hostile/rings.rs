//! Invalid rings: they break their queue only.

use virtqueue::testing::{DESC_F_INDIRECT, DESC_F_NEXT, DESC_F_WRITE, RawDescriptor, TestMemory};

use crate::daemon::SLOW;
use crate::front_end::*;
use crate::row::Answer::{self, Broken};
use crate::row::{IOERR, OK, Row, Rows};
use crate::wire::{ADD_MEM_REG, single_region};

const OUTSIDE: &str = "is not inside guest memory";
const NO_TABLES: &str = "was not negotiated";
const BEHIND: &str = "device-readable after";
const NO_HEADER: &str = "expected a header";

/// The end of the guest's memory.
const END: u64 = MEMORY + MEMORY_BYTES;

type SpoilChain = fn(&mut [RawDescriptor; 3]);
/// Spoils the descriptors of a table, or the one that refers to it.
type SpoilTable = fn(&mut Vec<RawDescriptor>, &mut RawDescriptor);

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
pub fn read(guest: &mut HostileFrontEnd) -> [RawDescriptor; 3] {
    let header = guest.memory.alloc_bytes(&request_header(IN, 0));
    let data = guest.memory.alloc(512, 1);
    let status = guest.memory.alloc(1, 1);
    guest.expect_status_at(status);
    [
        desc(header, 16, DESC_F_NEXT, 1),
        desc(data, 512, DESC_F_NEXT | DESC_F_WRITE, 2),
        desc(status, 1, DESC_F_WRITE, 0),
    ]
}

/// Writes a good read to the first descriptors of queue 0, without making it available.
pub fn write_read(guest: &mut HostileFrontEnd) {
    for (index, descriptor) in (0..).zip(read(guest)) {
        let ring = guest.queues[0].ring.split();
        ring.write_descriptor(index, descriptor);
    }
}

/// A good read that is spoiled. It breaks the queue, if the log says something.
fn spoiled<'a>(
    rows: &'a mut Rows,
    what: &str,
    says: &'static str,
    spoil: SpoilChain,
) -> &'a mut Row {
    let answer = if says.is_empty() { OK } else { Broken };
    let row = rows.running(format!("chain: {what}"), answer, move |guest| {
        let mut chain = read(guest);
        spoil(&mut chain);
        guest.chain(0, &chain)
    });
    row.says(says)
}

/// The same with a table of descriptors in memory, and the one descriptor that refers to it.
fn indirect<'a>(
    rows: &'a mut Rows,
    what: &str,
    says: &'static str,
    spoil: SpoilTable,
) -> &'a mut Row {
    let answer = if says.is_empty() { OK } else { Broken };
    let row = rows.row(format!("indirect: {what}"), answer, move |guest| {
        guest.ready_with(FEATURES | INDIRECT_DESC, ENTRIES);
        let mut table = read(guest).to_vec();
        let at = guest.memory.alloc(16 * 1100, 16);
        let mut reference = desc(at, 48, DESC_F_INDIRECT, 0);
        spoil(&mut table, &mut reference);
        let bytes = guest.queues[0].ring.table(&table);
        guest.memory.write(at, &bytes);
        guest.chain(0, &[reference])
    });
    row.says(says)
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

/// Rows of available indices that are ahead by more than the ring has entries, and of heads that are not there.
fn indices(rows: &mut Rows) {
    for index in [ENTRIES + 1, u16::MAX] {
        let what = format!("avail: index {index} ahead");
        let row = rows.running(what, Broken, move |guest| {
            guest.queues[0].ring.split().set_avail_idx(index);
            guest.queues[0].kick();
            guest.outcome(0)
        });
        row.says("entries ahead of");
    }
    for head in [ENTRIES, u16::MAX] {
        let row = rows.running(format!("avail: head {head}"), Broken, move |guest| {
            guest.make_available(&[head]);
            guest.outcome(0)
        });
        row.says("as head of a chain");
    }
    let row = rows.running("avail: the index goes back by one", Broken, |guest| {
        assert_eq!(guest.read_sector(), OK);
        guest.queues[0].ring.split().set_avail_idx(0);
        guest.queues[0].kick();
        guest.outcome(0)
    });
    row.says("entries ahead of");
}

fn chains(rows: &mut Rows) {
    let mut of_split_queues = |what: &str, says, spoil: SpoilChain| {
        spoiled(rows, what, says, spoil).split_only();
    };
    of_split_queues("next is 16", "by descriptor 16", |c| c[0].next = ENTRIES);
    of_split_queues("a loop", "it has a loop", |c| c[0].next = 0);
    of_split_queues("back to the header", BEHIND, |c| c[1].next = 0);
    of_split_queues("unknown flags", "", |c| c[0].flags |= 0xfff8);

    let mut of_both = |what: &str, says, spoil: SpoilChain| {
        spoiled(rows, what, says, spoil);
    };
    of_both("as it should be", "", |_| ());
    of_both("empty data", "", |c| c[1].len = 0);
    of_both("a table", NO_TABLES, |c| c[0].flags = DESC_F_INDIRECT);
    of_both("readable after writable", BEHIND, |c| c[2].flags = 0);
    of_both("data outside memory", OUTSIDE, |c| c[1].addr = 1 << 40);
    of_both("data that wraps", OUTSIDE, |c| c[1].addr = u64::MAX - 100);
    of_both("data across the end", OUTSIDE, |c| c[1].addr = END - 511);
    of_both("data of 4 GiB - 1", OUTSIDE, |c| c[1].len = u32::MAX);
    of_both("header outside memory", OUTSIDE, |c| c[0].addr = MEMORY - 1);
    of_both("status outside memory", OUTSIDE, |c| c[2].addr = END);
    of_both("a header of 15 bytes", NO_HEADER, |c| c[0].len = 15);
    of_both("no header", NO_HEADER, |c| c[0].flags |= DESC_F_WRITE);
    of_both("no status byte", "for its status", |c| c[0].flags = 0);

    rows.running("chain: an empty status, after data", IOERR, |guest| {
        let mut chain = read(guest);
        chain[2].len = 0;
        guest.expect_status_at(chain[1].addr + 511);
        guest.chain(0, &chain)
    });
    let row = rows.row("chain: more in flight than entries", Broken, |guest| {
        guest.ready_with(FEATURES | EVENT_IDX, 4);
        write_read(guest);
        // One more, as soon as the last was taken: sooner or later there are five.
        for made in 1.. {
            guest.make_available(&[0]);
            guest.wait_until_taken(made);
            if is_readable(&guest.queues[0].err) {
                break;
            }
        }
        guest.err_of(0)
    });
    row.says("more requests in flight").split_only().on(SLOW);
    let row = rows.running("chain: the same head twice at once", OK, |guest| {
        write_read(guest);
        guest.make_available(&[0, 0]);
        assert_eq!(guest.outcome(0), OK);
        guest.outcome(0)
    });
    row.split_only();
    let row = rows.row("chain: 8 times 512 MiB", Broken, |guest| {
        const HALF_GIB: u32 = 512 << 20;
        let regions = [(MEMORY, MEMORY_BYTES), (1 << 32, HALF_GIB.into())];
        guest.memory = TestMemory::with_regions(&regions);
        guest.ready();
        let header = guest.memory.alloc_bytes(&request_header(OUT, 0));
        let mut chain = vec![desc(header, 16, DESC_F_NEXT, 1)];
        chain.extend((2..10).map(|next| desc(1 << 32, HALF_GIB, DESC_F_NEXT, next)));
        chain[8].flags = 0;
        guest.chain(0, &chain)
    });
    row.says("descriptor chain of at least");
}

fn indirect_tables(rows: &mut Rows) {
    const TWO: &str = "is indirect itself";
    const LENGTH: &str = "expected 1 to 1024 descriptors";
    const NEXT: &str = "both the INDIRECT and the NEXT flag";
    const NO_TABLE: &str = "is not inside one memory region";
    let mut of_split_queues = |what: &str, says, spoil: SpoilTable| {
        indirect(rows, what, says, spoil).split_only();
    };
    of_split_queues("two", TWO, |table, _| table[1].flags |= DESC_F_INDIRECT);
    of_split_queues("a loop", "it has a loop", |table, _| table[0].next = 0);
    of_split_queues("next is 3", "by descriptor 3", |table, _| table[1].next = 3);

    let mut of_both = |what: &str, says, spoil: SpoilTable| {
        indirect(rows, what, says, spoil);
    };
    of_both("as it should be", "", |_, _| ());
    of_both("empty table", LENGTH, |_, table| table.len = 0);
    of_both("47 bytes", LENGTH, |_, table| table.len = 47);
    of_both("1025 descriptors", LENGTH, |_, table| table.len = 16 * 1025);
    of_both("4 GiB - 16", LENGTH, |_, table| table.len = u32::MAX - 15);
    of_both("and next", NEXT, |_, table| table.flags |= DESC_F_NEXT);
    of_both("outside memory", NO_TABLE, |_, table| table.addr = 1 << 40);
    of_both("across the end", NO_TABLE, |_, table| table.addr = END - 8);
    of_both("wrong order in it", BEHIND, |table, _| table[2].flags = 0);
    of_both("buffer outside", OUTSIDE, |table, _| {
        table[1].addr = 1 << 50
    });

    rows.row("indirect: a table at an odd address", OK, |guest| {
        guest.ready_with(FEATURES | INDIRECT_DESC, ENTRIES);
        let chain = read(guest);
        let bytes = guest.queues[0].ring.table(&chain);
        let at = guest.memory.alloc(49, 16) + 1;
        guest.memory.write(at, &bytes);
        guest.chain(0, &[desc(at, 48, DESC_F_INDIRECT, 0)])
    });
    let row = indirect(rows, "1024 of one byte", "", |table, reference| {
        let (data, status) = (table[1], table[2]);
        let flags = DESC_F_NEXT | DESC_F_WRITE;
        table.truncate(1);
        table.extend((2..1024).map(|next| desc(data.addr, 1, flags, next)));
        table.push(desc(status.addr, 1, DESC_F_WRITE, 0));
        reference.len = 16 * 1024;
    });
    row.answers(IOERR);
}

/// Buffers across the borders of regions: fine where there is memory on both sides.
fn regions(rows: &mut Rows) {
    const MIB: u64 = 1 << 20;
    fn across(guest: &mut HostileFrontEnd, second: u64) -> Answer {
        guest.memory = TestMemory::with_regions(&[(MEMORY, MIB), (second, MIB)]);
        guest.ready();
        let mut chain = read(guest);
        chain[1].addr = MEMORY + MIB - 100;
        guest.chain(0, &chain)
    }
    rows.row("regions: data across two that touch", OK, |guest| {
        across(guest, MEMORY + MIB)
    });
    rows.row("regions: data across 150 of a page", IOERR, |guest| {
        let pages: Vec<_> = (0..200).map(|n| ((1 << 32) + 4096 * n, 4096)).collect();
        guest.negotiate(FEATURES);
        guest.memory = TestMemory::with_regions(&[&[(MEMORY, MIB)], &pages[..]].concat());
        // More than one table holds: slot by slot.
        for (index, region) in guest.regions().into_iter().enumerate() {
            let file = guest.memory.region_file(index);
            guest.must(ADD_MEM_REG, &single_region(region), &[file]);
        }
        guest.set_up(0, ENTRIES);
        guest.start(0);
        let mut chain = read(guest);
        chain[1].addr = 1 << 32;
        chain[1].len = 150 * 4096;
        guest.chain(0, &chain)
    });
}
