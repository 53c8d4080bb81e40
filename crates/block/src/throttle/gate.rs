//! The gate of a throttled node on the route of one queue: lets requests pass out of the queue's lease, and keeps the others
//! waiting, reads and writes apart.
//!
//! The first request that waits in each direction has a timer, and lets pass all that may when it expires. Timers expire at
//! multiples of [`TICK_NS`], so that an iothread wakes up once for all its throttled queues.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ffi::CString;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};

use engine::Request;
use telemetry::tracepoints;

use super::cost::{Cost, Direction};
use super::group::{Account, OpenAccount, ThrottleMember};
use super::lease::{Lease, Tokens};
use crate::clock::now_ns;
use crate::route::gate::{Allowance, Gate};
use crate::route::task::{LocalFuture, TaskContext};

/// Timers expire at multiples of this, in nanoseconds: so that completions are less than a millisecond apart at a high limit,
/// and with few wake-ups, which are most of what a request that waits costs.
const TICK_NS: u64 = 700_000;

/// A lease allows this many requests at most before it is looked at again.
const MAX_ALLOWED_REQUESTS: u32 = 1024;

/// Larger requests ask the gate: the lease has tokens for all that are allowed, as if each had this many bytes.
const MAX_ALLOWED_BYTES: u64 = 64 << 10;

/// The gate of one queue.
pub(crate) struct ThrottleGate {
    /// The node's name, for tracepoints.
    node: CString,
    account: Account,
    lease: RefCell<Lease>,
    /// Requests that may pass by the lease, which has not given their tokens yet.
    allowance: Rc<Allowance>,
    /// Requests that wait, by [`Direction`].
    waiting: [RefCell<VecDeque<WaitingRequest>>; 2],
    /// When the requests that wait are looked at again, by [`Direction`].
    retry_ns: [Cell<u64>; 2],
    /// The direction whose turn it is.
    turn: Cell<Direction>,
    arrivals: Cell<u64>,
}

/// A request that waits.
struct WaitingRequest {
    arrival: u64,
    request: Request,
    waker: Waker,
}

impl ThrottleGate {
    /// The gate of a new queue of a member, the node of this name.
    pub fn new(member: &Arc<ThrottleMember>, node: &str) -> Rc<Self> {
        Rc::new(ThrottleGate {
            node: CString::new(node).unwrap_or_default(),
            account: Account::new(member),
            lease: RefCell::new(Lease::NONE),
            allowance: Rc::new(Allowance::new(member.group().generation_counter())),
            waiting: Default::default(),
            retry_ns: Default::default(),
            turn: Cell::new(Direction::Read),
            arrivals: Cell::new(0),
        })
    }

    /// Lets requests pass without looking at the lease as long as it has tokens for all of them, if none waits.
    fn grant_allowance(&self) {
        if Direction::ALL
            .into_iter()
            .any(|direction| self.has_waiting(direction))
        {
            return;
        }
        let lease = self.lease.borrow();
        let max_bytes = lease.bytes_of_one_operation().min(MAX_ALLOWED_BYTES);
        let requests = lease.covered_requests(max_bytes, MAX_ALLOWED_REQUESTS);
        self.allowance.grant(requests, max_bytes, lease.generation);
    }

    /// Ends the allowance: takes the tokens of what has passed out of the lease.
    fn end_allowance(&self) {
        let mut lease = self.lease.borrow_mut();
        for (direction, passed) in Direction::ALL.into_iter().zip(self.allowance.end()) {
            lease.take(&Cost::of_passed(direction, passed));
        }
    }

    /// Opens the account, with what is left of the lease, for a call, and takes a new lease.
    fn with_account<T>(&self, now_ns: u64, call: impl FnOnce(&mut OpenAccount<'_>) -> T) -> T {
        let mut account = self.return_lease(now_ns);
        let result = call(&mut account);
        self.lease.replace(account.into_lease());
        result
    }

    /// Returns what is left of the lease to the account.
    fn return_lease(&self, now_ns: u64) -> OpenAccount<'_> {
        self.end_allowance();
        self.account.open(self.lease.replace(Lease::NONE), now_ns)
    }

    fn has_waiting(&self, direction: Direction) -> bool {
        !self.waiting[direction as usize].borrow().is_empty()
    }

