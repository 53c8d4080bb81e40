//! Repeated hostile input: nothing must accumulate.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use test_support::deadline::Deadline;
use test_support::fds::raise_limit;
use test_support::undisturbed_guest::UndisturbedGuest;

use crate::changing_rings::{UNNAMED, rewritten_while_read};
use crate::daemon::{Daemon, Footprint, HOSTILE, READ_ONLY};
use crate::front_end::*;
use crate::memory::{memory_file, region};
use crate::removed_memory::{TRUNCATED_BYTES, truncate_rings};
use crate::row::Answer;
use crate::wire::*;

/// A daemon that is flooded, what it held before, and the guest that must not notice.
struct Flood {
    daemon: Daemon,
    before: Footprint,
    guest: UndisturbedGuest,
}

impl Flood {
    fn prepare() -> Self {
        let daemon = Daemon::start();
        let guest = daemon.start_undisturbed_guest();
        let before = daemon.footprint_beside(&guest);
        works(&daemon);
        Flood {
            daemon,
            before,
            guest,
        }
    }

    fn offender(&self) -> HostileFrontEnd {
        HostileFrontEnd::connect(&self.daemon.socket(HOSTILE))
    }

    /// Asserts that the offender has left nothing.
    fn is_over(&mut self, what: &str) {
        self.guest.goes_on(what);
        works(&self.daemon);
        self.daemon.holds(&self.before, what);
    }

    /// Ends the daemon, also with an offender that is connected.
    fn stop(self) {
        self.guest.stop();
        self.daemon.stop();
    }
}

/// A front-end that comes afterwards.
fn works(daemon: &Daemon) {
    let mut guest = HostileFrontEnd::connect(&daemon.socket(HOSTILE));
    guest.ready();
    assert_eq!(guest.verified_io(0, 2, 0x5a), Ok(()));
}

/// Front-ends that say nothing, until the backlog holds no more of them, and a shutdown with some of them.
#[test]
fn connections_beyond_the_backlog_leave_nothing() {
    const AT_LEAST: usize = 1000;
    let mut flood = Flood::prepare();
    raise_limit();
    let path = flood.daemon.socket(HOSTILE);
    let address = SocketAddrUnix::new(&path).unwrap();
    let mut connected: Vec<OwnedFd> = Vec::new();
    let deadline = Deadline::default();
    loop {
        deadline.check(format_args!("{} fill the backlog", connected.len()));
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // Descriptors of our own may run out before.
        let Ok(socket) = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None) else {
            break;
        };
        match connect(&socket, &address) {
            Ok(()) => connected.push(socket),
            Err(Errno::AGAIN) => break,
            Err(error) => panic!("connect: {error}"),
        }
    }
    assert!(connected.len() >= AT_LEAST, "{}", connected.len());
    flood.guest.goes_on("a full backlog");
    drop(connected);
    flood.is_over("a full backlog");
    assert_eq!(flood.daemon.log(), "");
    let _waiting: Vec<_> = (0..200).map(|_| Wire::connect(&path)).collect();
    flood.stop();
}

/// Front-ends that come, say something wrong and go: ten lines at once, and then one per second.
#[test]
fn thousand_hostile_front_ends_leave_nothing() {
    const TIMES: usize = 1000;
    let mut flood = Flood::prepare();
    for _ in 0..TIMES {
        let wire = Wire::connect(&flood.daemon.socket(HOSTILE));
        let flags = VERSION | 1 << 20;
        wire.message(SET_VRING_CALL, flags, &u64s(&[0]), &[event().as_fd()]);
        assert_eq!(wire.reply(SET_VRING_CALL), None);
    }
    flood.is_over("1000 bad front-ends");
    let lines = flood.daemon.log().lines().count();
    assert!((10..TIMES / 10).contains(&lines), "{lines} lines");
    flood.stop();
}

