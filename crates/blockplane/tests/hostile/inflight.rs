//! Buffers for requests in flight that nobody should pass.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use crate::guest::{ALL_PROTOCOL_FEATURES, ENTRIES, FEATURES, Guest};
use crate::row::Answer::{Accepted, Broken, Dropped};
use crate::row::{Answer, Row, row};
use crate::wire::*;

pub const INFLIGHT_SHMFD: u64 = 1 << 12;

/// What both messages say.
fn said(size: u64, offset: u64, queues: u16, entries: u16) -> Vec<u8> {
    let numbers = [queues, entries, 0, 0].map(u16::to_ne_bytes);
    [u64s(&[size, offset]), numbers.concat()].concat()
}

/// A file of a front-end's own, which it can do anything with.
fn file(bytes: u64) -> OwnedFd {
    let file = memfd_create("inflight", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, bytes).unwrap();
    file
}

/// As far as a front-end goes before it asks for a buffer.
fn negotiate(guest: &mut Guest) {
    guest.negotiate(FEATURES);
    let features = ALL_PROTOCOL_FEATURES | INFLIGHT_SHMFD;
    guest.must(SET_PROTOCOL_FEATURES, &u64s(&[features]), &[]);
    guest.share_memory();
}

fn get(guest: &Guest, queues: u16, entries: u16) -> Answer {
    let payload = said(0, 0, queues, entries);
    guest.tell(GET_INFLIGHT_FD, VERSION, &payload, &[])
}

/// Passes a buffer with room for both queues, and with these words at the beginning.
pub fn pass(guest: &Guest, words: &[u64]) -> OwnedFd {
    let buffer = file(1 << 16);
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    rustix::io::pwrite(&buffer, &bytes, 0).unwrap();
    let payload = said(1 << 16, 0, 2, ENTRIES);
    guest.must(SET_INFLIGHT_FD, &payload, &[buffer.as_fd()]);
    buffer
}

/// Starts the first queue, whose record is `words`.
fn start_with(guest: &mut Guest, words: &[u64]) -> Answer {
    negotiate(guest);
    let _buffer = pass(guest, words);
    guest.set_up(0, ENTRIES);
    guest.try_start(0)
}

pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for (what, queues, entries, says) in [
        ("no queues", 0, 16, "bad message"),
        ("no entries", 2, 0, "bad message"),
        (
            "a queue more than there are",
            3,
            16,
            "it is for 3 queues: expected 1 to 2",
        ),
        (
            "as many entries as there are numbers",
            2,
            u16::MAX,
            "65535 entries: expected 1 to 1024",
        ),
    ] {
        rows.push(row(
            format!("GET_INFLIGHT_FD: {what}"),
            Dropped,
            says,
            move |guest| {
                negotiate(guest);
                get(guest, queues, entries)
            },
        ));
        rows.push(row(
            format!("SET_INFLIGHT_FD: {what}"),
            Dropped,
            says,
            move |guest| {
                negotiate(guest);
                let payload = said(1 << 20, 0, queues, entries);
                guest.ask(SET_INFLIGHT_FD, &payload, &[file(1 << 20).as_fd()])
            },
        ));
    }
    for (what, size, offset, says) in [
        ("too small", 256, 0, "it has 256 bytes: expected at least"),
        (
            "smaller than it says",
            1 << 30,
            16384,
            "the file behind it has only 16384 bytes",
        ),
        (
            "at an odd place",
            8192,
            12,
            "begins at byte 12 of its file: expected a multiple of 8",
        ),
        ("at the end of all numbers", 8192, u64::MAX - 7, "too large"),
    ] {
        rows.push(row(
            format!("SET_INFLIGHT_FD: {what}"),
            Dropped,
            says,
            move |guest| {
                negotiate(guest);
                let payload = said(size, offset, 2, ENTRIES);
                guest.ask(SET_INFLIGHT_FD, &payload, &[file(16384).as_fd()])
            },
        ));
    }
    rows.push(row(
        "SET_INFLIGHT_FD: no file",
        Dropped,
        "bad message",
        |guest| {
            negotiate(guest);
            guest.ask(SET_INFLIGHT_FD, &said(8192, 0, 2, ENTRIES), &[])
        },
    ));
    rows.push(row(
        "SET_INFLIGHT_FD: a pipe",
        Dropped,
        "bad buffer",
        |guest| {
            negotiate(guest);
            let (reader, _writer) = rustix::pipe::pipe().unwrap();
            guest.ask(
                SET_INFLIGHT_FD,
                &said(8192, 0, 2, ENTRIES),
                &[reader.as_fd()],
            )
        },
    ));
    rows.push(row(
        "SET_INFLIGHT_FD: a file that cannot be written",
        Dropped,
        "bad buffer",
        |guest| {
            negotiate(guest);
            let file = File::open("/proc/self/exe").unwrap();
            guest.ask(SET_INFLIGHT_FD, &said(8192, 0, 2, ENTRIES), &[file.as_fd()])
        },
    ));
    rows.push(row(
        "SET_INFLIGHT_FD: while a queue runs",
        Dropped,
        "queues are running",
        |guest| {
            negotiate(guest);
            guest.set_up(0, ENTRIES);
            guest.start(0);
            guest.ask(
                SET_INFLIGHT_FD,
                &said(8192, 0, 2, ENTRIES),
                &[file(8192).as_fd()],
            )
        },
    ));
    rows.push(row(
        "a buffer for fewer queues than are started",
        Dropped,
        "it is for queues 0 to 0",
        |guest| {
            negotiate(guest);
            let payload = said(8192, 0, 1, ENTRIES);
            guest.must(SET_INFLIGHT_FD, &payload, &[file(8192).as_fd()]);
            guest.set_up(0, ENTRIES);
            guest.start(0);
            guest.set_up(1, ENTRIES);
            guest.try_start(1)
        },
    ));
    // The second word: version, and entries.
    let header = |version: u64, entries: u64| version | entries << 16;
    for (what, words, says) in [
        (
            "of another version",
            vec![0, header(9, 16)],
            "has version 9",
        ),
        (
            "of another queue",
            vec![0, header(1, 8)],
            "is for 8 descriptors: expected 16",
        ),
    ] {
        rows.push(row(
            format!("a record {what}"),
            Broken,
            says,
            move |guest| start_with(guest, &words),
        ));
    }
    for (what, entries, size, says) in [
        (
            "of a smaller queue",
            8,
            1 << 16,
            "has 8 entries: expected at least the queue size 16",
        ),
        (
            "of a larger queue",
            64,
            1 << 16,
            "is for 16 descriptors: expected 64",
        ),
    ] {
        rows.push(row(
            format!("a record that was one {what}"),
            Broken,
            says,
            move |guest| {
                negotiate(guest);
                let buffer = pass(guest, &[0, header(1, entries.min(16))]);
                let payload = said(size, 0, 2, u16::try_from(entries).unwrap());
                guest.must(SET_INFLIGHT_FD, &payload, &[buffer.as_fd()]);
                guest.set_up(0, ENTRIES);
                guest.try_start(0)
            },
        ));
    }
    rows.push(row(
        "a record with a descriptor that the queue does not have any more",
        Broken,
        "names descriptor 8: expected one below 8",
        move |guest| {
            negotiate(guest);
            let mut words = vec![0; 2 * 17];
            words[1] = header(1, 16);
            words[2 * (1 + 8)] = 1;
            let _buffer = pass(guest, &words);
            guest.set_up(0, 8);
            guest.try_start(0)
        },
    ));
    rows.push(row(
        "GET_INFLIGHT_FD and SET_INFLIGHT_FD: again",
        Accepted,
        "",
        |guest| {
            negotiate(guest);
            for _ in 0..2 {
                let wanted = said(0, 0, 2, ENTRIES);
                guest.wire.message(GET_INFLIGHT_FD, VERSION, &wanted, &[]);
                assert!(guest.wire.reply(GET_INFLIGHT_FD).is_some());
                let _buffer = pass(guest, &[]);
            }
            for index in 0..2 {
                guest.set_up(index, ENTRIES);
                guest.start(index);
            }
            assert_eq!(guest.verified_io(0, 3, 0x11), Ok(()));
            guest.still_there()
        },
    ));
    rows.push(row(
        "a record that goes round in circles",
        Broken,
        "record of requests in flight",
        move |guest| {
            // All is in flight, in chains as long as the ring; the used index is far away.
            start_with(
                guest,
                &[
                    vec![0, header(1, 16) | 0x7000 << 48],
                    vec![0x0010_0000_0000_0001; 64],
                ]
                .concat(),
            )
        },
    ));
    rows.push(row(
        "a buffer that disappears",
        Accepted,
        "truncated guest memory",
        |guest| {
            negotiate(guest);
            let buffer = pass(guest, &[]);
            for index in 0..2 {
                guest.set_up(index, ENTRIES);
                guest.start(index);
            }
            ftruncate(&buffer, 0).unwrap();
            assert_eq!(guest.verified_io(0, 3, 0x11), Ok(()));
            guest.still_there()
        },
    ));
    rows
}