    /// Takes the tokens of a request out of the lease, unless it has too few.
    fn take_from_lease(&self, request: &Request) -> bool {
        let mut lease = self.lease.borrow_mut();
        let cost = Cost::of(request, lease.operations_per_byte);
        let is_covered =
            lease.generation == self.account.member().group().generation() && lease.covers(&cost);
        if is_covered {
            lease.take(&cost);
        }
        is_covered
    }

    /// Lets a request pass that the lease does not cover, if the account permits, and takes a new lease.
    fn take_from_account(&self, request: &Request) -> bool {
        self.with_account(now_ns(), |account| {
            // Where both directions share tokens, the timer lets them pass in turn.
            let has_to_take_turns =
                self.has_waiting(Direction::of(request).other()) && account.limits_totals();
            !has_to_take_turns
                && account.try_pass(&Cost::of(request, account.operations_per_byte()))
        })
    }

    /// Lets pass what may of the requests that wait, and sets when to look again. `caller` is the arrival of the request whose
    /// task runs, if it is one of them.
    fn pass_waiting(&self, caller: Option<u64>) {
        let now_ns = now_ns();
        self.with_account(now_ns, |account| {
            self.pass_in_turn(account);
            for direction in Direction::ALL {
                self.set_retry_time(account, direction, now_ns);
                if let Some(first) = self.waiting[direction as usize].borrow().front()
                    && caller != Some(first.arrival)
                {
                    // It has the timer from now on.
                    first.waker.wake_by_ref();
                }
            }
        });
    }

    /// Lets pass what the account permits of the requests that wait, in turn for both directions.
    fn pass_in_turn(&self, account: &mut OpenAccount<'_>) {
        let operations_per_byte = account.operations_per_byte();
        let mut first_passes = |direction: &Direction| {
            let waiting = self.waiting[*direction as usize].borrow();
            let first = waiting.front();
            first.is_some_and(|first| {
                account.try_pass(&Cost::of(&first.request, operations_per_byte))
            })
        };
        while let Some(direction) = [self.turn.get(), self.turn.get().other()]
            .into_iter()
            .find(&mut first_passes)
        {
            let passed = self.waiting[direction as usize].borrow_mut().pop_front();
            if let Some(passed) = passed {
                passed.waker.wake();
            }
            self.turn.set(direction.other());
        }
    }

    /// Sets when the requests of a direction that still wait are looked at again, and has the first of them woken when the
    /// limits change.
    fn set_retry_time(&self, account: &mut OpenAccount<'_>, direction: Direction, now_ns: u64) {
        let waiting = self.waiting[direction as usize].borrow();
        let first = waiting.front();
        account.set_head(direction, first.map(|first| first.waker.clone()));
        let Some(first) = first else { return };
        let cost = Cost::of(&first.request, account.operations_per_byte());
        if let Some((kind, ns)) = account.limit_that_is_hit(&cost) {
            self.account.member().stats().count_limit_hit(kind);
            // A large request may owe centuries.
            let ns = account.ns_until_next_look(ns);
            let retry_ns = now_ns.saturating_add(ns).checked_next_multiple_of(TICK_NS);
            self.retry_ns[direction as usize].set(retry_ns.unwrap_or(u64::MAX));
        }
    }

    /// Fires the tracepoint of a request that begins to wait behind all others of its direction.
    #[cold]
    fn trace_wait(&self, request: &Request) {
        let direction = Direction::of(request);
        let hit = self.with_account(now_ns(), |account| {
            let operations_per_byte = account.operations_per_byte();
            let mut ahead = Tokens::default();
            for waiting in &*self.waiting[direction as usize].borrow() {
                for (kind, units) in Cost::of(&waiting.request, operations_per_byte).units() {
                    ahead[kind as usize] += units;
                }
            }
            account.limit_that_is_hit_after(&ahead, &Cost::of(request, operations_per_byte))
        });
        let (limit, ns) = hit.map_or((tracepoints::NO_LIMIT, 0), |(kind, ns)| (kind as u64, ns));
        tracepoints::throttle_wait::fire(&self.node, direction as u64, request.len, limit, ns);
    }

