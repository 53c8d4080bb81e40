//! Tests of throttle groups: rates, bursts, and the shares of members, in simulated time.

use super::*;
use crate::throttle::cost::{Cost, Direction};
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

/// Lets queues run for so long, each at its own times.
fn run(queues: &mut [Queue], from_ns: u64, ns: u64) {
    for now_ns in (from_ns..from_ns + ns).step_by(20_000) {
        for queue in queues.iter_mut() {
            queue.run(now_ns);
        }
    }
}

/// The long run and the free burst of a tenth of a second, as QEMU gives.
#[test]
fn a_queue_gets_its_rate_and_the_free_burst() {
    for depth in [1, 8, 128] {
        let member = ThrottleMember::join(&iops(10_000));
        let mut queues = [Queue::new(&member, depth, 20_000)];
        run(&mut queues, 0, 5 * SECOND);
        let theory = 51_000;
        assert!(
            queues[0].passed.abs_diff(theory) <= 2,
            "depth {depth}: {}",
            queues[0].passed
        );
    }
}

/// Whether it has one queue or four, and one request at a time or 128.
#[test]
fn members_that_want_more_than_they_get_have_equal_shares() {
    let group = iops(10_000);
    let members = [1, 8, 32, 128].map(|depth| (ThrottleMember::join(&group), depth));
    let mut queues: Vec<_> = members
        .iter()
        .map(|(member, depth)| Queue::new(member, *depth, 30_000))
        .collect();
    for _ in 0..3 {
        queues.push(Queue::new(&members[3].0, 128, 30_000));
    }
    // Few get much of the free burst with one request at a time.
    run(&mut queues, 0, SECOND);
    for queue in &mut queues {
        queue.passed = 0;
    }
    run(&mut queues, SECOND, 5 * SECOND);
    let mut passed: Vec<_> = queues.iter().map(|queue| queue.passed).collect();
    let last: u64 = passed.drain(3..).sum();
    passed.push(last);
    assert!(
        passed.iter().all(|passed| passed.abs_diff(12_500) < 125),
        "{passed:?}"
    );
}

