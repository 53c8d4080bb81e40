//! The iteration.
//!
//! The order of the five phases is the design: a guest is signalled right after the last completion
//! of a batch, never behind a submission syscall. A mechanism that wants to run "later" names the
//! phase that it belongs to; there is no list of deferred callbacks.
//!
//! Between two iterations the loop, in this order: reads its mail, lets due timers expire, and, when
//! the runner is not busy, polls for a while, then parks the runner (which asks its guests for kicks
//! again and looks once more) and blocks.

use std::io;
use std::sync::Arc;

use crate::event_loop::budget::Budget;
use crate::event_loop::context::Context;
use crate::event_loop::handlers::HandlerId;
use crate::event_loop::mailbox::{Mail, Mailbox, Remote};
use crate::event_loop::poll_predictor::{Idle, PollSettings, Polled};
use crate::event_loop::poller::{Event, Interest, MAX_EVENTS_PER_WAIT, Poller, Readiness};
use crate::event_loop::tracepoints;
use crate::event_loop::wake::Wake;

/// A busy loop looks at its descriptors every so many iterations: often enough that a kick of a
/// quiet queue waits for a bounded amount of work, rarely enough that the syscall does not show.
const BUSY_ITERATIONS_PER_LOOK: u32 = 16;

/// The same for a loop that polls: it has time to look, and others should not wait for the end of its
/// window.
const POLLING_LOOK_NS: u64 = 10_000;

/// How often a loop whose last polling was a success looks before it reads the clock: a guest that
/// answers within a microsecond costs neither the clock nor the learning.
const FREE_LOOKS: u32 = 16;

/// What runs on an [`IoThread`].
///
/// All methods run on the loop's thread. The five phases are called once per iteration, in the
/// order in which they stand here.
pub trait Runner {
    /// What the runner wants to hear back of a ready descriptor.
    type Handler: Copy;
    /// What it wants to hear back of an expired timer.
    type Timer: Copy;
    /// What other threads send it.
    type Message: Send;

    /// A descriptor is ready.
    fn ready(
        &mut self,
        cx: &mut RunnerContext<Self>,
        id: HandlerId,
        handler: Self::Handler,
        readiness: Readiness,
    );
    /// A timer has expired.
    fn expired(&mut self, cx: &mut RunnerContext<Self>, timer: Self::Timer);
    /// A control message.
    fn message(&mut self, cx: &mut RunnerContext<Self>, message: Self::Message);

    /// Phase 1: takes finished requests off the engines' completion rings.
    fn reap(&mut self, cx: &mut RunnerContext<Self>);
    /// Phase 2: devices write status and data, used entries are filled.
    fn complete(&mut self, cx: &mut RunnerContext<Self>);
    /// Phase 3: each queue that completed something publishes once and signals at most once.
    fn notify(&mut self, cx: &mut RunnerContext<Self>);
    /// Phase 4: queues with new descriptors are drained into block requests.
    fn admit(&mut self, cx: &mut RunnerContext<Self>);
    /// Phase 5: engines hand what is pending to the kernel.
    fn submit(&mut self, cx: &mut RunnerContext<Self>);

    /// Whether the next iteration has work for sure: then the loop neither polls nor blocks.
    fn busy(&self) -> bool;
    /// Looks, in user space only, whether anything that was lately active has work again.
    fn poll(&mut self) -> bool;
    /// The loop has run dry. Until when polling pays for any of what was lately active, as its
    /// [`crate::event_loop::PollPredictor`] says; a time that has passed when it does not pay. Only called when polling is on.
    fn poll_until(&mut self, settings: &PollSettings, now_ns: u64) -> u64;
    /// The idle time after [`Runner::poll_until`] has ended, and one iteration has run since: what has
    /// made progress in it can learn.
    fn learn(&mut self, settings: &PollSettings, idle: Idle);
    /// The loop is about to block: asks the guests for kicks again. True when something came in
    /// just before that: then the loop does not block.
    fn park(&mut self, cx: &mut RunnerContext<Self>) -> bool;
    /// The loop has ended and will not run again.
    fn stopped(&mut self, cx: &mut RunnerContext<Self>);
}

/// The context of a runner.
pub type RunnerContext<P> = Context<<P as Runner>::Handler, <P as Runner>::Timer>;

/// One loop with its runner. [`IoThread::spawn`] gives it a thread; [`IoThread::iterate`] runs it
/// step by step, for tests.
pub struct IoThread<P: Runner> {
    runner: P,
    cx: RunnerContext<P>,
    mailbox: Arc<Mailbox<P::Message>>,
    wake: Arc<Wake>,
    polling: PollSettings,
    budget: Budget,
    /// The last polling was a success.
    hot: bool,
    /// How polling went since the loop ran dry.
    polled: Polled,
    /// The last idle time, if nobody has learnt from it yet.
    idle: Option<Idle>,
    events: Vec<Event>,
    busy_iterations: u32,
    /// When a polling loop looked at its descriptors.
    looked_ns: u64,
}

