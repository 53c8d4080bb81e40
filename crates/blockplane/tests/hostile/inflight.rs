//! Invalid in-flight regions.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use crate::guest::{ALL_PROTOCOL_FEATURES, ENTRIES, FEATURES, Guest};
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

/// Asks for a buffer, and expects one for as many queues as there are, with entries for rings of any size.
fn get(guest: &Guest, queues: u16, entries: u16) -> Answer {
    let wanted = said(0, 0, queues, entries);
    guest.wire.message(GET_INFLIGHT_FD, VERSION, &wanted, &[]);
    let Some(reply) = guest.wire.reply(GET_INFLIGHT_FD) else {
        return Dropped;
    };
    assert_eq!(
        reply[16..20],
        [queues.min(2), 1024].map(u16::to_ne_bytes).concat()
    );
    guest.still_there()
}

/// Passes a buffer that may be of no use; both queues run and carry data all the same.
fn disk_works_with(guest: &mut Guest, payload: &[u8], file: BorrowedFd<'_>) -> Answer {
    negotiate(guest);
    guest.must(SET_INFLIGHT_FD, payload, &[file]);
    for index in 0..2 {
        guest.set_up(index, ENTRIES);
        guest.start(index);
        let number = usize::try_from(index).unwrap();
        assert_eq!(guest.verified_io(number, 3, 0x11), Ok(()));
    }
    guest.still_there()
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

pub fn rows(rows: &mut Rows) {
    for (what, queues, entries) in [("no queues", 0, 16), ("no entries", 2, 0)] {
        rows.row(format!("GET_INFLIGHT_FD: {what}"), Dropped, move |guest| {
            negotiate(guest);
            get(guest, queues, entries)
        })
        .says("bad message");

        rows.row(format!("SET_INFLIGHT_FD: {what}"), Dropped, move |guest| {
            negotiate(guest);
            let payload = said(1 << 20, 0, queues, entries);
            guest.ask(SET_INFLIGHT_FD, &payload, &[file(1 << 20).as_fd()])
        })
        .says("bad message");
    }
    for (what, queues, entries) in [
        ("a queue more than there are", 3, 16),
        ("fewer entries than rings have", 2, 8),
        ("as many entries as there are numbers", 2, u16::MAX),
    ] {
        rows.row(format!("GET_INFLIGHT_FD: {what}"), Accepted, move |guest| {
            negotiate(guest);
            get(guest, queues, entries)
        });
    }
    rows.row(
        "SET_INFLIGHT_FD: for a queue more than there are",
        Accepted,
        |guest| {
            let file = file(1 << 16);
            disk_works_with(guest, &said(1 << 16, 0, 3, ENTRIES), file.as_fd())
        },
    );

    for (what, size, offset, entries, says) in [
        (
            "too small",
            256,
            0,
            ENTRIES,
            "it has 256 bytes: expected at least",
        ),
        (
            "for smaller rings",
            8192,
            0,
            8,
            "its regions have 8 entries each: expected at least the queue size 16",
        ),
        (
            "smaller than it says, and large enough",
            65536,
            0,
            ENTRIES,
            "",
        ),
        (
            "smaller than it says",
            65536,
            16384 - 256,
            ENTRIES,
            "it has 256 bytes: expected at least",
        ),
    ] {
        rows.row(format!("SET_INFLIGHT_FD: {what}"), Accepted, move |guest| {
            let payload = said(size, offset, 2, entries);
            disk_works_with(guest, &payload, file(16384).as_fd())
        })
        .says(says);
    }
    for (what, size, offset, says) in [
        (
            "too small for a header",
            63,
            0,
            "it has 63 bytes: expected at least 64",
        ),
        (
            "at an odd place",
            8192,
            12,
            "begins at byte 12 of its file: expected a multiple of 8",
        ),
        (
            "at the end of all numbers",
            8192,
            u64::MAX - 7,
            "it has 0 bytes: expected at least 64",
        ),
    ] {
        rows.row(format!("SET_INFLIGHT_FD: {what}"), Dropped, move |guest| {
            negotiate(guest);
            let payload = said(size, offset, 2, ENTRIES);
            guest.ask(SET_INFLIGHT_FD, &payload, &[file(16384).as_fd()])
        })
        .says(says);
    }
    rows.row("SET_INFLIGHT_FD: no file", Dropped, |guest| {
        negotiate(guest);
        guest.ask(SET_INFLIGHT_FD, &said(8192, 0, 2, ENTRIES), &[])
    })
    .says("bad message");

    rows.row("SET_INFLIGHT_FD: a pipe", Dropped, |guest| {
        negotiate(guest);
        let (reader, _writer) = rustix::pipe::pipe().unwrap();
        guest.ask(
            SET_INFLIGHT_FD,
            &said(8192, 0, 2, ENTRIES),
            &[reader.as_fd()],
        )
    })
    .says("bad buffer");

    rows.row(
        "SET_INFLIGHT_FD: a file that cannot be written",
        Dropped,
        |guest| {
            negotiate(guest);
            let file = File::open("/proc/self/exe").unwrap();
            guest.ask(SET_INFLIGHT_FD, &said(8192, 0, 2, ENTRIES), &[file.as_fd()])
        },
    )
    .says("bad buffer");

    rows.row("SET_INFLIGHT_FD: while a queue runs", Dropped, |guest| {
        negotiate(guest);
        guest.set_up(0, ENTRIES);
        guest.start(0);
        guest.ask(
            SET_INFLIGHT_FD,
            &said(8192, 0, 2, ENTRIES),
            &[file(8192).as_fd()],
        )
    })
    .says("queues are running");

    rows.row(
        "a buffer for fewer queues than are started",
        Accepted,
        |guest| {
            let file = file(576);
            disk_works_with(guest, &said(576, 0, 1, ENTRIES), file.as_fd())
        },
    )
    .says("it has 576 bytes: expected at least");

    // The second word: version, and entries.
    let header = |version: u64, entries: u64| version | entries << 16;
    for (what, words, says) in [
        (
            "of another version",
            vec![0, header(9, 16)],
            "has version 9",
        ),
        (
            "of a smaller queue",
            vec![0, header(1, 8)],
            "is for 8 descriptors: expected 16",
        ),
    ] {
        rows.row(format!("a record {what}"), Broken, move |guest| {
            start_with(guest, &words)
        })
        .says(says);
    }
    // The layout that the buffer itself says counts.
    rows.row("a record of a larger queue", Accepted, move |guest| {
        let file = file(1 << 16);
        rustix::io::pwrite(&file, &header(1, 32).to_le_bytes(), 8).unwrap();
        disk_works_with(guest, &said(1 << 16, 0, 2, ENTRIES), file.as_fd())
    });

    rows.row(
        "a record with a descriptor that the queue does not have any more",
        Broken,
        move |guest| {
            negotiate(guest);
            let mut words = vec![0; 2 * 17];
            words[1] = header(1, 16);
            words[2 * (1 + 8)] = 1;
            let _buffer = pass(guest, &words);
            guest.set_up(0, 8);
            guest.try_start(0)
        },
    )
    .says("names descriptor 8: expected one below 8");

    rows.row(
        "GET_INFLIGHT_FD and SET_INFLIGHT_FD: again",
        Accepted,
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
    );

    rows.row(
        "a record that goes round in circles",
        Broken,
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
    )
    .says("record of requests in flight");

    rows.row("a buffer that disappears", Accepted, |guest| {
        negotiate(guest);
        let buffer = pass(guest, &[]);
        for index in 0..2 {
            guest.set_up(index, ENTRIES);
            guest.start(index);
        }
        ftruncate(&buffer, 0).unwrap();
        assert_eq!(guest.verified_io(0, 3, 0x11), Ok(()));
        guest.still_there()
    })
    .says("truncated guest memory");
}
