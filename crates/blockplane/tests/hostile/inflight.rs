//! Invalid in-flight regions.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use crate::descriptors::{Kind, pipe};
use crate::front_end::{ENTRIES, FEATURES, HostileFrontEnd};
use crate::row::Answer::{Accepted, Broken, Dropped};
use crate::row::{Answer, Rows};
use crate::wire::*;

pub const INFLIGHT_SHMFD: u64 = 1 << 12;

/// The payload of both messages.
fn said(size: u64, offset: u64, queues: u16, entries: u16) -> Vec<u8> {
    let numbers = [queues, entries, 0, 0].map(u16::to_ne_bytes);
    [u64s(&[size, offset]), numbers.concat()].concat()
}

/// A file of a front-end's own, which it can do anything with.
pub fn file(bytes: u64) -> OwnedFd {
    let file = memfd_create("shared", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, bytes).unwrap();
    file
}

/// Files that cannot be mapped for writing.
pub const UNMAPPABLE: [Kind; 2] = [
    ("a pipe", || pipe().0),
    ("a read-only file", || {
        File::open("/proc/self/exe").unwrap().into()
    }),
];

/// As far as a front-end goes before it asks for a buffer.
fn negotiate(guest: &mut HostileFrontEnd) {
    guest.negotiate_also(FEATURES, INFLIGHT_SHMFD);
    guest.share_memory();
}

/// Asks for a buffer, and expects one for as many queues as there are, with entries for rings of any size.
fn get(guest: &mut HostileFrontEnd, queues: u16, entries: u16) -> Answer {
    negotiate(guest);
    let wanted = said(0, 0, queues, entries);
    let Ok(reply) = guest.wire.query(GET_INFLIGHT_FD, &wanted) else {
        return Dropped;
    };
    let expected = [queues.min(2), 1024].map(u16::to_ne_bytes);
    assert_eq!(reply[16..20], expected.concat());
    guest.still_there()
}

/// Passes a buffer.
fn set(guest: &mut HostileFrontEnd, payload: &[u8], file: impl AsFd) -> Answer {
    negotiate(guest);
    guest.ask(SET_INFLIGHT_FD, payload, &[file.as_fd()])
}

/// Both queues run and carry data.
fn disk_works(guest: &mut HostileFrontEnd) -> Answer {
    for index in 0..2 {
        guest.set_up(index, ENTRIES);
        guest.start(index);
        assert_eq!(guest.verified_io(index as usize, 3, 0x11), Ok(()));
    }
    guest.still_there()
}

/// Passes a buffer that may be of no use; the disk works all the same.
fn disk_works_with(guest: &mut HostileFrontEnd, payload: &[u8], file: impl AsFd) -> Answer {
    assert_eq!(set(guest, payload, file), Accepted);
    disk_works(guest)
}

/// A buffer with room for both queues, and with these words at the beginning.
pub fn buffer(words: &[u64]) -> OwnedFd {
    let buffer = file(1 << 16);
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    rustix::io::pwrite(&buffer, &bytes, 0).unwrap();
    buffer
}

/// Passes a buffer with room for both queues.
pub fn pass(guest: &HostileFrontEnd, buffer: &OwnedFd) {
    let payload = said(1 << 16, 0, 2, ENTRIES);
    guest.must(SET_INFLIGHT_FD, &payload, &[buffer.as_fd()]);
}