    /// Waits in the queue of a direction until a request may pass.
    async fn wait(self: Rc<Self>, cx: TaskContext, request: Request) {
        let waker = std::future::poll_fn(|cx| Poll::Ready(cx.waker().clone())).await;
        let place = PlaceInQueue::take(&self, request, waker);
        while !place.has_passed() {
            let now_ns = now_ns();
            let retry_ns = self.retry_ns[place.direction as usize].get();
            let generation = self.account.member().group().generation();
            if !place.is_first() {
                expired_or_woken(std::future::pending()).await;
            } else if now_ns >= retry_ns || generation != self.lease.borrow().generation {
                self.pass_waiting(Some(place.arrival));
            } else {
                expired_or_woken(cx.sleep_ns(retry_ns - now_ns)).await;
            }
        }
    }
}

/// Waits until a timer expires or the task is woken otherwise: it has become the first, or the limits have changed.
async fn expired_or_woken(timer: impl Future<Output = ()>) {
    let mut timer = std::pin::pin!(timer);
    let mut is_first_poll = true;
    std::future::poll_fn(|cx| match timer.as_mut().poll(cx) {
        Poll::Pending if std::mem::take(&mut is_first_poll) => Poll::Pending,
        _ => Poll::Ready(()),
    })
    .await;
}

impl Gate for ThrottleGate {
    fn allowance(&self) -> Rc<Allowance> {
        self.allowance.clone()
    }

    fn try_pass(&self, request: &Request) -> bool {
        self.end_allowance();
        let passes = !self.has_waiting(Direction::of(request))
            && (self.take_from_lease(request) || self.take_from_account(request));
        if passes {
            self.grant_allowance();
        }
        passes
    }

    fn wait_to_pass(self: Rc<Self>, cx: TaskContext, request: Request) -> LocalFuture<()> {
        Box::pin(self.wait(cx, request))
    }

    fn on_bypass(&self, request: &Request) {
        self.with_account(now_ns(), |account| {
            account.charge(&Cost::of(request, account.operations_per_byte()));
        });
    }
}

impl Drop for ThrottleGate {
    /// Returns the lease; the account closes next.
    fn drop(&mut self) {
        self.return_lease(now_ns());
    }
}

/// The place of a request that waits. A request that stops waiting leaves it.
struct PlaceInQueue<'a> {
    gate: &'a ThrottleGate,
    direction: Direction,
    bytes: u64,
    arrival: u64,
    since_ns: u64,
}

impl<'a> PlaceInQueue<'a> {
    /// Takes the last place. The first request of a queue looks at once whether it may pass.
    fn take(gate: &'a ThrottleGate, request: Request, waker: Waker) -> Self {
        let direction = Direction::of(&request);
        let arrival = gate.arrivals.get();
        gate.arrivals.set(arrival + 1);
        if tracepoints::throttle_wait::enabled() {
            gate.trace_wait(&request);
        }
        let mut waiting = gate.waiting[direction as usize].borrow_mut();
        if waiting.is_empty() {
            gate.retry_ns[direction as usize].set(0);
        }
        let bytes = request.len;
        waiting.push_back(WaitingRequest {
            arrival,
            request,
            waker,
        });
        gate.account.member().stats().begin_wait();
        PlaceInQueue {
            gate,
            direction,
            bytes,
            arrival,
            since_ns: now_ns(),
        }
    }

    fn first_arrival(&self) -> Option<u64> {
        let waiting = self.gate.waiting[self.direction as usize].borrow();
        waiting.front().map(|first| first.arrival)
    }

    fn is_first(&self) -> bool {
        self.first_arrival() == Some(self.arrival)
    }

    fn has_passed(&self) -> bool {
        self.first_arrival()
            .is_none_or(|first| first > self.arrival)
    }
}

impl Drop for PlaceInQueue<'_> {
    /// Counts the wait. Unless the request has passed, removes it, and hands the timer to the next one.
    fn drop(&mut self) {
        let waited_ns = now_ns().saturating_sub(self.since_ns);
        self.gate.account.member().stats().end_wait(waited_ns);
        if tracepoints::throttle_pass::enabled() {
            let direction = self.direction as u64;
            tracepoints::throttle_pass::fire(&self.gate.node, direction, self.bytes, waited_ns);
        }
        if self.has_passed() {
            return;
        }
        let is_first = self.is_first();
        let mut waiting = self.gate.waiting[self.direction as usize].borrow_mut();
        waiting.retain(|other| other.arrival != self.arrival);
        if is_first {
            drop(waiting);
            self.gate.pass_waiting(None);
        }
    }
}

#[cfg(test)]
mod tests;
