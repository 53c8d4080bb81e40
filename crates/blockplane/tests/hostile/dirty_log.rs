//! Dirty logs: pages that are marked in valid logs, and invalid logs.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::ftruncate;
use virtqueue::LOG_PAGE_BYTES;

use crate::front_end::{ALL_PROTOCOL_FEATURES, FEATURES, HostileFrontEnd, MEMORY, MEMORY_BYTES};
use crate::inflight::{UNMAPPABLE, file};
use crate::memory::region;
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

/// The pages that were marked in a log since the last call. While nothing is in flight, nothing else reads them.
fn take(log: &OwnedFd) -> BTreeSet<u64> {
    let mut bytes = vec![0; usize::try_from(LONGER).unwrap()];
    let len = rustix::io::pread(log, &mut bytes, OFFSET).unwrap();
    rustix::io::pwrite(log, &vec![0; len], OFFSET).unwrap();
    let bits = bytes
        .iter()
        .flat_map(|byte| (0..8).map(move |bit| byte >> bit & 1));
    let marked = (0..).zip(bits).filter(|(_, bit)| *bit != 0);
    marked.map(|(page, _)| page).collect()
}

/// A guest whose queues run, in front of a device that may log.
fn ready(guest: &mut HostileFrontEnd) {
    guest.ready();
    let features = ALL_PROTOCOL_FEATURES | LOG_SHMFD;
    guest.must(SET_PROTOCOL_FEATURES, &u64s(&[features]), &[]);
}

/// Passes a log, which is answered with what was said.
fn pass(guest: &HostileFrontEnd, size: u64, offset: u64, file: impl AsFd) -> Answer {
    let said = u64s(&[size, offset]);
    match guest.wire.ask(SET_LOG_BASE, &said, &[file.as_fd()]) {
        None => Dropped,
        Some(reply) => {
            assert_eq!(reply, said);
            guest.still_there()
        }
    }
}

fn pass_good(guest: &HostileFrontEnd) -> OwnedFd {
    let log = file(OFFSET + LONGER);
    assert_eq!(pass(guest, LONGER, OFFSET, &log), Accepted);
    log
}

