//! Faults that a filter node (driver `blkdebug`) injects: the rules that select requests, and the outcome of each.
//!
//! The control plane may change the rules at any time, and every iothread that serves the node reads them. They are under a
//! lock, since performance does not matter where faults are injected. A task of the driver applies the decision
//! (`drivers/blkdebug.rs`).

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use engine::Errno;

use engine::{Op, Request};

/// The effect of a rule on a request that it hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultAction {
    /// The request fails, and the disk never sees it.
    Error(Errno),
    /// The request waits so many nanoseconds. Later rules apply as well.
    Delay(u64),
    /// The request waits until it is [released](Faults::release_hanging_and_set_rules), or its queue stops; then it is carried
    /// out.
    Hang,
    /// Only so many bytes are transferred, and it fails.
    Short(u64, Errno),
    /// Only so many bytes are transferred, and it succeeds: a write that lost its end, a flush that did nothing.
    Torn(u64),
}

/// A rule: the requests that it hits, and its effect on them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultRule {
    /// The rule takes effect with the first request of this kind; `None`: at once.
    pub begins: Option<Op>,
    /// The operation that it hits (write-zeroes: with and without `unmap`); `None`: all.
    pub op: Option<Op>,
    /// The bytes that a request must touch, which no flush does; `None`: any.
    pub bytes: Option<Range<u64>>,
    /// How many more requests it hits; `None`: no limit.
    pub times: Option<u64>,
    /// It hits one in so many requests at random; 1: each.
    pub one_in: u64,
    /// Its effect.
    pub action: FaultAction,
}

impl FaultRule {
    /// Whether the rule applies to a request, apart from chance.
    fn matches_apart_from_chance(&self, request: &Request) -> bool {
        let touches = |bytes: &Range<u64>| {
            let some = request.len > 0;
            some && request.offset < bytes.end
                && bytes.start < request.offset.saturating_add(request.len)
        };
        self.begins.is_none()
            && self.times != Some(0)
            && self
                .op
                .is_none_or(|only| only.is_same_operation(request.op))
            && self.bytes.as_ref().is_none_or(touches)
    }
}

/// The rules of a filter node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultRules {
    /// The first rule that hits and is no delay decides.
    pub rules: Vec<FaultRule>,
    /// Seed of the random numbers: the same requests in the same order get the same faults.
    pub seed: u64,
}

/// The faults that one request gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FaultDecision {
    pub delay: FaultDelay,
    pub outcome: OutcomeAfterDelay,
    /// The count of releases when it was decided.
    pub release_count: u64,
}

/// The time that a request waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultDelay {
    /// Nanoseconds, mostly 0.
    For(u64),
    /// Until it is released.
    UntilReleased,
}

/// The end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutcomeAfterDelay {
    /// It is carried out.
    Pass,
    /// It fails, and the disk never sees it.
    Fail(Errno),
    /// At most so many bytes are carried out; if that succeeds, this is the result.
    Partial(u64, Result<(), Errno>),
}

/// The current rules of a filter node, shared by all its openings.
pub struct Faults {
    state: Mutex<BlkdebugRules>,
    /// Counts how often requests were released. It only changes with `state` locked.
    release_count: AtomicU64,
    /// Tasks whose requests hang.
    hanging: Mutex<Vec<Waker>>,
}

/// What changes under the lock: the rules, with the hits that they have left, and the random numbers.
struct BlkdebugRules {
    rules: Vec<FaultRule>,
    random: u64,
    /// How many guards keep requests from hanging.
    no_hang_guards: usize,
}

/// While this guard exists, no request of the filter hangs.
pub struct NoHangGuard(Arc<Faults>);

impl Drop for NoHangGuard {
    fn drop(&mut self) {
        lock(&self.0.state).no_hang_guards -= 1;
    }
}

