//! Repeated hostile input: nothing must accumulate.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use test_support::deadline::Deadline;

use crate::changing_rings::{UNNAMED, rewritten_while_read};
use crate::daemon::{Daemon, Footprint, HOSTILE, READ_ONLY};
use crate::guest::*;
use crate::memory::{memory_file, region};
use crate::removed_memory::{TRUNCATED_BYTES, truncate_rings};
use crate::row::Answer;
use crate::verifying_guest::VerifyingGuest;
use crate::wire::*;

/// A daemon, what it holds before the flood, and the guest that must not notice.
fn prepared() -> (Daemon, VerifyingGuest, Footprint) {
    let daemon = Daemon::start();
    let bystander = VerifyingGuest::start(&daemon);
    let before = daemon.footprint_beside(&bystander);
    works(&daemon);
    (daemon, bystander, before)
}

/// A front-end that comes afterwards.
fn works(daemon: &Daemon) {
    let mut guest = Guest::connect(&daemon.socket(HOSTILE));
    guest.ready();
    assert_eq!(guest.verified_io(0, 2, 0x5a), Ok(()));
}

/// Front-ends that say nothing, until the backlog holds no more of them.
#[test]
fn connections_beyond_the_backlog_leave_nothing() {
    const AT_LEAST: usize = 1000;
    let (mut daemon, bystander, before) = prepared();
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: maximum,
            maximum,
        },
    )
    .unwrap();
    let address = SocketAddrUnix::new(daemon.socket(HOSTILE)).unwrap();
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
    println!("{} connected", connected.len());
    assert!(connected.len() >= AT_LEAST, "{}", connected.len());
    bystander.goes_on("a full backlog");
    drop(connected);
    works(&daemon);
    daemon.holds(&before, "a full backlog");
    assert_eq!(daemon.log(), "");
    bystander.stop();
    daemon.stop("a full backlog");
}

/// Front-ends that wait in the backlog do not prevent a shutdown.
#[test]
fn sigterm_works_with_a_full_backlog() {
    const WAITING: usize = 200;
    let daemon = Daemon::start();
    let waiting: Vec<_> = (0..WAITING)
        .map(|_| Wire::connect(&daemon.socket(HOSTILE)))
        .collect();
    daemon.stop("a full backlog");
    drop(waiting);
}

/// Front-ends that come, say something wrong and go: one line each.
#[test]
fn thousand_hostile_front_ends_leave_nothing() {
    const TIMES: usize = 1000;
    let (mut daemon, bystander, before) = prepared();
    for _ in 0..TIMES {
        let wire = Wire::connect(&daemon.socket(HOSTILE));
        let file = event();
        wire.message(
            SET_VRING_CALL,
            VERSION | 1 << 20,
            &u64s(&[0]),
            &[file.as_fd()],
        );
        assert_eq!(wire.reply(SET_VRING_CALL), None);
    }
    bystander.goes_on("1000 bad front-ends");
    works(&daemon);
    daemon.holds(&before, "1000 bad front-ends");
    assert_eq!(daemon.log().lines().count(), TIMES);
    bystander.stop();
    daemon.stop("1000 bad front-ends");
}

/// The memory of running queues is truncated, with the rings in it, by one front-end after the other.
#[test]
fn truncated_ring_memory_breaks_queues_only() {
    const TIMES: u64 = 20;
    let (mut daemon, bystander, before) = prepared();
    let space_before = daemon.address_space_kib();
    for _ in 0..TIMES {
        let mut guest = Guest::connect(&daemon.socket(HOSTILE));
        assert_eq!(
            truncate_rings(&mut guest),
            Answer::Broken,
            "{}",
            daemon.log()
        );
        bystander.goes_on("truncated memory");
        drop(guest);
        works(&daemon);
        daemon.holds(&before, "truncated memory");
    }
    // What was put in place of the lost memory is gone with the connection.
    let grown = daemon.address_space_kib().saturating_sub(space_before);
    assert!(
        grown < TIMES / 2 * TRUNCATED_BYTES / 1024,
        "{grown} KiB more"
    );
    let log = daemon.log();
    for said in [
        "truncated guest memory",
        "the guest's driver broke this queue",
    ] {
        let lines = log.lines().filter(|line| line.contains(said)).count();
        assert_eq!(lines as u64, TIMES, "{log}");
    }
    bystander.stop();
    daemon.stop("truncated memory");
}

/// Truncated memory, and SIGTERM while it is in use.
#[test]
fn sigterm_works_with_truncated_ring_memory() {
    let daemon = Daemon::start();
    let mut guest = Guest::connect(&daemon.socket(HOSTILE));
    assert_eq!(truncate_rings(&mut guest), Answer::Broken);
    daemon.stop("truncated memory");
}

/// Rings that are rewritten by another thread while the daemon reads them.
#[test]
fn rings_rewritten_while_read_harm_their_queue_only() {
    const SEEDS: u64 = 40;
    let (mut daemon, bystander, before) = prepared();
    let mut broken = 0;
    for seed in 0..SEEDS {
        let mut guest = Guest::connect(&daemon.socket(HOSTILE));
        broken += u64::from(rewritten_while_read(&mut guest, seed));
        daemon.assert_running(&format!("seed {seed}"));
        assert_eq!(
            guest.verified_io(1, UNNAMED, 0x33),
            Ok(()),
            "the other queue afterwards, seed {seed}"
        );
        bystander.goes_on("rewritten rings");
    }
    works(&daemon);
    daemon.holds(&before, "rewritten rings");
    println!("{broken} of {SEEDS} queues broke");
    assert!(
        broken > 0,
        "none of it was noticed: the rings were not what the daemon reads"
    );
    let log = daemon.log();
    assert!(log.lines().count() as u64 <= SEEDS, "{log}");
    bystander.stop();
    daemon.stop("rewritten rings");
}

/// One front-end may break its queue again and again without being disconnected.
#[test]
fn broken_queue_can_be_restarted_many_times() {
    const TIMES: usize = 2000;
    let (mut daemon, bystander, before) = prepared();
    let mut guest = Guest::connect(&daemon.socket(HOSTILE));
    guest.negotiate(FEATURES);
    guest.share_memory();
    guest.set_up(0, ENTRIES);
    guest.must(SET_VRING_NUM, &u32s(&[0, 3]), &[]);
    for _ in 0..TIMES {
        assert_eq!(guest.try_start(0), Answer::Broken);
    }
    bystander.goes_on("broken queues");
    drop(guest);
    works(&daemon);
    daemon.holds(&before, "broken queues");
    let lines = daemon.log().lines().count();
    println!("{lines} lines for {TIMES} broken queues");
    bystander.stop();
    daemon.stop("broken queues");
    assert!(lines <= TIMES / 10, "the log is flooded: {lines} lines");
}

/// A front-end may share sparse memory of any size. However much address space it takes, there is
/// some left for the others.
#[test]
fn front_end_cannot_take_all_address_space() {
    const LARGEST: u32 = 46;
    const PAGE: u32 = 12;
    let (daemon, bystander, _) = prepared();
    let file = memory_file(1 << LARGEST);
    let share_all = |sizes: &[u64]| {
        let mut guest = Guest::connect(&daemon.socket(HOSTILE));
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
    println!("{} GiB taken", sizes.iter().sum::<u64>() >> 30);
    bystander.goes_on("all addresses taken");
    Guest::connect(&daemon.socket(READ_ONLY)).ready();
    drop(offender);
    bystander.stop();
    daemon.stop("all addresses taken");
}
