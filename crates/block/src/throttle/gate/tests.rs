//! Tests of the gate of a throttled node: what waits, what passes, and how waits end.

use engine::{Completion, Op};

use super::*;
use crate::throttle::{LimitKind, RateLimit, ThrottleGroup, ThrottleLimits};
use crate::{Aio, AttachedDisk, IoContext, Node, testing};

const SOURCE: u32 = 3;

/// A null disk with one limit, and a context that it is attached to.
struct Rig {
    node: Arc<Node>,
    group: Arc<ThrottleGroup>,
    io: IoContext,
    disk: AttachedDisk,
}

impl Rig {
    fn new(kind: LimitKind, rate: u64) -> Self {
        Self::between(&testing::null(), |node| node, kind, rate)
    }

    /// Below the node that a function makes.
    fn between(
        below: &Arc<Node>,
        above: fn(Arc<Node>) -> Arc<Node>,
        kind: LimitKind,
        rate: u64,
    ) -> Self {
        let group = ThrottleGroup::new("group", limits(kind, rate));
        let node = Node::new_throttle("node", below, &group, false, true);
        let (io, disk) = testing::attached(&above(node.clone()));
        Rig {
            node,
            group,
            io,
            disk,
        }
    }

    fn submit(&mut self, op: Op, numbers: impl IntoIterator<Item = u64>) {
        for number in numbers {
            let token = u64::from(SOURCE) << 32 | number;
            let bytes = if op == Op::Flush { 0 } else { 4096 };
            testing::submit(&mut self.io, &self.disk, (op, 0), vec![0; bytes], token);
        }
    }

    /// Runs the phases a few times. The numbers of completed requests, in order.
    fn run(&mut self) -> Vec<u64> {
        numbers(testing::run_phases(&mut self.io))
    }

    /// Waits for so many requests.
    fn wait(&mut self, count: usize) -> Vec<u64> {
        numbers(testing::run_until_completed(&mut self.io, count))
    }

    fn remove_limits(&self) {
        self.group.set_limits(ThrottleLimits::default());
    }
}

fn limits(kind: LimitKind, rate: u64) -> ThrottleLimits {
    let mut limits = ThrottleLimits::default();
    *limits.rate_mut(kind) = RateLimit::of(rate);
    limits
}

fn numbers(done: Vec<Completion>) -> Vec<u64> {
    let mut numbers: Vec<_> = done.iter().map(|done| done.token & 0xffff_ffff).collect();
    assert!(done.iter().all(|done| done.result == Ok(())), "{done:?}");
    numbers.sort_unstable();
    numbers
}

/// Nothing, a window, a filter, and another throttled node.
const NODES_ABOVE: [fn(Arc<Node>) -> Arc<Node>; 4] = [
    |node| node,
    |node| testing::window(&node, 4096),
    |node| testing::filter(&node, []),
    |node| {
        let open = ThrottleGroup::new("open", ThrottleLimits::default());
        Node::new_throttle("open", &node, &open, false, true)
    },
];

/// One byte per second: the first request takes hours to be paid for.
#[test]
fn requests_wait_until_the_limits_permit() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let file = testing::file(file.path(), &[7; 8192], Aio::Threads);
    for above in NODES_ABOVE {
        let mut rig = Rig::between(&file, above, LimitKind::BpsTotal, 1);
        let zeroes = Op::WriteZeroes { unmap: true };
        for (number, op) in (1..).zip([Op::Read, Op::Read, Op::Write, Op::Discard, zeroes]) {
            rig.submit(op, [number]);
        }
        assert_eq!(rig.wait(1), [1]);
        assert_eq!(rig.run(), [0; 0]);
        let node = rig.node.clone();
        let stats = node.throttle().unwrap().stats();
        assert_eq!(stats.waiting(), 4);
        assert!(stats.limit_hits(LimitKind::BpsTotal) > 0);
        rig.group.set_limits(limits(LimitKind::BpsTotal, 1 << 40));
        assert_eq!(rig.wait(4), [2, 3, 4, 5]);
        assert_eq!((stats.waiting(), stats.waits().total()), (0, 4));
    }
}

/// More than 584 years, which are all nanoseconds that a clock counts.
#[test]
fn a_wait_may_be_longer_than_any_clock_counts() {
    let mut rig = Rig::new(LimitKind::BpsWrite, 1);
    let zeroes = Op::WriteZeroes { unmap: true };
    testing::submit_range(&mut rig.io, &rig.disk, zeroes, 0..1 << 62);
    rig.submit(Op::Write, [2]);
    assert_eq!(rig.run(), [9]);
    let deadline = rig.io.next_deadline_ns();
    assert!(deadline.is_some_and(|due| due > now_ns()));
    rig.remove_limits();
    assert_eq!(rig.wait(1), [2]);
}

/// A limit on one direction leaves the other alone, and a flush is about what has been answered.
#[test]
fn reads_and_flushes_pass_writes_that_wait() {
    let mut rig = Rig::new(LimitKind::BpsWrite, 1);
    rig.submit(Op::Write, 1..=3);
    assert_eq!(rig.run(), [1]);
    rig.submit(Op::Read, [4]);
    rig.submit(Op::Flush, [5]);
    assert_eq!(rig.run(), [4, 5]);
    rig.remove_limits();
    assert_eq!(rig.wait(2), [2, 3]);
}