/// Cookie of the wake-up eventfd. No handler has it: a slab slot of this number does not exist.
const WAKE_COOKIE: u64 = u64::MAX;

impl<P: Runner> IoThread<P> {
    /// A loop over `poller`. `make_runner` builds the runner, which may register handlers.
    ///
    /// # Errors
    /// When an eventfd cannot be had or watched, or `make_runner` fails.
    pub fn new<E: From<io::Error>>(
        poller: Box<dyn Poller>,
        polling: PollSettings,
        make_runner: impl FnOnce(&mut RunnerContext<P>, &Remote<P::Message>) -> Result<P, E>,
    ) -> Result<Self, E> {
        let wake = Arc::new(Wake::new()?);
        let mailbox = Arc::new(Mailbox::new(wake.clone()));
        let mut cx = Context::new(poller);
        cx.poller
            .add(wake.fd(), Interest::ReadableEdge, WAKE_COOKIE)?;
        let runner = make_runner(&mut cx, &Remote::new(mailbox.clone()))?;
        Ok(IoThread {
            runner,
            cx,
            mailbox,
            wake,
            polling,
            budget: Budget::new(polling.cpu_max_percent),
            hot: false,
            polled: Polled::Not,
            idle: None,
            events: Vec::with_capacity(MAX_EVENTS_PER_WAIT),
            busy_iterations: 0,
            looked_ns: 0,
        })
    }

    /// To reach this loop from other threads.
    #[must_use]
    pub fn remote(&self) -> Remote<P::Message> {
        Remote::new(self.mailbox.clone())
    }

    /// The runner, for tests that run the loop step by step.
    pub fn runner(&mut self) -> &mut P {
        &mut self.runner
    }

    /// What the runner sees of this loop, for tests that run it step by step.
    pub fn context(&mut self) -> &mut RunnerContext<P> {
        &mut self.cx
    }

    /// One iteration and the wait after it; false once the loop was told to stop.
    ///
    /// # Errors
    /// When the poller fails, which a working kernel does not.
    pub fn iterate(&mut self) -> io::Result<bool> {
        if self.wake.take() && self.read_mail() {
            self.mailbox.close();
            self.runner.stopped(&mut self.cx);
            return Ok(false);
        }
        self.expire_timers();

        let (runner, cx) = (&mut self.runner, &mut self.cx);
        runner.reap(cx);
        runner.complete(cx);
        runner.notify(cx);
        runner.admit(cx);
        runner.submit(cx);
        if let Some(idle) = self.idle.take() {
            runner.learn(&self.polling, idle);
        }

        if self.runner.busy() {
            self.busy()?;
        } else {
            self.idle()?;
        }
        Ok(true)
    }

    /// Iterates until told to stop.
    ///
    /// # Errors
    /// As for [`IoThread::iterate`].
    pub fn run(&mut self) -> io::Result<()> {
        while self.iterate()? {}
        Ok(())
    }

    /// True when told to stop.
    fn read_mail(&mut self) -> bool {
        let mut stop = false;
        for mail in self.mailbox.take() {
            match mail {
                Mail::Message(message) => self.runner.message(&mut self.cx, message),
                Mail::Polling(settings) => {
                    self.polling = settings;
                    (self.hot, self.idle) = (false, None);
                    self.budget = Budget::new(settings.cpu_max_percent);
                }
                Mail::Stop => stop = true,
            }
        }
        stop
    }

    fn expire_timers(&mut self) {
        if self.cx.timers.is_empty() {
            return;
        }
        let now_ns = self.cx.now_ns();
        while let Some(timer) = self.cx.timers.pop_expired(now_ns) {
            self.runner.expired(&mut self.cx, timer);
        }
    }

    /// More work is certain: only a look at the descriptors, and not every time.
    fn busy(&mut self) -> io::Result<()> {
        self.cx.totals.went_on.add(1);
        self.busy_iterations += 1;
        if self.busy_iterations >= BUSY_ITERATIONS_PER_LOOK {
            self.busy_iterations = 0;
            self.wait(Some(0))?;
        }
        Ok(())
    }

    /// Polls while it pays, then blocks.
    fn idle(&mut self) -> io::Result<()> {
        if self.polls() && self.poll()? {
            return self.busy();
        }
        if self.runner.park(&mut self.cx) || !self.wake.prepare_sleep() {
            // Not idle after all; descriptors are looked at all the same, now and then.
            return self.busy();
        }
        self.sleep()?;
        self.dispatch();
        Ok(())
    }