/// Switches the log on or off, for buffers and for the used ring of each queue.
fn log_all(guest: &HostileFrontEnd, logs: bool) {
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

/// A guest that is migrated, to a log that has just what it needs.
fn migrates(guest: &mut HostileFrontEnd) {
    ready(guest);
    assert_eq!(pass(guest, NEEDED, 0, file(NEEDED)), Accepted);
    log_all(guest, true);
}

/// The same for the second time, and it has not passed another log yet.
fn migrates_again(guest: &mut HostileFrontEnd) {
    migrates(guest);
    log_all(guest, false);
    log_all(guest, true);
}

/// The pages that a verified request wrote: its data, the status behind that, and the used ring of a split queue.
fn written(guest: &HostileFrontEnd) -> BTreeSet<u64> {
    let queue = &guest.queues[0];
    let addresses = [queue.status - 4096, queue.status, queue.ring.layout().used];
    addresses.map(|addr| addr / LOG_PAGE_BYTES).into()
}

fn io(guest: &mut HostileFrontEnd) {
    assert_eq!(guest.verified_io(0, 3, 0x11), Ok(()));
}

/// The pages of all of the guest's memory.
fn all_pages() -> BTreeSet<u64> {
    (MEMORY / LOG_PAGE_BYTES..(MEMORY + MEMORY_BYTES) / LOG_PAGE_BYTES).collect()
}

/// Shares a little more memory, for which a log needs a byte more.
fn add_memory(guest: &HostileFrontEnd) -> Answer {
    let bytes = 8 * LOG_PAGE_BYTES;
    let end = MEMORY + MEMORY_BYTES;
    let region = single_region(region(end, bytes, end, 0));
    guest.ask(ADD_MEM_REG, &region, &[file(bytes).as_fd()])
}

fn good(rows: &mut Rows) {
    rows.row("a log while queues run", Accepted, |guest| {
        ready(guest);
        io(guest);
        let log = pass_good(guest);
        io(guest);
        assert_eq!(take(&log), [].into(), "it is not asked for");
        log_all(guest, true);
        take(&log);
        io(guest);
        let marked = take(&log);
        assert!(marked.is_superset(&written(guest)), "{marked:?}");
        assert!(marked.len() < 10, "{marked:?}");
        // Another, in its place.
        let new = pass_good(guest);
        take(&log);
        take(&new);
        io(guest);
        assert!(take(&new).is_superset(&written(guest)));
        assert_eq!(take(&log), [].into(), "it is not used any more");
        log_all(guest, false);
        // Until the daemon has asked for kicks again, which it writes into the ring.
        guest.must(SET_VRING_ENABLE, &u32s(&[0, 1]), &[]);
        take(&new);
        io(guest);
        assert_eq!(take(&new), [].into(), "it is not asked for any more");
        log_all(guest, true);
        io(guest);
        assert!(take(&new).is_superset(&written(guest)));
        guest.still_there()
    });
    rows.row("a log from the start of its queues on", Accepted, |guest| {
        guest.negotiate_also(FEATURES | LOG_ALL, LOG_SHMFD);
        guest.share_memory();
        let log = pass_good(guest);
        for index in 0..2 {
            guest.set_up(index, 16);
            guest.start(index);
        }
        take(&log);
        io(guest);
        let data = guest.queues[0].status / LOG_PAGE_BYTES;
        assert!(take(&log).contains(&data));
        guest.still_there()
    });
    rows.row("a log that comes too late", Accepted, |guest| {
        ready(guest);
        log_all(guest, true);
        io(guest);
        // Earlier writes are unknown.
        assert_eq!(take(&pass_good(guest)), all_pages());
        guest.still_there()
    });
    rows.row("the same, and another one before", Accepted, |guest| {
        migrates_again(guest);
        // The old log is not used any more.
        io(guest);
        let log = pass_good(guest);
        assert_eq!(take(&log), all_pages());
        io(guest);
        assert!(take(&log).is_superset(&written(guest)));
        guest.still_there()
    });
    rows.row("more memory than the last log had", Accepted, |guest| {
        migrates_again(guest);
        assert_eq!(add_memory(guest), Accepted);
        assert!(take(&pass_good(guest)).is_superset(&all_pages()));
        guest.still_there()
    });
}

pub fn rows(rows: &mut Rows) {
    const BAD: &str = "bad message";
    const SMALL: &str = "the file behind it has only 16384 bytes";
    good(rows);
    for (says, size, offset) in [
        ("it has 159 bytes: expected at least 160", NEEDED - 1, 0),
        ("expected at most 8589934592", 1 << 34, 0),
        (SMALL, 1 << 30, 0),
        (SMALL, 4096, 16384),
        (BAD, 0, 0),
        (BAD, 4096, u64::MAX - 4095),
    ] {
        let what = format!("SET_LOG_BASE: {size} bytes from {offset} on");
        let row = rows.row(what, Dropped, move |guest| {
            ready(guest);
            pass(guest, size, offset, file(16384))
        });
        row.says(says);
    }
    let row = rows.row("SET_LOG_BASE: no file", Dropped, |guest| {
        ready(guest);
        guest.ask(SET_LOG_BASE, &u64s(&[4096, 0]), &[])
    });
    row.says(BAD);
    for (what, make) in UNMAPPABLE {
        let row = rows.row(format!("SET_LOG_BASE: {what}"), Dropped, move |guest| {
            ready(guest);
            pass(guest, 4096, 0, make())
        });
        row.says("bad log");
    }
    let row = rows.row("more memory than there is a log for", Dropped, |guest| {
        migrates(guest);
        add_memory(guest)
    });
    row.says("expected at least 161");
    let row = rows.row("a log that disappears", Accepted, |guest| {
        ready(guest);
        let log = pass_good(guest);
        ftruncate(&log, 0).unwrap();
        log_all(guest, true);
        io(guest);
        guest.still_there()
    });
    row.says("truncated guest memory");
}