/// Where both directions share a limit, neither passes the other's requests that wait.
#[test]
fn with_a_shared_limit_both_directions_wait_in_turn() {
    let mut rig = Rig::new(LimitKind::IopsTotal, 20);
    rig.submit(Op::Write, 1..=30);
    let passed = rig.run().len();
    rig.submit(Op::Read, 31..=60);
    assert!(passed < 10, "the free burst: {passed}");
    let reads = rig
        .wait(6)
        .into_iter()
        .filter(|number| *number > 30)
        .count();
    assert!((2..=4).contains(&reads), "half of them: {reads}");
    rig.remove_limits();
    rig.wait(54 - passed);
}

/// A queue stops, or its node is exchanged.
#[test]
fn requests_that_no_longer_wait_are_debts() {
    let mut rig = Rig::new(LimitKind::BpsRead, 1);
    rig.submit(Op::Read, 1..=3);
    assert_eq!(rig.run(), [1]);
    rig.io.let_requests_bypass_gates(SOURCE, [2, 3]);
    assert_eq!(rig.run(), [2, 3]);
    rig.submit(Op::Read, [4]);
    assert_eq!(rig.run(), [0; 0], "it came later");
    rig.io.let_requests_bypass_gates(SOURCE, [2, 3]);
    assert_eq!(rig.run(), [0; 0], "it is not waited for");
    rig.io.end_unbounded_waits(SOURCE + 1);
    assert_eq!(rig.run(), [0; 0], "another source stops");
    rig.io.end_unbounded_waits(SOURCE);
    assert_eq!(rig.run(), [4]);
    rig.io.forget_ended_source(SOURCE);
    let new = testing::attach(&mut rig.io, &rig.node);
    let old = std::mem::replace(&mut rig.disk, new);
    rig.io.detach(old);
    rig.submit(Op::Read, [5]);
    assert_eq!(rig.run(), [0; 0], "a new queue pays for the old one");
    rig.remove_limits();
    assert_eq!(rig.wait(1), [5]);
}

/// Each look takes the group's lock, and the time for it grows with the number of queues.
#[test]
fn queues_that_share_a_limit_look_when_they_have_been_paid() {
    const QUEUES: u64 = 64;
    let mut rig = Rig::new(LimitKind::IopsTotal, 2_000);
    for source in 0..QUEUES {
        let disk = testing::attach(&mut rig.io, &rig.node);
        for number in 0..20 {
            let token = source << 32 | number;
            testing::submit(&mut rig.io, &disk, (Op::Read, 0), vec![0; 512], token);
        }
    }
    let passed = rig.wait(1_000).len();
    let stats = rig.node.throttle().unwrap().stats();
    let looks = stats.limit_hits(LimitKind::IopsTotal);
    assert!(looks < 10 * passed as u64, "{looks} for {passed} requests");
    rig.remove_limits();
    rig.wait(1_280 - passed);
}

/// A group that is not full needs its lock once per lease.
#[test]
fn most_requests_pass_without_the_lock() {
    let mut rig = Rig::new(LimitKind::IopsTotal, 1_000_000_000);
    rig.submit(Op::Read, [1]);
    assert_eq!(rig.run(), [1]);
    rig.group.clone().while_locked_for_test(|| {
        rig.submit(Op::Read, [2]);
        assert_eq!(rig.run(), [2]);
    });
}

/// Most pass by an allowance, and take their tokens later, once. A thousand per second, of which a hundred may pass at once.
#[test]
fn requests_that_pass_by_an_allowance_take_tokens() {
    for above in NODES_ABOVE {
        let mut rig = Rig::between(&testing::null(), above, LimitKind::IopsTotal, 1_000);
        let begin = std::time::Instant::now();
        let mut passed = 0;
        for number in 0..200 {
            let op = if number % 3 == 0 { Op::Write } else { Op::Read };
            rig.submit(op, [number]);
            passed += rig.run().len();
        }
        let leaked = usize::try_from(begin.elapsed().as_millis()).unwrap() + 1;
        assert!((100..=100 + leaked).contains(&passed), "{passed}, {leaked}");
        rig.io.end_unbounded_waits(SOURCE);
        rig.wait(200 - passed);
    }
}

/// The limits change while an allowance has not been used up.
#[test]
fn new_limits_end_an_allowance() {
    let mut rig = Rig::new(LimitKind::IopsTotal, 1_000_000);
    rig.submit(Op::Read, [1]);
    assert_eq!(rig.run(), [1]);
    rig.group.set_limits(limits(LimitKind::IopsTotal, 1));
    rig.submit(Op::Read, 2..5);
    assert_eq!(rig.run(), [2], "the first one of a new bucket");
    rig.io.end_unbounded_waits(SOURCE);
    rig.wait(2);
}

/// A source stops: the end of one wait gives tokens to the next request, which stops before it has noticed.
#[test]
fn a_request_that_passes_while_its_source_stops_is_charged_once() {
    const SECOND: u64 = 1_000_000_000;
    let mut rig = Rig::new(LimitKind::BpsRead, 1);
    rig.submit(Op::Read, 1..=3);
    assert_eq!(rig.run(), [1]);
    rig.group.set_limits(limits(LimitKind::BpsRead, 41));
    let begin = now_ns();
    rig.io.end_unbounded_waits(SOURCE);
    assert_eq!(rig.run(), [2, 3]);
    rig.io.forget_ended_source(SOURCE);
    rig.submit(Op::Read, [4]);
    assert_eq!(rig.run(), [0; 0]);
    let wait = (rig.io.next_deadline_ns().unwrap() - begin) / SECOND;
    assert!((150..250).contains(&wait), "two requests of 100 s: {wait}");
    rig.remove_limits();
    rig.wait(1);
}
