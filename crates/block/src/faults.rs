//! Faults that a filter node (driver `blkdebug`) injects on purpose: which requests they hit, and what becomes of
//! those.
//!
//! Rules belong to the control plane, which may change them at any time, and are looked at by every iothread
//! that serves the node: under a lock, since whoever injects faults does not measure. Carrying the verdict out is
//! a task's (`blkdebug.rs`).

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use engine::Errno;

use engine::{Op, Request};

/// What becomes of a request that a rule hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultAction {
    /// It fails, and the disk never sees it.
    Error(Errno),
    /// It waits so many nanoseconds. Later rules are asked as well.
    Delay(u64),
    /// It waits until it is [released](Faults::set), or its queue stops; then it is carried out.
    Hang,
    /// Only so many bytes are transferred, and it fails.
    Short(u64, Errno),
    /// Only so many bytes are transferred, and it succeeds: a write that lost its end, a flush that did nothing.
    Torn(u64),
}

/// Requests that are hit, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultRule {
    /// It begins with the first request of this kind; `None`: at once.
    pub begins: Option<Op>,
    /// Only these, of write-zeroes with and without `unmap`; `None`: all.
    pub op: Option<Op>,
    /// Only what touches these bytes, which no flush does; `None`: everywhere.
    pub bytes: Option<Range<u64>>,
    /// It hits so often, and never again; `None`: for ever.
    pub times: Option<u64>,
    /// It hits one in so many, by chance; 1: each.
    pub one_in: u64,
    /// What it does.
    pub action: FaultAction,
}

impl FaultRule {
    /// Whether it is about such a request. `times` counts down.
    fn matches(&self, request: &Request) -> bool {
        let touches = |bytes: &Range<u64>| {
            let some = request.len > 0;
            some && request.offset < bytes.end
                && bytes.start < request.offset.saturating_add(request.len)
        };
        self.begins.is_none()
            && self.times != Some(0)
            && self.op.is_none_or(|only| only.is_kind_of(request.op))
            && self.bytes.as_ref().is_none_or(touches)
    }
}

/// The rules of a filter node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultRules {
    /// The first that hits and is no delay decides.
    pub rules: Vec<FaultRule>,
    /// The same seed and the same requests in the same order have the same faults.
    pub seed: u64,
}

/// What is to become of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FaultDecision {
    pub hold: FaultDelay,
    pub outcome: FaultOutcome,
    /// Of the rules that said so.
    pub release_count: u64,
}

/// How long a request is kept back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultDelay {
    /// So many nanoseconds, mostly none.
    For(u64),
    /// Until it is released.
    UntilReleased,
}

/// How it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultOutcome {
    Pass,
    Fail(Errno),
    /// So many bytes at most are carried out; if that succeeds, this is the result.
    Partial(u64, Result<(), Errno>),
}

/// The rules of a filter node as they are now, shared by all its openings.
pub struct Faults {
    state: Mutex<State>,
    /// Counts how often requests were released. It only changes with `state` locked.
    release_count: AtomicU64,
    /// Tasks whose requests hang.
    hanging: Mutex<Vec<Waker>>,
}

struct State {
    rules: Vec<FaultRule>,
    random: u64,
    /// So many want that nothing hangs.
    released: usize,
}

/// Nothing hangs, and what did is released, until this is dropped.
pub struct Released(Arc<Faults>);

impl Drop for Released {
    fn drop(&mut self) {
        lock(&self.0.state).released -= 1;
    }
}

impl Faults {
    /// With these rules.
    #[must_use]
    pub fn new(rules: FaultRules) -> Arc<Self> {
        Arc::new(Faults {
            state: Mutex::new(State {
                rules: rules.rules,
                random: rules.seed,
                released: 0,
            }),
            release_count: AtomicU64::new(0),
            hanging: Mutex::default(),
        })
    }

