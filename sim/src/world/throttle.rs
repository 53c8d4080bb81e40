//! Throttle groups: their limits change, their nodes come and go, and what passes is checked.

use crate::clock;
use crate::daemon::Daemon;
use crate::plan::Exchange;

use super::World;

/// So long an iothread may sleep while something waits for requests: as long as retries take, and less than limits.
const SHORT_NS: u64 = 3_000_000;

/// How much longer than computed it may take until all has passed: nanoseconds, and times.
const TOLERANCE: (f64, f64) = (50e6, 1.02);

impl World {
    /// A daemon begins or ends, or throttled nodes come or go.
    pub(super) fn begin_throttling(&mut self) {
        let throttling = self.config.throttling.filter(|_| self.filters.throttles);
        let throttling = throttling.filter(|_| self.daemon.is_some());
        let limits = throttling.into_iter().flat_map(|throttling| {
            let tenant = throttling.tenant;
            std::iter::once(self.limits).chain(tenant)
        });
        let sources = self.config.queues + usize::from(self.config.client);
        let mut guest = self.guest.borrow_mut();
        let checked = guest.throttles.begin(limits, sources, clock::now_ns());
        if let Err(wrong) = checked {
            guest.complain(wrong);
        }
    }

    /// The operator sets other limits.
    pub(super) fn change_limits(&mut self, limits: block::ThrottleLimits) {
        let groups = |daemon: &Daemon| daemon.groups.clone();
        let Some(groups) = self.daemon.as_ref().and_then(groups) else {
            return;
        };
        self.seen.add("limits", 1);
        self.limits = limits;
        groups.disks.set_limits(limits);
        let mut guest = self.guest.borrow_mut();
        if let Err(wrong) = guest.throttles.change(limits, clock::now_ns()) {
            guest.complain(wrong);
        }
    }

    /// An exchange of nodes has begun.
    pub(super) fn note_exchange(&mut self, how: Exchange) {
        self.note_what_waits();
        if matches!(how, Exchange::Throttled { .. }) {
            self.seen.add("throttle-exchanges", 1);
            self.begin_throttling();
        }
        let mut guest = self.guest.borrow_mut();
        // A request in flight keeps its old route, which owes until then what came before.
        let has_unanswered = !guest.asked.is_empty() || self.client.waits_for().is_some();
        let new = !matches!(how, Exchange::Filtered { .. }) || has_unanswered;
        guest.throttles.exchanged(new, clock::now_ns());
    }

    /// When something begins to wait for requests, they are let go. Not those that come when all iothreads know.
    pub(super) fn note_what_waits(&self) {
        let throttles = &mut self.guest.borrow_mut().throttles;
        throttles.set_lets_go(self.waits.is_some() && !self.untold.is_empty());
    }

    /// Nothing moves until time passes, so nothing may wait for requests that wait for limits.
    pub(super) fn check_that_no_stop_waits(&self, daemon: &Daemon) {
        let is_long = daemon
            .due_ns()
            .is_some_and(|due_ns| due_ns > clock::now_ns() + SHORT_NS);
        let is_throttled = self.config.throttling.is_some();
        if is_throttled && is_long && self.waits.is_some() && daemon.waiting() == 0 {
            let wrong = "a stop, a settle or an exchange waits for a limit";
            self.guest.borrow_mut().complain(wrong.to_owned());
        }
    }

    /// All has come to its end that was under way at `since_ns`, when it was to take so long at most.
    pub(super) fn check_throttles(&self, since_ns: u64, longest_ns: f64) -> Result<(), String> {
        self.guest.borrow().throttles.check()?;
        let faults = ["errors", "no-space", "failed-jobs"].map(|fault| self.seen.of(fault));
        if faults != [0; 3] {
            // Requests that are tried again count again.
            return Ok(());
        }
        let last_ns = self.guest.borrow().throttles.last_ns;
        let took_ns = last_ns.saturating_sub(since_ns);
        let (ns, times) = TOLERANCE;
        if took_ns as f64 > longest_ns * times + ns {
            return Err(format!(
                "requests have waited for limits for {took_ns} ns, and were to wait for {longest_ns} ns at most"
            ));
        }
        Ok(())
    }
}
