//! Dirty logs: pages that are marked in valid logs, and invalid logs.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use virtqueue::LOG_PAGE_BYTES;

use crate::guest::{ALL_PROTOCOL_FEATURES, FEATURES, Guest, MEMORY, MEMORY_BYTES};
use crate::row::Answer::{Accepted, Dropped};
use crate::row::{Answer, Rows};
use crate::wire::*;

const LOG_SHMFD: u64 = 1 << 1;
/// `VHOST_F_LOG_ALL`
const LOG_ALL: u64 = 1 << 26;
/// `VHOST_VRING_F_LOG`
const VRING_LOG: u32 = 1;

/// Bytes of a log that has just all of the guest's memory.
const NEEDED: u64 = (MEMORY + MEMORY_BYTES) / LOG_PAGE_BYTES / 8;
/// In its file it begins in the middle of a page, and ends on the next one but one.
const OFFSET: u64 = 4096 + 8;
const LONGER: u64 = 8192;

struct Log(OwnedFd);

impl Log {
    fn new(bytes: u64) -> Log {
        let file = memfd_create("log", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, bytes).unwrap();
        Log(file)
    }

    /// The pages that were marked since the last call. While nothing is in flight, nothing else reads them.
    fn take(&self) -> BTreeSet<u64> {
        let mut bytes = vec![0; usize::try_from(LONGER).unwrap()];
        let len = rustix::io::pread(&self.0, &mut bytes, OFFSET).unwrap();
        rustix::io::pwrite(&self.0, &vec![0; len], OFFSET).unwrap();
        let bits = (0..).zip(
            bytes
                .iter()
                .flat_map(|byte| (0..8).map(move |bit| byte >> bit & 1)),
        );
        bits.filter(|(_, bit)| *bit != 0)
            .map(|(page, _)| page)
            .collect()
    }
}

/// A guest whose queues run, in front of a device that may log.
fn ready(guest: &mut Guest) {
    guest.ready();
    let features = ALL_PROTOCOL_FEATURES | LOG_SHMFD;
    guest.must(SET_PROTOCOL_FEATURES, &u64s(&[features]), &[]);
}

/// Passes a log, which is answered with what was said.
fn pass(guest: &Guest, size: u64, offset: u64, file: impl AsFd) -> Answer {
    let said = u64s(&[size, offset]);
    match guest.wire.ask(SET_LOG_BASE, &said, &[file.as_fd()]) {
        None => Dropped,
        Some(reply) => {
            assert_eq!(reply, said);
            guest.still_there()
        }
    }
}

fn pass_good(guest: &Guest) -> Log {
    let log = Log::new(OFFSET + LONGER);
    assert_eq!(pass(guest, LONGER, OFFSET, &log.0), Accepted);
    log
}

/// Switches the log on or off, for buffers and for the used ring of each queue.
fn log_all(guest: &Guest, logs: bool) {
    let features = guest.features() | if logs { LOG_ALL } else { 0 };
    guest.must(SET_FEATURES, &u64s(&[features]), &[]);
    for index in 0..guest.queues.len() {
        let used = guest.queues[index].ring.layout().used;
        let mut said = guest.addresses(u32::try_from(index).unwrap(), u32::from(logs) * VRING_LOG);
        let log_at = said.len() - 8;
        said[log_at..].copy_from_slice(&u64s(&[used]));
        guest.must(SET_VRING_ADDR, &said, &[]);
    }
}

/// A guest that is migrated for the second time, and has not passed another log yet.
fn migrates_again(guest: &mut Guest) {
    ready(guest);
    assert_eq!(pass(guest, NEEDED, 0, Log::new(NEEDED).0), Accepted);
    log_all(guest, true);
    log_all(guest, false);
    log_all(guest, true);
}

/// The pages that a verified request wrote: its data, the status behind that, and the used ring of a split queue.
fn written(guest: &Guest) -> BTreeSet<u64> {
    let queue = &guest.queues[0];
    let layout = queue.ring.layout();
    let ring = if guest.is_packed() {
        layout.desc
    } else {
        layout.used
    };
    [queue.status - 4096, queue.status, ring]
        .map(|addr| addr / LOG_PAGE_BYTES)
        .into()
}

fn io(guest: &mut Guest) {
    assert_eq!(guest.verified_io(0, 3, 0x11), Ok(()));
}

/// The pages of all of the guest's memory.
fn all_pages() -> impl Iterator<Item = u64> {
    MEMORY / LOG_PAGE_BYTES..(MEMORY + MEMORY_BYTES) / LOG_PAGE_BYTES
}

/// Shares a little more memory, for which a log needs a byte more.
fn add_memory(guest: &Guest) -> Answer {
    let more = Log::new(8 * LOG_PAGE_BYTES);
    let end = MEMORY + MEMORY_BYTES;
    let region = Region {
        guest_addr: end,
        len: 8 * LOG_PAGE_BYTES,
        user_addr: end,
        offset: 0,
    };
    guest.ask(ADD_MEM_REG, &single_region(region), &[more.0.as_fd()])
}