pub fn rows(rows: &mut Rows) {
    const BAD: &str = "bad message";
    for (queues, entries) in [(0, 16), (2, 0)] {
        let queues_of = format!("{queues} queues of {entries}");
        let row = rows.row(
            format!("GET_INFLIGHT_FD: {queues_of}"),
            Dropped,
            move |guest| get(guest, queues, entries),
        );
        row.says(BAD);
        let row = rows.row(
            format!("SET_INFLIGHT_FD: {queues_of}"),
            Dropped,
            move |guest| set(guest, &said(1 << 20, 0, queues, entries), file(1 << 20)),
        );
        row.says(BAD);
    }
    // A queue too many; fewer entries than rings have; as many as there are numbers.
    for (queues, entries) in [(3, 16), (2, 8), (2, u16::MAX)] {
        let what = format!("GET_INFLIGHT_FD: {queues} queues of {entries}");
        rows.row(what, Accepted, move |guest| get(guest, queues, entries));
    }
    const SMALL: &str = "it has 256 bytes: expected at least";
    const LARGE: u64 = 1 << 16;
    for (says, file_bytes, (size, offset, queues, entries)) in [
        ("", LARGE, (LARGE, 0, 3, ENTRIES)),
        ("", 16384, (LARGE, 0, 2, ENTRIES)),
        (SMALL, 16384, (256, 0, 2, ENTRIES)),
        (SMALL, 16384, (LARGE, 16384 - 256, 2, ENTRIES)),
        ("regions have 8 entries each", 16384, (8192, 0, 2, 8)),
        ("it has 576 bytes", 576, (576, 0, 1, ENTRIES)),
    ] {
        let what = format!("SET_INFLIGHT_FD: {size} bytes for {queues} queues of {entries}");
        let row = rows.row(what, Accepted, move |guest| {
            let payload = said(size, offset, queues, entries);
            disk_works_with(guest, &payload, file(file_bytes))
        });
        row.says(says);
    }
    for (says, size, offset) in [
        ("it has 63 bytes: expected at least 64", 63, 0),
        ("it has 0 bytes: expected at least 64", 8192, u64::MAX - 7),
        ("of its file: expected a multiple of 8", 8192, 12),
    ] {
        let row = rows.row(format!("SET_INFLIGHT_FD: {says}"), Dropped, move |guest| {
            set(guest, &said(size, offset, 2, ENTRIES), file(16384))
        });
        row.says(says);
    }
    let row = rows.row("SET_INFLIGHT_FD: no file", Dropped, |guest| {
        negotiate(guest);
        guest.ask(SET_INFLIGHT_FD, &said(8192, 0, 2, ENTRIES), &[])
    });
    row.says(BAD);
    for (what, make) in UNMAPPABLE {
        let row = rows.row(format!("SET_INFLIGHT_FD: {what}"), Dropped, move |guest| {
            set(guest, &said(8192, 0, 2, ENTRIES), make())
        });
        row.says("bad buffer");
    }
    let row = rows.row("SET_INFLIGHT_FD: while a queue runs", Dropped, |guest| {
        negotiate(guest);
        guest.set_up(0, ENTRIES);
        guest.start(0);
        let payload = said(8192, 0, 2, ENTRIES);
        guest.ask(SET_INFLIGHT_FD, &payload, &[file(8192).as_fd()])
    });
    row.says("queues are running");
    records(rows);

    rows.row("GET_ and SET_INFLIGHT_FD: again", Accepted, |guest| {
        negotiate(guest);
        for _ in 0..2 {
            let wanted = said(0, 0, 2, ENTRIES);
            guest.wire.query(GET_INFLIGHT_FD, &wanted).unwrap();
            pass(guest, &buffer(&[]));
        }
        disk_works(guest)
    });
    let row = rows.row("a buffer that disappears", Accepted, |guest| {
        negotiate(guest);
        let buffer = buffer(&[]);
        pass(guest, &buffer);
        for index in 0..2 {
            guest.set_up(index, ENTRIES);
            guest.start(index);
        }
        ftruncate(&buffer, 0).unwrap();
        assert_eq!(guest.verified_io(0, 3, 0x11), Ok(()));
        guest.still_there()
    });
    row.says("truncated guest memory");
}

/// The second word of a region: version, entries, and the used index.
fn header(version: u64, entries: u64) -> u64 {
    version | entries << 16
}

/// The words of a region of a split ring with 16 entries, whose ninth descriptor is in flight.
pub fn words_of_ninth_descriptor_in_flight() -> Vec<u64> {
    let mut words = vec![0; 2 * 17];
    (words[1], words[2 * (1 + 8)]) = (header(1, 16), 1);
    words
}

/// Rows of records with bad contents.
fn records(rows: &mut Rows) {
    let ninth = words_of_ninth_descriptor_in_flight();
    // All is in flight, in chains as long as the ring; the used index is far away.
    let mut circles = vec![0x0010_0000_0000_0001; 66];
    circles[..2].copy_from_slice(&[0, header(1, 16) | 0x7000 << 48]);
    for (says, words, entries) in [
        ("has version 9", vec![0, header(9, 16)], 16),
        ("is for 8 descriptors", vec![0, header(1, 8)], 16),
        ("names descriptor 8: expected one below 8", ninth, 8),
        ("record of requests in flight", circles, 16),
    ] {
        let row = rows.row(format!("a record: {says}"), Broken, move |guest| {
            negotiate(guest);
            pass(guest, &buffer(&words));
            guest.set_up(0, entries);
            guest.try_start(0)
        });
        row.says(says);
    }
    // The layout that the buffer itself says counts.
    rows.row("a record of a larger queue", Accepted, move |guest| {
        let payload = said(1 << 16, 0, 2, ENTRIES);
        disk_works_with(guest, &payload, buffer(&[0, header(1, 32)]))
    });
}