    /// Releases all requests that hang. Requests that come from now on meet other rules, if there are some given.
    pub fn set(&self, rules: Option<FaultRules>) {
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

    /// Whoever waits for all requests that a queue has taken waits for none that hangs: those that come meanwhile are
    /// released at once.
    #[must_use]
    pub fn release(self: &Arc<Self>) -> Released {
        lock(&self.state).released += 1;
        self.set(None);
        Released(self.clone())
    }

    /// What becomes of a request.
    pub(crate) fn decide(&self, request: &Request) -> FaultDecision {
        let mut state = lock(&self.state);
        let State {
            rules,
            random,
            released,
        } = &mut *state;
        let begins =
            |rule: &&mut FaultRule| rule.begins.is_some_and(|op| op.is_kind_of(request.op));
        for rule in rules.iter_mut().filter(begins) {
            rule.begins = None;
        }
        let (mut hold, mut outcome, mut delay_ns) = (None, FaultOutcome::Pass, 0u64);
        for rule in rules.iter_mut() {
            if !rule.matches(request) || !hits(random, rule.one_in) {
                continue;
            }
            rule.times = rule.times.map(|times| times - 1);
            match rule.action {
                FaultAction::Delay(ns) => {
                    delay_ns = delay_ns.saturating_add(ns);
                    continue;
                }
                FaultAction::Hang if *released > 0 => {}
                FaultAction::Hang => hold = Some(FaultDelay::UntilReleased),
                FaultAction::Error(errno) => outcome = FaultOutcome::Fail(errno),
                FaultAction::Short(bytes, errno) => {
                    outcome = FaultOutcome::Partial(bytes, Err(errno))
                }
                FaultAction::Torn(bytes) => outcome = FaultOutcome::Partial(bytes, Ok(())),
            }
            break;
        }
        FaultDecision {
            hold: hold.unwrap_or(FaultDelay::For(delay_ns)),
            outcome,
            release_count: self.release_count(),
        }
    }

    /// Changes when requests are released.
    pub(crate) fn release_count(&self) -> u64 {
        self.release_count.load(Ordering::Acquire)
    }

    /// Waits until requests that met the rules of this release_count are released.
    pub(crate) async fn released(&self, release_count: u64) {
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

/// By chance, one in so many.
fn hits(random: &mut u64, one_in: u64) -> bool {
    if one_in <= 1 {
        return true;
    }
    // SplitMix64: a counter, well mixed.
    *random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*random ^ (*random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed ^ (mixed >> 31)).is_multiple_of(one_in)
}

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
        faults.decide(request).outcome == FaultOutcome::Fail(Errno::IO)
    }

    #[test]
    fn a_rule_hits_what_it_is_about() {
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
            let asked = request(op, offset, len);
            assert_eq!(fails(&faults, &asked), hit, "{asked:?}");
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
        let asked = request(Op::Read, 0, 512);
        let said = || {
            let FaultDecision { hold, outcome, .. } = faults.decide(&asked);
            (hold, outcome)
        };
        assert_eq!(said(), (FaultDelay::UntilReleased, FaultOutcome::Pass));
        assert_eq!(said(), (FaultDelay::For(12), FaultOutcome::Fail(Errno::IO)));
        assert_eq!(said(), (FaultDelay::For(7), FaultOutcome::Fail(Errno::IO)));
    }

    #[test]
    fn a_rule_begins_with_what_it_waits_for() {
        let behind_a_flush = FaultRule {
            begins: Some(Op::Flush),
            op: Some(Op::Read),
            ..rule(EIO)
        };
        let faults = faults(&[behind_a_flush], 0);
        let (read, flush) = (request(Op::Read, 0, 512), request(Op::Flush, 0, 0));
        assert!(!fails(&faults, &read));
        assert!(!fails(&faults, &flush), "it is not about flushes");
        assert!(fails(&faults, &read));
    }

    #[test]
    fn chance_is_repeatable_and_about_as_often_as_said() {
        let seldom = FaultRule {
            one_in: 10,
            ..rule(EIO)
        };
        let hits = |seed| {
            let faults = faults(std::slice::from_ref(&seldom), seed);
            let asked = request(Op::Read, 0, 512);
            (0..10_000)
                .map(|_| fails(&faults, &asked))
                .collect::<Vec<bool>>()
        };
        let one = hits(1);
        assert_eq!(one, hits(1));
        assert_ne!(one, hits(2));
        let count = one.iter().filter(|hit| **hit).count();
        assert!((800..1200).contains(&count), "{count} of 10000");
    }

    #[test]
    fn nothing_hangs_while_somebody_wants_it_released() {
        let faults = faults(&[rule(FaultAction::Hang)], 0);
        let hold = || faults.decide(&request(Op::Read, 0, 512)).hold;
        let before = faults.release_count();
        let [first, second] = [(); 2].map(|()| faults.release());
        assert_ne!(faults.release_count(), before);
        for released in [first, second] {
            assert_eq!(hold(), FaultDelay::For(0));
            drop(released);
        }
        assert_eq!(hold(), FaultDelay::UntilReleased);
    }

    #[test]
    fn a_hanging_request_is_woken_when_it_is_released_and_only_then() {
        struct Count(AtomicU64);
        impl std::task::Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let count = Arc::new(Count(AtomicU64::new(0)));
        let waker = Waker::from(count.clone());
        let mut cx = std::task::Context::from_waker(&waker);
        let faults = faults(&[rule(EIO)], 0);
        let asked = request(Op::Read, 0, 512);
        for rules in [None, Some(FaultRules::default())] {
            let mut released = Box::pin(faults.released(faults.release_count()));
            let woken = count.0.load(Ordering::Relaxed);
            assert!(released.as_mut().poll(&mut cx).is_pending());
            assert!(released.as_mut().poll(&mut cx).is_pending());
            assert!(fails(&faults, &asked), "the rules are still there");
            faults.set(rules);
            assert_eq!(count.0.load(Ordering::Relaxed), woken + 1);
            assert!(released.as_mut().poll(&mut cx).is_ready());
        }
        assert!(!fails(&faults, &asked), "they were replaced");
    }
}
