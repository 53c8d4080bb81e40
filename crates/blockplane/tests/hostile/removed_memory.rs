//! Guest memory that is removed while queues run.

use std::os::fd::AsFd;

use rustix::fs::{FallocateFlags, fallocate, ftruncate};
use virtqueue::testing::{Buffer, TestMemory};

use crate::daemon::SLOW;
use crate::front_end::*;
use crate::memory::{MIB, memory_file, region};
use crate::row::Answer::{self, Accepted, Broken, Contained};
use crate::row::{IOERR, OK, Rows};
use crate::wire::*;

const OUTSIDE: &str = "is not inside one memory region";
const TRUNCATED: &str = "truncated guest memory";

pub fn rows(rows: &mut Rows) {
    let row = rows.running("memory removed while rings are in it", Accepted, |guest| {
        guest.must(REM_MEM_REG, &single_region(guest.regions()[0]), &[]);
        both_broken(guest)
    });
    row.says(OUTSIDE);
    let row = rows.running("memory replaced while queues run", Accepted, |guest| {
        let table = mem_table(&[region(1 << 40, MIB, 1 << 40, 0)]);
        guest.must(SET_MEM_TABLE, &table, &[memory_file(MIB).as_fd()]);
        both_broken(guest)
    });
    row.says(OUTSIDE);
    let row = rows.row("memory of data removed while rings stay", Broken, |guest| {
        two_regions(guest, FEATURES);
        guest.must(REM_MEM_REG, &single_region(guest.regions()[1]), &[]);
        read_to(guest, DATA)
    });
    row.says("is not inside guest memory");
    let row = rows.row("memory of a request in flight removed", OK, |guest| {
        two_regions(guest, FEATURES | EVENT_IDX);
        submit_read_to(guest, DATA);
        // The device says how far it has come before it sleeps: it has the request.
        guest.wait_until_taken(1);
        guest.must(REM_MEM_REG, &single_region(guest.regions()[1]), &[]);
        guest.outcome(0)
    });
    row.on(SLOW);
    rows.row("memory of data truncated", IOERR, |guest| {
        two_regions(guest, FEATURES);
        truncate(guest, 1);
        read_to(guest, DATA)
    });
    let row = rows.row("memory of a header truncated", OK, |guest| {
        two_regions(guest, FEATURES);
        guest.memory.write(DATA, &request_header(OUT, 0));
        truncate(guest, 1);
        // The header's page is gone: zeroes, which is a read of the first sector.
        let data = guest.memory.alloc(513, 1);
        guest.submit_buffers(
            0,
            &[Buffer::readable(DATA, 16), Buffer::writable(data, 513)],
        );
        guest.outcome(0)
    });
    row.says(TRUNCATED);
    let row = rows.row("memory of a status byte truncated", Contained, |guest| {
        two_regions(guest, FEATURES);
        let header = guest.memory.alloc_bytes(&request_header(IN, 0));
        let data = guest.memory.alloc(512, 1);
        truncate(guest, 1);
        let queue = &mut guest.queues[0];
        queue.ring.add(&[
            Buffer::readable(header, 16),
            Buffer::writable(data, 512),
            Buffer::writable(DATA, 1),
        ]);
        queue.ring.publish();
        queue.kick();
        // The used entry appears with a status that no guest sees.
        guest.wait_for_used(0);
        Contained
    });
    row.says(TRUNCATED);
    let row = rows.running("memory punched full of holes", Broken, |guest| {
        assert_eq!(guest.verified_io(0, 1, 1), Ok(()));
        let holes = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(guest.memory.region_file(0), holes, 0, MEMORY_BYTES).unwrap();
        guest.queues[0].kick();
        guest.err_of(0)
    });
    row.says("entries ahead of");
}

fn both_broken(guest: &HostileFrontEnd) -> Answer {
    let broken = guest.queues.iter().all(|queue| is_readable(&queue.err));
    assert!(broken, "both are broken");
    guest.still_there()
}

/// Where the second region begins.
const DATA: u64 = 0x4000_0000;

/// Rings in one region, data in another.
fn two_regions(guest: &mut HostileFrontEnd, features: u64) {
    guest.memory = TestMemory::with_regions(&[(MEMORY, MIB), (DATA, MIB)]);
    guest.ready_with(features, ENTRIES);
}

fn truncate(guest: &HostileFrontEnd, region: usize) {
    ftruncate(guest.memory.region_file(region), 0).unwrap();
}

/// Submits a read of one sector into a buffer at this address.
fn submit_read_to(guest: &mut HostileFrontEnd, data: u64) {
    let header = guest.memory.alloc_bytes(&request_header(IN, 0));
    let status = guest.memory.alloc(1, 1);
    let (header, status) = (Buffer::readable(header, 16), Buffer::writable(status, 1));
    guest.submit_buffers(0, &[header, Buffer::writable(data, 512), status]);
}

fn read_to(guest: &mut HostileFrontEnd, data: u64) -> Answer {
    submit_read_to(guest, data);
    guest.outcome(0)
}

/// Bytes of memory that is truncated: more than what the daemon's allocator reserves now and then.
pub const TRUNCATED_BYTES: u64 = 256 << 20;

/// Truncates the memory of running queues, rings and all.
pub fn truncate_rings(guest: &mut HostileFrontEnd) -> Answer {
    guest.memory = TestMemory::new(TRUNCATED_BYTES);
    guest.ready();
    assert_eq!(guest.verified_io(0, 1, 1), Ok(()));
    truncate(guest, 0);
    // From here on nothing of that memory may be touched here either.
    guest.queues[0].kick();
    guest.err_of(0)
}
