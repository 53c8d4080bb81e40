//! Tests of throttle groups: rates, bursts, and the shares of members, in simulated time.

use super::*;
use crate::throttle::cost::Cost;
use crate::throttle::lease::Lease;
use crate::throttle::limits::RateLimit;

use engine::{Op, Request};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

impl ThrottleGroup {
    /// Calls a function while another thread could hold the lock.
    pub(in crate::throttle) fn while_locked_for_test(&self, call: impl FnOnce()) {
        let _state = self.lock();
        call();
    }
}

fn group(set: impl Fn(&mut ThrottleLimits)) -> Arc<ThrottleGroup> {
    let mut limits = ThrottleLimits::default();
    set(&mut limits);
    ThrottleGroup::new("group", limits)
}

fn iops(rate: u64) -> Arc<ThrottleGroup> {
    group(|limits| *limits.rate_mut(LimitKind::IopsTotal) = RateLimit::of(rate))
}

fn cost(op: Op, bytes: u64) -> Cost {
    let request = Request::without_data(op, 0, bytes, 0);
    Cost::of(&request, 0.0)
}

/// A queue that keeps asking as its depth and the time that a request takes allow.
struct Queue {
    account: Account,
    lease: Lease,
    cost: Cost,
    depth: usize,
    latency_ns: u64,
    /// When requests in flight complete.
    in_flight: Vec<u64>,
    passed: u64,
}

impl Queue {
    fn new(member: &Arc<ThrottleMember>, depth: usize, latency_ns: u64) -> Self {
        Queue {
            account: Account::new(member),
            lease: Lease::NONE,
            cost: cost(Op::Read, 4096),
            depth,
            latency_ns,
            in_flight: Vec::new(),
            passed: 0,
        }
    }

    /// Starts what may start now.
    fn run(&mut self, now_ns: u64) {
        self.in_flight.retain(|done| *done > now_ns);
        let mut account = self.account.open(self.lease, now_ns);
        while self.in_flight.len() < self.depth && account.try_pass(&self.cost) {
            self.in_flight.push(now_ns + self.latency_ns);
            self.passed += 1;
        }
        self.lease = account.into_lease();
    }
}

/// Lets queues run for so long, each at its own times. How many requests of each have passed meanwhile.
fn run<const N: usize>(queues: &mut [Queue; N], from_ns: u64, ns: u64) -> [u64; N] {
    let before = queues.each_ref().map(|queue| queue.passed);
    for now_ns in (from_ns..from_ns + ns).step_by(20_000) {
        for queue in queues.iter_mut() {
            queue.run(now_ns);
        }
    }
    std::array::from_fn(|index| queues[index].passed - before[index])
}

/// Lets so many reads of an account pass that the limits do not permit.
fn charge(account: &Account, reads: u64, now_ns: u64) {
    let mut open = account.open(Lease::NONE, now_ns);
    for _ in 0..reads {
        open.charge(&cost(Op::Read, 512));
    }
}

fn is_paid(account: &Account, now_ns: u64) -> bool {
    account
        .open(Lease::NONE, now_ns)
        .try_pass(&cost(Op::Read, 512))
}

/// The long run and the free burst of a tenth of a second, as QEMU gives.
#[test]
fn a_queue_gets_its_rate_and_the_free_burst() {
    for depth in [1, 8, 128] {
        let member = ThrottleMember::join(&iops(10_000));
        let [passed] = run(&mut [Queue::new(&member, depth, 20_000)], 0, 5 * SECOND);
        assert!(passed.abs_diff(51_000) <= 2, "depth {depth}: {passed}");
    }
}

/// Whether it has one queue or four, and one request at a time or 128.
#[test]
fn members_that_want_more_than_they_get_have_equal_shares() {
    let group = iops(10_000);
    let members = [(); 4].map(|()| ThrottleMember::join(&group));
    let queues = [
        (0, 1),
        (1, 8),
        (2, 32),
        (3, 128),
        (3, 128),
        (3, 128),
        (3, 128),
    ];
    let mut queues = queues.map(|(member, depth)| Queue::new(&members[member], depth, 30_000));
    // Few get much of the free burst with one request at a time.
    run(&mut queues, 0, SECOND);
    let [first, second, third, last @ ..] = run(&mut queues, SECOND, 5 * SECOND);
    let passed = [first, second, third, last.iter().sum()];
    assert!(
        passed.iter().all(|passed| passed.abs_diff(12_500) < 125),
        "{passed:?}"
    );
}