/// The memory of running queues is truncated, with the rings in it, by one front-end after the other.
#[test]
fn truncated_ring_memory_breaks_queues_only() {
    const TIMES: u64 = 20;
    let mut flood = Flood::prepare();
    let space_before = flood.daemon.address_space_kib();
    for _ in 0..TIMES {
        let mut offender = flood.offender();
        let log = flood.daemon.log();
        assert_eq!(truncate_rings(&mut offender), Answer::Broken, "{log}");
        flood.guest.goes_on("truncated memory");
        drop(offender);
        flood.is_over("truncated memory");
    }
    // What was put in place of the lost memory is gone with the connection.
    let grown = flood
        .daemon
        .address_space_kib()
        .saturating_sub(space_before);
    let most = TIMES / 2 * TRUNCATED_BYTES / 1024;
    assert!(grown < most, "{grown} KiB more");
    let log = flood.daemon.log();
    let count = |said: &str| log.matches(said).count() as u64;
    for line in [
        "truncated guest memory",
        "the guest's driver broke this queue",
    ] {
        assert!((10..=TIMES).contains(&count(line)), "{log}");
    }
    let mut last = flood.offender();
    assert_eq!(truncate_rings(&mut last), Answer::Broken);
    flood.stop();
}

/// Rings that are rewritten by another thread while the daemon reads them.
#[test]
fn rings_rewritten_while_read_harm_their_queue_only() {
    const SEEDS: u64 = 40;
    let mut flood = Flood::prepare();
    let mut broken = 0;
    for seed in 0..SEEDS {
        let mut offender = flood.offender();
        broken += u64::from(rewritten_while_read(&mut offender, seed));
        flood.daemon.assert_running(&format!("seed {seed}"));
        let other = offender.verified_io(1, UNNAMED, 0x33);
        assert_eq!(other, Ok(()), "the other queue afterwards, seed {seed}");
        flood.guest.goes_on("rewritten rings");
    }
    flood.is_over("rewritten rings");
    assert!(
        broken > 0,
        "none of it was noticed: the rings were not what the daemon reads"
    );
    let log = flood.daemon.log();
    assert!(log.lines().count() as u64 <= SEEDS, "{log}");
    flood.stop();
}

/// One front-end may break its queue again and again without being disconnected.
#[test]
fn broken_queue_can_be_restarted_many_times() {
    const TIMES: usize = 2000;
    let mut flood = Flood::prepare();
    let mut offender = flood.offender();
    offender.negotiate(FEATURES);
    offender.set_up_first();
    offender.must(SET_VRING_NUM, &u32s(&[0, 3]), &[]);
    for _ in 0..TIMES {
        assert_eq!(offender.try_start(0), Answer::Broken);
    }
    drop(offender);
    flood.is_over("broken queues");
    let lines = flood.daemon.log().lines().count();
    assert!(lines <= TIMES / 10, "the log is flooded: {lines} lines");
    flood.stop();
}

/// A front-end may share sparse memory of any size. However much address space it takes, there is
/// some left for the others.
#[test]
fn front_end_cannot_take_all_address_space() {
    const LARGEST: u32 = 46;
    const PAGE: u32 = 12;
    let flood = Flood::prepare();
    let file = memory_file(1 << LARGEST);
    let share_all = |sizes: &[u64]| {
        let mut guest = flood.offender();
        guest.negotiate(FEATURES);
        let mut addr = 0;
        for &len in sizes {
            let payload = single_region(region(addr, len, addr, 0));
            if guest.ask(ADD_MEM_REG, &payload, &[file.as_fd()]) != Answer::Accepted {
                return None;
            }
            addr += len;
        }
        Some(guest)
    };
    // Regions of each size from the largest down, as many as there is room for. One too many costs
    // the connection, so it begins again with those that fitted.
    let mut sizes = Vec::new();
    for exponent in (PAGE..=LARGEST).rev() {
        let deadline = Deadline::default();
        loop {
            let regions = sizes.len();
            deadline.check(format_args!(
                "no room beside {regions} regions for one of 2^{exponent} bytes"
            ));
            sizes.push(1 << exponent);
            if share_all(&sizes).is_none() {
                sizes.pop();
                break;
            }
        }
    }
    let offender = share_all(&sizes);
    flood.guest.goes_on("all addresses taken");
    HostileFrontEnd::connect(&flood.daemon.socket(READ_ONLY)).ready();
    drop(offender);
    flood.stop();
}
