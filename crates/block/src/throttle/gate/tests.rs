//! Tests of the gate of a throttled node: what waits, what passes, and how waits end.

use engine::{Completion, Op};

use super::*;
use crate::throttle::{LimitKind, RateLimit, ThrottleGroup, ThrottleLimits};
use crate::{Aio, AttachedDisk, IoContext, Node, testing};

const SOURCE: u32 = 3;

/// A null disk with this limit, and its group.
fn throttled(kind: LimitKind, rate: u64) -> (Arc<Node>, Arc<ThrottleGroup>) {
    throttle(&testing::null(), kind, rate)
}

/// The same, with a context that it is attached to.
fn attached(
    kind: LimitKind,
    rate: u64,
) -> (Arc<Node>, Arc<ThrottleGroup>, IoContext, AttachedDisk) {
    let (node, group) = throttled(kind, rate);
    let mut io = testing::io();
    let disk = testing::attach(&mut io, &node);
    (node, group, io, disk)
}

fn throttle(below: &Arc<Node>, kind: LimitKind, rate: u64) -> (Arc<Node>, Arc<ThrottleGroup>) {
    let group = ThrottleGroup::new("group", limits(kind, rate));
    let node = Node::new_throttle("node", below, &group, false, true);
    (node, group)
}

fn limits(kind: LimitKind, rate: u64) -> ThrottleLimits {
    let mut limits = ThrottleLimits::default();
    *limits.rate_mut(kind) = RateLimit::of(rate);
    limits
}

fn submit(io: &mut IoContext, disk: &AttachedDisk, op: Op, number: u64) {
    let token = u64::from(SOURCE) << 32 | number;
    let bytes = if op == Op::Flush { 0 } else { 4096 };
    testing::submit(io, disk, (op, 0), vec![0; bytes], token);
}

fn submit_all(
    io: &mut IoContext,
    disk: &AttachedDisk,
    op: Op,
    numbers: impl IntoIterator<Item = u64>,
) {
    numbers
        .into_iter()
        .for_each(|number| submit(io, disk, op, number));
}

/// Runs the phases a few times.
fn run(io: &mut IoContext) -> Vec<u64> {
    let mut done = Vec::new();
    for _ in 0..5 {
        io.poll_tasks_and_submit();
        io.reap_and_poll_tasks(&mut done);
    }
    numbers(done)
}

/// The numbers of completed requests, in order.
fn numbers(done: Vec<Completion>) -> Vec<u64> {
    let mut numbers: Vec<_> = done.iter().map(|done| done.token & 0xffff_ffff).collect();
    assert!(done.iter().all(|done| done.result == Ok(())), "{done:?}");
    numbers.sort_unstable();
    numbers
}

/// One byte per second: the first request takes hours to be paid for.
#[test]
fn requests_wait_until_the_limits_permit() {
    let folder = tempfile::tempdir().unwrap();
    let file = testing::file(&folder.path().join("disk"), &[7; 4096], Aio::Threads);
    let (node, group) = throttle(&file, LimitKind::BpsTotal, 1);
    let mut io = testing::io();
    let disk = testing::attach(&mut io, &node);
    let ops = [
        Op::Read,
        Op::Read,
        Op::Write,
        Op::Discard,
        Op::WriteZeroes { unmap: true },
    ];
    for (number, op) in (1..).zip(ops) {
        submit(&mut io, &disk, op, number);
    }
    assert_eq!(numbers(testing::run_until_completed(&mut io, 1)), [1]);
    assert_eq!(run(&mut io), []);
    let stats = node.throttle().unwrap().stats();
    assert_eq!(stats.waiting(), 4);
    assert!(stats.limit_hits(LimitKind::BpsTotal) > 0);
    group.set_limits(limits(LimitKind::BpsTotal, 1 << 40));
    let done = testing::run_until_completed(&mut io, 4);
    assert_eq!(numbers(done), [2, 3, 4, 5]);
    assert_eq!(stats.waiting(), 0);
    assert_eq!(stats.waits().total(), 4);
    io.detach(disk);
}