/// The others share what it leaves.
#[test]
fn a_member_that_wants_less_gets_all_that_it_wants() {
    let group = iops(10_000);
    let mut queues = [(1, MS), (32, 20_000), (128, 20_000)].map(|(depth, latency_ns)| {
        let member = ThrottleMember::join(&group);
        Queue::new(&member, depth, latency_ns)
    });
    let passed = run(&mut queues, 0, 5 * SECOND);
    assert!(passed[0] > 4_900, "one per millisecond: {passed:?}");
    assert!(passed[1].abs_diff(passed[2]) < 500, "{passed:?}");
    let sum: u64 = passed.iter().sum();
    assert!(sum.abs_diff(51_000) < 200, "{passed:?}");
}

/// Members that are idle keep nothing from the others, and cost no rate when they come and go.
#[test]
fn what_idle_members_leave_is_for_the_others() {
    let group = iops(1_000);
    let members = [1, 2].map(|_| ThrottleMember::join(&group));
    let mut queues = members
        .each_ref()
        .map(|member| Queue::new(member, 4, 20_000));
    run(&mut queues, 0, SECOND);
    let [_idle, busy] = queues;
    let [alone] = run(&mut [busy], SECOND, SECOND);
    assert!(alone.abs_diff(1_000) < 15, "{alone}");
}

/// A request is larger than what is left: it passes, and later ones wait for as long as it takes to make up for it.
#[test]
fn a_large_request_is_a_debt() {
    let group = group(|limits| *limits.rate_mut(LimitKind::BpsWrite) = RateLimit::of(1 << 20));
    let member = ThrottleMember::join(&group);
    let account = Account::new(&member);
    let (large, small) = (cost(Op::Write, 4 << 20), cost(Op::Write, 512));
    let mut open = account.open(Lease::NONE, SECOND);
    assert!(open.try_pass(&large));
    let (kind, ns) = open.limit_that_is_hit(&small).unwrap();
    assert_eq!(kind, LimitKind::BpsWrite);
    assert!(
        ns.abs_diff(3_900 * MS) < MS,
        "4 s, but for the free burst: {ns}"
    );
    assert!(
        open.try_pass(&cost(Op::Read, 4 << 20)),
        "reads have no limit"
    );
    let lease = open.into_lease();
    assert!(!account.open(lease, SECOND + ns - MS).try_pass(&small));
    assert!(account.open(lease, SECOND + ns).try_pass(&small));
}

/// A burst has its height and its length, and then the rate is what it is in the long run.
#[test]
fn a_burst_has_its_height_and_length() {
    let group = group(|limits| {
        *limits.rate_mut(LimitKind::IopsRead) = RateLimit {
            rate: 10_000,
            burst_rate: 50_000,
            burst_seconds: 2,
        };
    });
    let member = ThrottleMember::join(&group);
    let mut queues = [Queue::new(&member, 128, 20_000)];
    for (from, to, theory) in [
        (0, 1, 55_000),
        (1, 2, 105_000),
        (2, 4, 140_000),
        (4, 8, 180_000),
    ] {
        run(&mut queues, from * SECOND, (to - from) * SECOND);
        let passed = queues[0].passed;
        assert!(passed.abs_diff(theory) < theory / 100, "{to} s: {passed}");
    }
}

#[test]
fn large_requests_count_as_several_operations() {
    let request = |len| Request::without_data(Op::Read, 0, len, 0);
    let operations = |len| Cost::of(&request(len), 1.0 / 4096.0).units()[0].1;
    assert_eq!(
        [512, 4096, 6144, 1 << 20].map(operations),
        [1.0, 1.0, 1.5, 256.0]
    );
}