impl Faults {
    /// Faults with these rules.
    #[must_use]
    pub fn new(rules: FaultRules) -> Arc<Self> {
        Arc::new(Faults {
            state: Mutex::new(BlkdebugRules {
                rules: rules.rules,
                random: rules.seed,
                no_hang_guards: 0,
            }),
            release_count: AtomicU64::new(0),
            hanging: Mutex::default(),
        })
    }

    /// Releases all requests that hang, and replaces the rules if new ones are given.
    pub fn release_hanging_and_set_rules(&self, rules: Option<FaultRules>) {
        let mut state = lock(&self.state);
        if let Some(FaultRules { rules, seed }) = rules {
            (state.rules, state.random) = (rules, seed);
        }
        self.release_count.fetch_add(1, Ordering::Release);
        drop(state);
        for waker in lock(&self.hanging).drain(..) {
            waker.wake();
        }
    }

    /// Releases all requests that hang, and lets none hang while the guard exists. A caller that waits for all requests of
    /// a queue would otherwise wait for ever.
    #[must_use]
    pub fn release_and_prevent_hangs(self: &Arc<Self>) -> NoHangGuard {
        lock(&self.state).no_hang_guards += 1;
        self.release_hanging_and_set_rules(None);
        NoHangGuard(self.clone())
    }

    /// Decides which faults a request gets.
    pub(crate) fn decide_and_update_rules(&self, request: &Request) -> FaultDecision {
        let mut state = lock(&self.state);
        let BlkdebugRules {
            rules,
            random,
            no_hang_guards,
        } = &mut *state;
        let begins = |rule: &&mut FaultRule| {
            rule.begins
                .is_some_and(|op| op.is_same_operation(request.op))
        };
        for rule in rules.iter_mut().filter(begins) {
            rule.begins = None;
        }
        let (mut delay, mut outcome, mut delay_ns) = (None, OutcomeAfterDelay::Pass, 0u64);
        for rule in rules.iter_mut() {
            if !rule.matches_apart_from_chance(request) || !draw_random_hit(random, rule.one_in) {
                continue;
            }
            rule.times = rule.times.map(|times| times - 1);
            match rule.action {
                FaultAction::Delay(ns) => {
                    delay_ns = delay_ns.saturating_add(ns);
                    continue;
                }
                FaultAction::Hang if *no_hang_guards > 0 => {}
                FaultAction::Hang => delay = Some(FaultDelay::UntilReleased),
                FaultAction::Error(errno) => outcome = OutcomeAfterDelay::Fail(errno),
                FaultAction::Short(bytes, errno) => {
                    outcome = OutcomeAfterDelay::Partial(bytes, Err(errno))
                }
                FaultAction::Torn(bytes) => outcome = OutcomeAfterDelay::Partial(bytes, Ok(())),
            }
            break;
        }
        FaultDecision {
            delay: delay.unwrap_or(FaultDelay::For(delay_ns)),
            outcome,
            release_count: self.release_count(),
        }
    }

    /// How often requests were released.
    pub(crate) fn release_count(&self) -> u64 {
        self.release_count.load(Ordering::Acquire)
    }