/// More than 584 years, which are all nanoseconds that a clock counts.
#[test]
fn a_wait_may_be_longer_than_any_clock_counts() {
    let (_, group, mut io, disk) = attached(LimitKind::BpsWrite, 1);
    let zeroes = Request::without_data(
        Op::WriteZeroes { unmap: true },
        0,
        1 << 62,
        u64::from(SOURCE) << 32 | 1,
    );
    // SAFETY: there are no segments.
    unsafe { io.submit(&disk, zeroes) }.unwrap();
    submit(&mut io, &disk, Op::Write, 2);
    assert_eq!(run(&mut io), [1]);
    assert!(io.next_deadline_ns().is_some_and(|due| due > now_ns()));
    group.set_limits(ThrottleLimits::default());
    assert_eq!(numbers(testing::run_until_completed(&mut io, 1)), [2]);
    io.detach(disk);
}

/// A limit on one direction leaves the other alone, and a flush is about what has been answered.
#[test]
fn reads_and_flushes_pass_writes_that_wait() {
    let (_, group, mut io, disk) = attached(LimitKind::BpsWrite, 1);
    submit_all(&mut io, &disk, Op::Write, 1..=3);
    assert_eq!(run(&mut io), [1]);
    submit(&mut io, &disk, Op::Read, 4);
    submit(&mut io, &disk, Op::Flush, 5);
    assert_eq!(run(&mut io), [4, 5]);
    group.set_limits(ThrottleLimits::default());
    assert_eq!(numbers(testing::run_until_completed(&mut io, 2)), [2, 3]);
    io.detach(disk);
}

/// Where both directions share a limit, neither passes the other's requests that wait.
#[test]
fn with_a_shared_limit_both_directions_wait_in_turn() {
    let (_, group, mut io, disk) = attached(LimitKind::IopsTotal, 20);
    submit_all(&mut io, &disk, Op::Write, 1..=30);
    let passed = run(&mut io).len() as u64;
    submit_all(&mut io, &disk, Op::Read, 31..=60);
    assert!(passed < 10, "the free burst: {passed}");
    let done = testing::run_until_completed(&mut io, 6);
    let reads = numbers(done)
        .into_iter()
        .filter(|number| *number > 30)
        .count();
    assert!((2..=4).contains(&reads), "half of them: {reads}");
    group.set_limits(ThrottleLimits::default());
    testing::run_until_completed(&mut io, 54 - usize::try_from(passed).unwrap());
    io.detach(disk);
}

/// A queue stops, or its node is exchanged.
#[test]
fn requests_that_no_longer_wait_are_debts() {
    let (node, group, mut io, disk) = attached(LimitKind::BpsRead, 1);
    submit_all(&mut io, &disk, Op::Read, 1..=3);
    assert_eq!(run(&mut io), [1]);
    io.let_current_bypass_gates(SOURCE);
    assert_eq!(run(&mut io), [2, 3]);
    submit(&mut io, &disk, Op::Read, 4);
    assert_eq!(run(&mut io), [], "it came later");
    io.end_unbounded_waits(SOURCE);
    assert_eq!(run(&mut io), [4]);
    io.forget_ended_source(SOURCE);
    io.detach(disk);
    let disk = testing::attach(&mut io, &node);
    submit(&mut io, &disk, Op::Read, 5);
    assert_eq!(run(&mut io), [], "a new queue pays for the old one");
    group.set_limits(ThrottleLimits::default());
    assert_eq!(numbers(testing::run_until_completed(&mut io, 1)), [5]);
    io.detach(disk);
}

/// The first request in line has the timer: another one takes it over when that one goes.
#[test]
fn the_request_with_the_timer_may_go() {
    let (node, _group, mut io, disk) = attached(LimitKind::IopsTotal, 20);
    let other = testing::attach(&mut io, &node);
    submit_all(&mut io, &disk, Op::Read, 1..=10);
    for number in 11..=20 {
        let token = u64::from(SOURCE + 1) << 32 | number;
        testing::submit(&mut io, &other, (Op::Read, 0), vec![0; 4096], token);
    }
    io.end_unbounded_waits(SOURCE);
    assert_eq!(
        numbers(testing::run_until_completed(&mut io, 20)),
        (1..=20).collect::<Vec<_>>()
    );
    io.detach(disk);
    io.detach(other);
}