/// Until the daemon has asked for kicks again, which it writes into the ring.
fn quiet(guest: &Guest) {
    guest.must(SET_VRING_ENABLE, &u32s(&[0, 1]), &[]);
}

fn good(rows: &mut Rows) {
    rows.row("a log while queues run", Accepted, |guest| {
        ready(guest);
        io(guest);
        let log = pass_good(guest);
        io(guest);
        assert_eq!(log.take(), [].into(), "it is not asked for");
        log_all(guest, true);
        log.take();
        io(guest);
        let marked = log.take();
        assert!(marked.is_superset(&written(guest)), "{marked:?}");
        assert!(marked.len() < 10, "{marked:?}");
        // Another, in its place.
        let new = pass_good(guest);
        log.take();
        new.take();
        io(guest);
        assert!(new.take().is_superset(&written(guest)));
        assert_eq!(log.take(), [].into(), "it is not used any more");
        log_all(guest, false);
        quiet(guest);
        new.take();
        io(guest);
        assert_eq!(new.take(), [].into(), "it is not asked for any more");
        log_all(guest, true);
        io(guest);
        assert!(new.take().is_superset(&written(guest)));
        guest.still_there()
    });
    rows.row(
        "a log of queues that are started with it",
        Accepted,
        |guest| {
            guest.negotiate(FEATURES | LOG_ALL);
            let features = ALL_PROTOCOL_FEATURES | LOG_SHMFD;
            guest.must(SET_PROTOCOL_FEATURES, &u64s(&[features]), &[]);
            guest.share_memory();
            let log = pass_good(guest);
            for index in 0..2 {
                guest.set_up(index, 16);
                guest.start(index);
            }
            log.take();
            io(guest);
            let data = guest.queues[0].status / LOG_PAGE_BYTES;
            assert!(log.take().contains(&data));
            guest.still_there()
        },
    );
    rows.row(
        "a log that comes after it was asked for",
        Accepted,
        |guest| {
            ready(guest);
            log_all(guest, true);
            io(guest);
            // Earlier writes are unknown.
            let log = pass_good(guest);
            assert!(log.take().into_iter().eq(all_pages()));
            guest.still_there()
        },
    );
    rows.row(
        "a log that comes after it was asked for, and another one before",
        Accepted,
        |guest| {
            migrates_again(guest);
            // The old log is not used any more.
            io(guest);
            let log = pass_good(guest);
            assert!(log.take().into_iter().eq(all_pages()));
            io(guest);
            assert!(log.take().is_superset(&written(guest)));
            guest.still_there()
        },
    );
    rows.row(
        "more memory than a log had that is not looked at any more",
        Accepted,
        |guest| {
            migrates_again(guest);
            assert_eq!(add_memory(guest), Accepted);
            let log = pass_good(guest);
            assert!(log.take().is_superset(&all_pages().collect()));
            guest.still_there()
        },
    );
    rows.row("a log that has just what it needs", Accepted, |guest| {
        ready(guest);
        pass(guest, NEEDED, 0, Log::new(NEEDED).0)
    });
}

pub fn rows(rows: &mut Rows) {
    good(rows);
    for (what, size, offset, says) in [
        (
            "too small",
            NEEDED - 1,
            0,
            "it has 159 bytes: expected at least 160",
        ),
        ("no bytes", 0, 0, "bad message"),
        ("too large", 1 << 34, 0, "expected at most 8589934592"),
        (
            "smaller than it says",
            1 << 30,
            0,
            "the file behind it has only 16384 bytes",
        ),
        (
            "behind its file",
            4096,
            16384,
            "the file behind it has only",
        ),
        (
            "at the end of all numbers",
            4096,
            u64::MAX - 4095,
            "bad message",
        ),
    ] {
        rows.row(format!("SET_LOG_BASE: {what}"), Dropped, move |guest| {
            ready(guest);
            pass(guest, size, offset, Log::new(16384).0)
        })
        .says(says);
    }
    rows.row("SET_LOG_BASE: no file", Dropped, |guest| {
        ready(guest);
        guest.ask(SET_LOG_BASE, &u64s(&[4096, 0]), &[])
    })
    .says("bad message");

    rows.row("SET_LOG_BASE: a pipe", Dropped, |guest| {
        ready(guest);
        let (reader, _writer) = rustix::pipe::pipe().unwrap();
        pass(guest, 4096, 0, reader)
    })
    .says("bad log");

    rows.row(
        "SET_LOG_BASE: a file that cannot be written",
        Dropped,
        |guest| {
            ready(guest);
            pass(guest, 4096, 0, File::open("/proc/self/exe").unwrap())
        },
    )
    .says("bad log");

    rows.row("more memory than there is a log for", Dropped, |guest| {
        ready(guest);
        assert_eq!(pass(guest, NEEDED, 0, Log::new(NEEDED).0), Accepted);
        log_all(guest, true);
        add_memory(guest)
    })
    .says("expected at least 161");

    rows.row("a log that disappears", Accepted, |guest| {
        ready(guest);
        let log = pass_good(guest);
        ftruncate(&log.0, 0).unwrap();
        log_all(guest, true);
        io(guest);
        guest.still_there()
    })
    .says("truncated guest memory");
}