/// The others share what it leaves.
#[test]
fn a_member_that_wants_less_gets_all_that_it_wants() {
    let group = iops(10_000);
    let members = [1, 2, 3].map(|_| ThrottleMember::join(&group));
    let mut queues = [
        Queue::new(&members[0], 1, MS),
        Queue::new(&members[1], 32, 20_000),
        Queue::new(&members[2], 128, 20_000),
    ];
    run(&mut queues, 0, 5 * SECOND);
    let passed = queues.map(|queue| queue.passed);
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
    let before = queues[1].passed;
    run(&mut queues[1..], SECOND, SECOND);
    let alone = queues[1].passed - before;
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
    let mut at = 0;
    for (seconds, theory) in [(1, 55_000), (2, 105_000), (4, 140_000), (8, 180_000)] {
        run(&mut queues, at, seconds * SECOND - at);
        at = seconds * SECOND;
        let passed = queues[0].passed;
        assert!(
            passed.abs_diff(theory) < theory / 100,
            "{seconds} s: {passed}"
        );
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

/// As tracepoints expect it when a request begins to wait.
#[test]
fn a_request_waits_for_those_ahead_of_it() {
    let member = ThrottleMember::join(&iops(10));
    let account = Account::new(&member);
    let mut open = account.open(Lease::NONE, SECOND);
    let read = cost(Op::Read, 4096);
    while open.try_pass(&read) {}
    let debt = |open: &OpenAccount<'_>, ahead: f64| {
        let mut tokens = Tokens::default();
        tokens[LimitKind::IopsTotal as usize] = ahead;
        let (kind, ns) = open.limit_that_is_hit_after(&tokens, &read).unwrap();
        assert_eq!(kind, LimitKind::IopsTotal);
        ns
    };
    assert_eq!(debt(&open, 5.0) - debt(&open, 0.0), SECOND / 2);
    assert_eq!(open.limit_that_is_hit(&read).unwrap().1, debt(&open, 0.0));
}

/// Of a request that waits for hours, and of one that has just passed.
#[test]
fn a_change_of_limits_forgets_debts_and_wakes_requests_that_wait() {
    struct Woken(std::sync::atomic::AtomicBool);
    impl std::task::Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let group = iops(1);
    let member = ThrottleMember::join(&group);
    let account = Account::new(&member);
    let read = cost(Op::Read, 512);
    let mut open = account.open(Lease::NONE, SECOND);
    for _ in 0..10_000 {
        open.charge(&read);
    }
    assert!(!open.try_pass(&read));
    let woken = Arc::new(Woken(false.into()));
    open.set_head(Direction::Read, Some(woken.clone().into()));
    let old_lease = open.into_lease();
    let mut limits = group.limits();
    limits.rate_mut(LimitKind::IopsTotal).burst_rate = 100;
    group.set_limits(limits);
    assert!(woken.0.load(Ordering::Relaxed));
    let mut open = account.open(old_lease, SECOND);
    let passed = (0..1000).take_while(|_| open.try_pass(&read)).count();
    assert!(passed > 0);
}

/// The queue of a node that is exchanged has a new account before its old one closes.
#[test]
fn debts_go_to_the_account_that_replaces_another() {
    let group = iops(1_000);
    let member = ThrottleMember::join(&group);
    let (old, new) = (Account::new(&member), Account::new(&member));
    let read = cost(Op::Read, 512);
    let mut open = old.open(Lease::NONE, SECOND);
    for _ in 0..1_000 {
        open.charge(&read);
    }
    drop(open);
    drop(old);
    assert!(!new.open(Lease::NONE, SECOND + SECOND / 2).try_pass(&read));
    assert!(new.open(Lease::NONE, 2 * SECOND).try_pass(&read));
}

/// A guest is paused for a snapshot, which lets its requests go, and continues an hour later.
#[test]
fn debts_are_paid_while_a_member_has_no_queue() {
    let group = iops(100);
    let member = ThrottleMember::join(&group);
    let read = cost(Op::Read, 512);
    let account = Account::new(&member);
    let mut open = account.open(Lease::NONE, SECOND);
    for _ in 0..1_000 {
        open.charge(&read);
    }
    drop(open);
    drop(account);
    let account = Account::new(&member);
    assert!(!account.open(Lease::NONE, 5 * SECOND).try_pass(&read));
    drop(account);
    let account = Account::new(&member);
    assert!(account.open(Lease::NONE, 3600 * SECOND).try_pass(&read));
}

/// A guest resets one disk, which owes much and is idle then. Its other disk saves nothing up meanwhile.
#[test]
fn what_is_kept_for_debts_is_no_burst_for_others() {
    for keeps_queue in [false, true] {
        let group = iops(100);
        let members = [1, 2].map(|_| ThrottleMember::join(&group));
        let account = Account::new(&members[0]);
        let mut open = account.open(Lease::NONE, SECOND);
        for _ in 0..1_000_000 {
            open.charge(&cost(Op::Read, 512));
        }
        drop(open);
        let next = keeps_queue.then(|| Account::new(&members[0]));
        drop(account);
        let mut queues = [Queue::new(&members[1], 128, 20_000)];
        run(&mut queues, 3600 * SECOND, SECOND);
        let passed = queues[0].passed;
        assert!(
            passed.abs_diff(110) <= 2,
            "keeps a queue: {keeps_queue}: {passed}"
        );
        drop(next);
    }
}

/// What a reset let go is paid for by the member, also with new queues, and not by its neighbours.
#[test]
fn debts_stay_with_their_member() {
    let group = iops(1_000);
    let members = [1, 2].map(|_| ThrottleMember::join(&group));
    let account = Account::new(&members[0]);
    let mut open = account.open(Lease::NONE, 0);
    for _ in 0..1_000 {
        open.charge(&cost(Op::Read, 512));
    }
    drop(open);
    drop(account);
    let mut queues = members
        .each_ref()
        .map(|member| Queue::new(member, 8, 20_000));
    run(&mut queues, 0, 2 * SECOND);
    let [debtor, other] = queues.map(|queue| queue.passed);
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
    let mut queues = [Queue::new(&member, 128, 20_000)];
    run(&mut queues, 0, SECOND);
    assert!(
        queues[0].passed.abs_diff(1_100) <= 2,
        "{}",
        queues[0].passed
    );
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

/// A guest resets one of its queues, and leaves another one that has not been used.
#[test]
fn debts_are_not_left_to_a_queue_that_is_idle() {
    let member = ThrottleMember::join(&iops(1_000));
    let (used, _idle) = (Account::new(&member), Account::new(&member));
    let read = cost(Op::Read, 4096);
    let mut open = used.open(Lease::NONE, SECOND);
    for _ in 0..1_000 {
        open.charge(&read);
    }
    open.into_lease();
    drop(used);
    let used = Account::new(&member);
    assert!(!used.open(Lease::NONE, 3 * SECOND / 2).try_pass(&read));
    assert!(used.open(Lease::NONE, 2 * SECOND).try_pass(&read));
}