    /// Blocks until a descriptor is ready, a timer is due or another thread wakes the loop.
    fn sleep(&mut self) -> io::Result<()> {
        self.cx.totals.sleeps.add(1);
        self.busy_iterations = 0;
        let deadline_ns = self.cx.timers.next_deadline_ns();
        let timeout_ns = deadline_ns.map(|deadline| deadline.saturating_sub(self.cx.now_ns()));
        tracepoints::sleep(timeout_ns);
        let waited = self.cx.poller.wait(&mut self.events, timeout_ns);
        tracepoints::wake(self.events.len());
        self.wake.awake();
        waited?;
        if self.polls() {
            // Before the handlers run: their time is not idle time.
            self.woke_at(self.cx.now_ns());
        }
        Ok(())
    }

    fn polls(&self) -> bool {
        self.polling.max_ns > 0 && self.polling.cpu_max_percent > 0
    }

    fn woke_at(&mut self, woke_ns: u64) {
        let polled = self.polled;
        self.idle = Some(Idle { woke_ns, polled });
    }

    fn looks_alive(&mut self) -> bool {
        self.runner.poll() || self.wake.is_notified()
    }

    /// Polls for as long as what was lately active makes it worth while; true when there is work.
    fn poll(&mut self) -> io::Result<bool> {
        if self.hot && self.budget.is_unlimited() {
            for _ in 0..FREE_LOOKS {
                if self.looks_alive() {
                    self.cx.totals.polled(true);
                    tracepoints::poll_end(true, 0);
                    return Ok(true);
                }
                std::hint::spin_loop();
            }
        }
        let start_ns = self.cx.now_ns();
        let end_ns = self.runner.poll_until(&self.polling, start_ns);
        let window_ns = end_ns.saturating_sub(start_ns).min(self.polling.max_ns);
        self.polled = Polled::Not;
        self.hot = window_ns > 0
            && self.budget.allows(start_ns, window_ns)
            && self.poll_window(start_ns, start_ns + window_ns)?;
        Ok(self.hot)
    }

    /// A window has ended.
    fn window_ended(&mut self, spent_ns: u64, found: bool) {
        self.budget.spend(spent_ns);
        self.cx.totals.polled(found);
        self.cx.totals.poll_time_ns.add(spent_ns);
        tracepoints::poll_end(found, spent_ns);
    }

    fn poll_window(&mut self, start_ns: u64, end_ns: u64) -> io::Result<bool> {
        let due_ns = self.cx.timers.next_deadline_ns().unwrap_or(u64::MAX);
        tracepoints::poll_begin(end_ns - start_ns);
        loop {
            let found = self.looks_alive();
            let now_ns = self.cx.now_ns();
            // A timer that is due is work as well, but says nothing of any source.
            if found || now_ns >= end_ns.min(due_ns) {
                self.window_ended(now_ns.saturating_sub(start_ns), found);
                // Found behind the end: while we did not run, on a CPU that somebody else wanted.
                self.polled = match (found, now_ns >= end_ns) {
                    (true, false) => Polled::Found,
                    (false, false) => Polled::Not,
                    (_, true) => Polled::InVain,
                };
                self.woke_at(now_ns);
                return Ok(found || now_ns >= due_ns);
            }
            if now_ns.saturating_sub(self.looked_ns) >= POLLING_LOOK_NS {
                self.looked_ns = now_ns;
                self.wait(Some(0))?;
                // Not everything that a descriptor tells can be polled for as well: an iteration it is.
                if !self.events.is_empty() {
                    self.window_ended(now_ns.saturating_sub(start_ns), true);
                    self.polled = Polled::Found;
                    self.woke_at(now_ns);
                    return Ok(true);
                }
            }
            std::hint::spin_loop();
        }
    }

    fn wait(&mut self, timeout_ns: Option<u64>) -> io::Result<()> {
        self.cx.poller.wait(&mut self.events, timeout_ns)?;
        self.dispatch();
        Ok(())
    }

    /// Tells the runner of each ready descriptor whose handler still exists.
    fn dispatch(&mut self) {
        for index in 0..self.events.len() {
            let Event { cookie, readiness } = self.events[index];
            // The wake-up's own cookie is no handler's either: the mailbox is read anyway.
            let id = HandlerId::from_cookie(cookie);
            if let Some(handler) = self.cx.handlers.get(id) {
                self.runner.ready(&mut self.cx, id, handler, readiness);
            }
        }
    }
}
