//! Invalid requests in valid rings: they end with a status, and the queue continues.

use crate::daemon::{DISK_BYTES, READ_ONLY};
use crate::guest::*;
use crate::row::{IOERR, OK, Rows, UNSUPP};

const T_FLUSH: u32 = 4;
const T_GET_ID: u32 = 8;
const T_DISCARD: u32 = 11;
const T_WRITE_ZEROES: u32 = 13;
/// Set by very old drivers, without a meaning any more.
const BARRIER: u32 = 1 << 31;

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
    let mut bytes = sector.to_le_bytes().to_vec();
    bytes.extend(sectors.to_le_bytes());
    bytes.extend(flags.to_le_bytes());
    bytes
}

fn types(rows: &mut Rows) {
    for kind in [
        2,
        3,
        5,
        7,
        9,
        10,
        12,
        14,
        15,
        16,
        18,
        20,
        22,
        24,
        26,
        27,
        99,
        0x7fff_ffff,
        0xffff_ffff,
    ] {
        rows.running(format!("type {kind:#x}"), UNSUPP, move |guest| {
            guest.request(&[&request_header(kind, 0)], &[512, 1])
        });
    }
    rows.running("type IN with the barrier bit", OK, |guest| {
        guest.request(&[&request_header(T_IN | BARRIER, 0)], &[512, 1])
    });
    rows.running("reserved field of the header in use", OK, |guest| {
        let mut header = request_header(T_IN, 0);
        header[4..8].fill(0xff);
        guest.request(&[&header], &[512, 1])
    });
    rows.row("a header in 16 pieces", OK, |guest| {
        guest.ready_with(FEATURES, 32);
        let header = request_header(T_IN, 0);
        let pieces: Vec<_> = header.chunks(1).collect();
        guest.request(&pieces, &[512, 1])
    });
    rows.running("FLUSH with data and a sector", OK, |guest| {
        guest.request(&[&request_header(T_FLUSH, u64::MAX), &[1; 512]], &[512, 1])
    });
    rows.running("GET_ID without room", OK, |guest| {
        guest.request(&[&request_header(T_GET_ID, 0)], &[1])
    });
    rows.running("GET_ID with room for one byte", OK, |guest| {
        guest.request(&[&request_header(T_GET_ID, 0)], &[1, 1])
    });
    rows.running("GET_ID with room for 64 KiB", OK, |guest| {
        guest.request(&[&request_header(T_GET_ID, 0)], &[65536, 1])
    });
}

fn transfers(rows: &mut Rows) {
    for (what, answer, sector, bytes) in [
        ("the last sector", OK, END - 1, 512),
        ("one sector behind the end", IOERR, END, 512),
        ("two sectors, one behind the end", IOERR, END - 1, 1024),
        ("sector 2^55, which wraps in bytes", IOERR, 1 << 55, 512),
        ("sector 2^64 - 1", IOERR, u64::MAX, 512),
        ("511 bytes", IOERR, 0, 511),
        ("513 bytes", IOERR, 0, 513),
        ("no bytes", OK, 0, 0),
        ("no bytes behind the end", IOERR, END + 1, 0),
    ] {
        rows.running(format!("IN: {what}"), answer, move |guest| {
            guest.request(&[&request_header(T_IN, sector)], &[bytes, 1])
        });

        rows.running(format!("OUT: {what}"), answer, move |guest| {
            let data = vec![0x5a; bytes as usize];
            guest.request(&[&request_header(T_OUT, sector), &data], &[1])
        });
    }
    rows.running("IN: all of memory", IOERR, |guest| {
        // Longer than a whole number of sectors, and longer than what anybody would ask for.
        guest.request(&[&request_header(T_IN, 0)], &[3 << 20, 1, 1])
    });
    rows.running("IN: data that the device may only read", OK, |guest| {
        // No data to write to: nothing is transferred.
        guest.request(&[&request_header(T_IN, 0), &[0; 512]], &[1])
    });
    rows.running("OUT: data that the device may only write", OK, |guest| {
        guest.request(&[&request_header(T_OUT, 0)], &[512, 1])
    });
    rows.row("IN: 600 pieces of 512 bytes", IOERR, |guest| {
        guest.ready_with(FEATURES, 1024);
        let mut pieces = vec![512; 600];
        pieces.push(1);
        guest.request(&[&request_header(T_IN, 0)], &pieces)
    });
    rows.running("IN: data, status and header in one place", OK, |guest| {
        let at = guest.memory.alloc_bytes(&request_header(T_IN, 0));
        guest.memory.alloc(512, 1);
        use virtqueue::testing::Buffer;
        guest.expect_status_at(at + 511);
        let queue = &mut guest.queues[0];
        queue.ring.add(&[
            Buffer::readable(at, 16),
            Buffer::writable(at, 512),
            Buffer::writable(at + 511, 1),
        ]);
        queue.ring.publish();
        queue.kick();
        guest.outcome(0)
    });
}

/// Rows of DISCARD and WRITE_ZEROES with segments inside and outside of the disk.
fn ranges(rows: &mut Rows) {
    for (name, kind) in [("DISCARD", T_DISCARD), ("WRITE_ZEROES", T_WRITE_ZEROES)] {
        let unmap = if kind == T_DISCARD { UNSUPP } else { OK };
        for (what, answer, payload) in [
            ("8 sectors", OK, segment(64, 8, 0)),
            ("flag UNMAP", unmap, segment(64, 8, 1)),
            ("unknown flags", UNSUPP, segment(0, 8, 2)),
            ("all flags", UNSUPP, segment(0, 8, u32::MAX)),
            ("no sectors", OK, segment(0, 0, 0)),
            ("one sector behind the end", IOERR, segment(END, 1, 0)),
            ("across the end", IOERR, segment(END - 1, 2, 0)),
            ("a sector that wraps", IOERR, segment(u64::MAX, 1, 0)),
            ("sector 2^55", IOERR, segment(1 << 55, 1, 0)),
            ("2^32 - 1 sectors", IOERR, segment(0, u32::MAX, 0)),
            ("no segment", IOERR, vec![]),
            (
                "a segment of 15 bytes",
                IOERR,
                segment(0, 8, 0)[..15].to_vec(),
            ),
            ("17 bytes", UNSUPP, [segment(0, 8, 0), vec![0]].concat()),
            ("two segments", UNSUPP, segment(0, 8, 0).repeat(2)),
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
    for (what, answer, kind, sector, readable, writable) in [
        ("OUT", IOERR, T_OUT, 0, vec![0; 4096], vec![1]),
        ("OUT without data", IOERR, T_OUT, 0, vec![], vec![1]),
        ("DISCARD", IOERR, T_DISCARD, 0, segment(0, 8, 0), vec![1]),
        (
            "WRITE_ZEROES",
            IOERR,
            T_WRITE_ZEROES,
            0,
            segment(0, 8, 0),
            vec![1],
        ),
        ("FLUSH", OK, T_FLUSH, 0, vec![], vec![1]),
        ("IN: half a block", IOERR, T_IN, 0, vec![], vec![512, 1]),
        (
            "IN: from within a block",
            IOERR,
            T_IN,
            1,
            vec![],
            vec![4096, 1],
        ),
        ("IN: a block", OK, T_IN, 8, vec![], vec![4096, 1]),
    ] {
        rows.running(format!("read-only: {what}"), answer, move |guest| {
            guest.request(&[&request_header(kind, sector), &readable], &writable)
        })
        .on(READ_ONLY);
    }
}