/// Of a request that has just passed. Requests that wait are woken, see the tests of the gate.
#[test]
fn a_change_of_limits_forgets_debts() {
    let group = iops(1);
    let member = ThrottleMember::join(&group);
    let account = Account::new(&member);
    charge(&account, 10_000, SECOND);
    assert!(!is_paid(&account, SECOND));
    let mut limits = group.limits();
    limits.rate_mut(LimitKind::IopsTotal).burst_rate = 100;
    group.set_limits(limits);
    assert!(is_paid(&account, SECOND));
}

/// The queue of a node that is exchanged has a new account before its old one closes; a guest may reset a queue and leave
/// another one that has not been used.
#[test]
fn debts_go_to_an_account_that_is_there_when_another_closes_or_to_the_next() {
    for replaced_before in [true, false] {
        let member = ThrottleMember::join(&iops(1_000));
        let (old, idle) = (Account::new(&member), Account::new(&member));
        charge(&old, 1_000, SECOND);
        drop(old);
        let new = if replaced_before {
            idle
        } else {
            Account::new(&member)
        };
        assert!(!is_paid(&new, SECOND + SECOND / 2));
        assert!(is_paid(&new, 2 * SECOND));
    }
}

/// A guest is paused for a snapshot, which lets its requests go, and continues an hour later.
#[test]
fn debts_are_paid_while_a_member_has_no_queue() {
    let member = ThrottleMember::join(&iops(100));
    charge(&Account::new(&member), 1_000, SECOND);
    assert!(!is_paid(&Account::new(&member), 5 * SECOND));
    assert!(is_paid(&Account::new(&member), 3600 * SECOND));
}

/// A guest resets one disk, which owes much and is idle then. Its other disk saves nothing up meanwhile.
#[test]
fn what_is_kept_for_debts_is_no_burst_for_others() {
    for keeps_queue in [false, true] {
        let group = iops(100);
        let members = [1, 2].map(|_| ThrottleMember::join(&group));
        let account = Account::new(&members[0]);
        charge(&account, 1_000_000, SECOND);
        let next = keeps_queue.then(|| Account::new(&members[0]));
        drop(account);
        let mut queues = [Queue::new(&members[1], 128, 20_000)];
        let [passed] = run(&mut queues, 3600 * SECOND, SECOND);
        assert!(passed.abs_diff(110) <= 2, "{keeps_queue}: {passed}");
        drop(next);
    }
}

/// What a reset let go is paid for by the member, also with new queues, and not by its neighbours.
#[test]
fn debts_stay_with_their_member() {
    let group = iops(1_000);
    let members = [1, 2].map(|_| ThrottleMember::join(&group));
    charge(&Account::new(&members[0]), 1_000, 0);
    let mut queues = members
        .each_ref()
        .map(|member| Queue::new(member, 8, 20_000));
    let [debtor, other] = run(&mut queues, 0, 2 * SECOND);
    assert!(debtor < 150, "it has paid 1,000: {debtor}");
    assert!(other > 950, "{other}");
}

/// Tokens of a queue that has ended are there for others, once.
#[test]
fn an_account_returns_its_tokens_when_it_closes() {
    let group = iops(1_000);
    let member = ThrottleMember::join(&group);
    for round in 0..1_000 {
        let account = Account::new(&member);
        let lease = account.open(Lease::NONE, 0).into_lease();
        assert!(lease.tokens[0] > 1.0, "round {round}: {lease:?}");
        drop(account.open(lease, 0));
    }
    let [passed] = run(&mut [Queue::new(&member, 128, 20_000)], 0, SECOND);
    assert!(passed.abs_diff(1_100) <= 2, "{passed}");
}

/// Leases of queues that have become idle are no burst, however many queues there are.
#[test]
fn the_leases_of_all_queues_are_a_hundredth_of_a_second() {
    let member = ThrottleMember::join(&iops(10_000));
    let mut queues: Vec<_> = (0..64).map(|_| Queue::new(&member, 1, 20_000)).collect();
    let mut now_ns = SECOND;
    for queue in &mut queues {
        now_ns += 100 * MS;
        queue.run(now_ns);
    }
    let leased: f64 = queues
        .iter()
        .map(|queue| queue.lease.tokens[LimitKind::IopsTotal as usize])
        .sum();
    assert!(leased < 101.0, "{leased}");
}