/// Each look takes the group's lock, and the time for it grows with the number of queues.
#[test]
fn queues_that_share_a_limit_look_when_they_have_been_paid() {
    const QUEUES: u32 = 64;
    let (node, group) = throttled(LimitKind::IopsTotal, 2_000);
    let mut io = testing::io();
    let disks: Vec<_> = (0..QUEUES)
        .map(|_| testing::attach(&mut io, &node))
        .collect();
    for (source, disk) in (0_u64..).zip(&disks) {
        for number in 0..20 {
            let token = source << 32 | number;
            testing::submit(&mut io, disk, (Op::Read, 0), vec![0; 512], token);
        }
    }
    let passed = testing::run_until_completed(&mut io, 1_000).len() as u64;
    let stats = node.throttle().unwrap().stats();
    let looks = stats.limit_hits(LimitKind::IopsTotal);
    assert!(looks < 10 * passed, "{looks} for {passed} requests");
    group.set_limits(ThrottleLimits::default());
    testing::run_until_completed(&mut io, 1_280 - usize::try_from(passed).unwrap());
    for disk in disks {
        io.detach(disk);
    }
}

/// A group that is not full needs its lock once per lease.
#[test]
fn most_requests_pass_without_the_lock() {
    let (_, group, mut io, disk) = attached(LimitKind::IopsTotal, 1_000_000_000);
    submit(&mut io, &disk, Op::Read, 1);
    assert_eq!(run(&mut io), [1]);
    group.while_locked_for_test(|| {
        submit(&mut io, &disk, Op::Read, 2);
        assert_eq!(run(&mut io), [2]);
    });
    io.detach(disk);
}

/// Most pass by an allowance, and take their tokens later. A thousand per second, of which a hundred may pass at once.
#[test]
fn requests_that_pass_by_an_allowance_take_tokens() {
    let (_, _group, mut io, disk) = attached(LimitKind::IopsTotal, 1_000);
    let begin = std::time::Instant::now();
    let mut passed = 0;
    for number in 0..200 {
        let op = if number % 3 == 0 { Op::Write } else { Op::Read };
        submit(&mut io, &disk, op, number);
        passed += run(&mut io).len();
    }
    let leaked = usize::try_from(begin.elapsed().as_millis()).unwrap() + 1;
    assert!((100..=100 + leaked).contains(&passed), "{passed}, {leaked}");
    io.end_unbounded_waits(SOURCE);
    testing::run_until_completed(&mut io, 200 - passed);
    io.detach(disk);
}

/// The limits change while an allowance has not been used up.
#[test]
fn new_limits_end_an_allowance() {
    let (_, group, mut io, disk) = attached(LimitKind::IopsTotal, 1_000_000);
    submit(&mut io, &disk, Op::Read, 1);
    assert_eq!(run(&mut io), [1]);
    group.set_limits(limits(LimitKind::IopsTotal, 1));
    submit_all(&mut io, &disk, Op::Read, 2..5);
    assert_eq!(run(&mut io), [2], "the first one of a new bucket");
    io.end_unbounded_waits(SOURCE);
    testing::run_until_completed(&mut io, 2);
    io.detach(disk);
}

/// A source stops: the end of one wait gives tokens to the next request, which stops before it has noticed.
#[test]
fn a_request_that_passes_while_its_source_stops_is_charged_once() {
    const SECOND: u64 = 1_000_000_000;
    let (_, group, mut io, disk) = attached(LimitKind::BpsRead, 1);
    submit_all(&mut io, &disk, Op::Read, 1..=3);
    assert_eq!(run(&mut io), [1]);
    group.set_limits(limits(LimitKind::BpsRead, 41));
    let begin = now_ns();
    io.end_unbounded_waits(SOURCE);
    assert_eq!(run(&mut io), [2, 3]);
    io.forget_ended_source(SOURCE);
    submit(&mut io, &disk, Op::Read, 4);
    assert_eq!(run(&mut io), []);
    let wait = io.next_deadline_ns().unwrap() - begin;
    assert!(
        (150..250).contains(&(wait / SECOND)),
        "two requests of 100 s: {wait}"
    );
    group.set_limits(ThrottleLimits::default());
    testing::run_until_completed(&mut io, 1);
    io.detach(disk);
}