    /// Waits until the requests that were decided at this count are released.
    pub(crate) async fn wait_until_released(&self, release_count: u64) {
        std::future::poll_fn(|cx| {
            let mut hanging = lock(&self.hanging);
            if self.release_count() != release_count {
                return Poll::Ready(());
            }
            if !hanging.iter().any(|waker| waker.will_wake(cx.waker())) {
                hanging.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }
}

/// True at random, one time in `one_in`.
fn draw_random_hit(random: &mut u64, one_in: u64) -> bool {
    if one_in <= 1 {
        return true;
    }
    // SplitMix64.
    *random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*random ^ (*random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed ^ (mixed >> 31)).is_multiple_of(one_in)
}

/// Locks a mutex, also one that a panic has poisoned.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(op: Op, offset: u64, len: u64) -> Request {
        Request::without_data(op, offset, len, 0)
    }

    fn rule(action: FaultAction) -> FaultRule {
        FaultRule {
            begins: None,
            op: None,
            bytes: None,
            times: None,
            one_in: 1,
            action,
        }
    }

    fn faults(rules: &[FaultRule], seed: u64) -> Arc<Faults> {
        let rules = rules.to_vec();
        Faults::new(FaultRules { rules, seed })
    }

    const EIO: FaultAction = FaultAction::Error(Errno::IO);

    fn fails(faults: &Faults, request: &Request) -> bool {
        faults.decide_and_update_rules(request).outcome == OutcomeAfterDelay::Fail(Errno::IO)
    }

    #[test]
    fn a_rule_hits_the_requests_that_match() {
        let only_writes = FaultRule {
            op: Some(Op::Write),
            bytes: Some(1024..2048),
            ..rule(EIO)
        };
        let faults = faults(&[only_writes], 0);
        for (op, offset, len, hit) in [
            (Op::Write, 0, 1024, false),
            (Op::Write, 0, 1025, true),
            (Op::Write, 2047, 1, true),
            (Op::Write, 2048, 512, false),
            (Op::Write, 1500, 0, false),
            (Op::Read, 1024, 512, false),
            (Op::Flush, 0, 0, false),
        ] {
            let read = request(op, offset, len);
            assert_eq!(fails(&faults, &read), hit, "{read:?}");
        }
    }

    #[test]
    fn delays_add_up_and_the_first_other_rule_decides() {
        let twice = FaultRule {
            times: Some(2),
            ..rule(FaultAction::Delay(5))
        };
        let once = FaultRule {
            times: Some(1),
            ..rule(FaultAction::Hang)
        };
        let rules = [twice, rule(FaultAction::Delay(7)), once, rule(EIO)];
        let faults = faults(&rules, 0);
        let read = request(Op::Read, 0, 512);
        let decision = || {
            let FaultDecision { delay, outcome, .. } = faults.decide_and_update_rules(&read);
            (delay, outcome)
        };
        let fail = OutcomeAfterDelay::Fail(Errno::IO);
        for expected in [
            (FaultDelay::UntilReleased, OutcomeAfterDelay::Pass),
            (FaultDelay::For(12), fail),
            (FaultDelay::For(7), fail),
        ] {
            assert_eq!(decision(), expected);
        }
    }

    #[test]
    fn a_rule_takes_effect_with_the_first_request_of_its_kind() {
        let behind_a_flush = FaultRule {
            begins: Some(Op::Flush),
            op: Some(Op::Read),
            ..rule(EIO)
        };
        let faults = faults(&[behind_a_flush], 0);
        let (read, flush) = (request(Op::Read, 0, 512), request(Op::Flush, 0, 0));
        assert!(!fails(&faults, &read));
        assert!(!fails(&faults, &flush), "it does not hit flushes");
        assert!(fails(&faults, &read));
    }

    #[test]
    fn random_faults_are_repeatable_and_as_frequent_as_set() {
        let seldom = FaultRule {
            one_in: 10,
            ..rule(EIO)
        };
        let hits = |seed| {
            let faults = faults(std::slice::from_ref(&seldom), seed);
            let read = request(Op::Read, 0, 512);
            let hits = (0..10_000).map(|_| fails(&faults, &read));
            hits.collect::<Vec<bool>>()
        };
        let one = hits(1);
        assert_eq!(one, hits(1));
        assert_ne!(one, hits(2));
        let count = one.iter().filter(|hit| **hit).count();
        assert!((800..1200).contains(&count), "{count} of 10000");
    }

    #[test]
    fn no_request_hangs_while_a_release_guard_exists() {
        let faults = faults(&[rule(FaultAction::Hang)], 0);
        let read = request(Op::Read, 0, 512);
        let delay = || faults.decide_and_update_rules(&read).delay;
        let before = faults.release_count();
        let [first, second] = [(); 2].map(|()| faults.release_and_prevent_hangs());
        assert_ne!(faults.release_count(), before);
        for released in [first, second] {
            assert_eq!(delay(), FaultDelay::For(0));
            drop(released);
        }
        assert_eq!(delay(), FaultDelay::UntilReleased);
    }
}
