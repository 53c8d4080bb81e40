//! Invalid requests in valid rings: they end with a status, and the queue continues. All types, ranges and sizes are in the tests
//! of `virtio-blk`; here is one of each answer, on a disk with its real size and blocks.

use virtqueue::testing::Buffer;

use crate::daemon::{DISK_BYTES, READ_ONLY};
use crate::front_end::*;
use crate::row::{IOERR, OK, Rows, UNSUPP};

/// One past the last sector.
const END: u64 = DISK_BYTES / 512;

pub fn rows(rows: &mut Rows) {
    on_a_writable_disk(rows);
    read_only(rows);
}

pub fn on_a_writable_disk(rows: &mut Rows) {
    types(rows);
    transfers(rows);
    ranges(rows);
}

/// A segment of a discard or write-zeroes request.
fn segment(sector: u64, sectors: u32, flags: u32) -> Vec<u8> {
    let fields = [sectors.to_le_bytes(), flags.to_le_bytes()];
    [&sector.to_le_bytes(), fields.as_flattened()].concat()
}

fn types(rows: &mut Rows) {
    for kind in [2, 9, 16, 99, u32::MAX] {
        rows.running(format!("type {kind:#x}"), UNSUPP, move |guest| {
            guest.request(&[&request_header(kind, 0)], &[512, 1])
        });
    }
    rows.running("FLUSH with data and a sector", OK, |guest| {
        guest.request(&[&request_header(FLUSH, u64::MAX), &[1; 512]], &[512, 1])
    });
    for (what, room) in [
        ("without room", &[1][..]),
        ("with room for 64 KiB", &[65536, 1]),
    ] {
        rows.running(format!("GET_ID {what}"), OK, move |guest| {
            guest.request(&[&request_header(GET_ID, 0)], room)
        });
    }
}

fn transfers(rows: &mut Rows) {
    for (what, answer, sector, bytes) in [
        ("the last sector", OK, END - 1, 512),
        ("two sectors, one behind the end", IOERR, END - 1, 1024),
        ("sector 2^55, which wraps in bytes", IOERR, 1 << 55, 512),
        ("511 bytes", IOERR, 0, 511),
        ("no bytes behind the end", IOERR, END + 1, 0),
    ] {
        rows.running(format!("IN: {what}"), answer, move |guest| {
            guest.request(&[&request_header(IN, sector)], &[bytes, 1])
        });
        rows.running(format!("OUT: {what}"), answer, move |guest| {
            let data = vec![0x5a; bytes as usize];
            guest.request(&[&request_header(OUT, sector), &data], &[1])
        });
    }
    rows.running("IN: all of memory", IOERR, |guest| {
        // Longer than a whole number of sectors, and longer than what anybody would ask for.
        guest.request(&[&request_header(IN, 0)], &[3 << 20, 1, 1])
    });
    // No data to write to, or to read: nothing is transferred.
    rows.running("IN: data that the device may only read", OK, |guest| {
        guest.request(&[&request_header(IN, 0), &[0; 512]], &[1])
    });
    rows.running("OUT: data that the device may only write", OK, |guest| {
        guest.request(&[&request_header(OUT, 0)], &[512, 1])
    });
    rows.running("IN: data, status and header in one place", OK, |guest| {
        let at = guest.memory.alloc_bytes(&request_header(IN, 0));
        guest.memory.alloc(512, 1);
        let (header, data) = (Buffer::readable(at, 16), Buffer::writable(at, 512));
        guest.submit_buffers(0, &[header, data, Buffer::writable(at + 511, 1)]);
        guest.outcome(0)
    });
}

/// Rows of DISCARD and WRITE_ZEROES with segments inside and outside of the disk.
fn ranges(rows: &mut Rows) {
    for (name, kind) in [("DISCARD", DISCARD), ("WRITE_ZEROES", WRITE_ZEROES)] {
        for (what, answer, payload) in [
            ("8 sectors", OK, segment(64, 8, 0)),
            ("unknown flags", UNSUPP, segment(0, 8, 2)),
            ("across the end", IOERR, segment(END - 1, 2, 0)),
            ("a sector that wraps", IOERR, segment(u64::MAX, 1, 0)),
            ("no segment", IOERR, vec![]),
            ("100 segments", UNSUPP, segment(0, 8, 0).repeat(100)),
        ] {
            rows.running(format!("{name}: {what}"), answer, move |guest| {
                guest.request(&[&request_header(kind, 0), &payload], &[1])
            });
        }
    }
}

/// The same disk for a guest that may not write, in blocks of 4 KiB.
fn read_only(rows: &mut Rows) {
    for (what, answer, kind, sector, readable, room) in [
        ("OUT", IOERR, OUT, 0, vec![0; 4096], 0),
        ("DISCARD", IOERR, DISCARD, 0, segment(0, 8, 0), 0),
        ("FLUSH", OK, FLUSH, 0, vec![], 0),
        ("half a block", IOERR, IN, 0, vec![], 512),
        ("a block", OK, IN, 8, vec![], 4096),
    ] {
        let row = rows.running(format!("read-only: {what}"), answer, move |guest| {
            guest.request(&[&request_header(kind, sector), &readable], &[room, 1])
        });
        row.on(READ_ONLY);
    }
}
