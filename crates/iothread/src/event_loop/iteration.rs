//! The event loop of an iothread: each iteration calls its runner for five phases (reap, complete, notify, admit, submit), and
//! then polls, or blocks in epoll_wait(2).
//!
//! The order of the five phases is the design: a guest is signalled right after the last completion
//! of a batch, never behind a submission syscall. A mechanism that wants to run "later" names the
//! phase that it belongs to; there is no list of deferred callbacks.
//!
//! Between two iterations the loop, in this order: reads its mail, lets due timers expire, and, when
//! the runner is not busy, polls for a while, then has the runner prepare to block (which enables kicks and checks
//! its queues once more) and blocks.

use std::io;
use std::sync::Arc;

use crate::event_loop::context::Context;
use crate::event_loop::handlers::HandlerId;
use crate::event_loop::mailbox::{Mail, Mailbox, Remote};
use crate::event_loop::poll_budget::PollBudget;
use crate::event_loop::poll_predictor::{IdleEnd, PollOutcome, PollSettings};
use crate::event_loop::poller::{Event, Interest, MAX_EVENTS_PER_WAIT, Poller, Readiness};
use crate::event_loop::tracepoints;
use crate::event_loop::wake::Wake;

/// Iterations between two checks of descriptors while the loop is busy: few enough that a kick of a
/// quiet queue waits for a bounded amount of work, many enough that the system call does not show.
const BUSY_ITERATIONS_PER_CHECK: u32 = 16;

/// Time between two checks of descriptors while the loop polls: other sources do not wait for the end of the window.
const POLLING_CHECK_NS: u64 = 10_000;

/// Polls before the clock is read, if the last polling was a success: a guest that answers within a
/// microsecond costs neither the clock nor the learning.
const FREE_POLLS: u32 = 16;

/// The client of an [`EventLoop`]: its callbacks and its five phases.
///
/// All methods run on the loop's thread. The five phases are called once per iteration, in the
/// order in which they are declared here.
pub trait Runner {
    /// Tag of a descriptor, which comes back when it is ready.
    type Handler: Copy;
    /// Tag of a timer, which comes back when it expires.
    type Timer: Copy;
    /// Message from other threads.
    type Message: Send;

    /// Handles a ready descriptor.
    fn on_ready(
        &mut self,
        cx: &mut RunnerContext<Self>,
        id: HandlerId,
        handler: Self::Handler,
        readiness: Readiness,
    );
    /// Handles an expired timer.
    fn on_timer(&mut self, cx: &mut RunnerContext<Self>, timer: Self::Timer);
    /// Handles a message.
    fn on_message(&mut self, cx: &mut RunnerContext<Self>, message: Self::Message);

    /// Phase 1: reaps finished requests from the engines' completion rings.
    fn reap(&mut self, cx: &mut RunnerContext<Self>);
    /// Phase 2: completes requests: devices write statuses and fill used entries.
    fn complete_reaped(&mut self, cx: &mut RunnerContext<Self>);
    /// Phase 3: publishes used entries, once per queue, with at most one signal each.
    fn publish_and_notify(&mut self, cx: &mut RunnerContext<Self>);
    /// Phase 4: admits requests from active queues.
    fn admit(&mut self, cx: &mut RunnerContext<Self>);
    /// Phase 5: submits pending requests to the kernel.
    fn submit(&mut self, cx: &mut RunnerContext<Self>);

    /// Whether the next iteration certainly has work: then the loop neither polls nor blocks.
    fn has_work_for_next_iteration(&self) -> bool;
    /// Polls recently active sources, in user space only: whether any of them has work.
    fn poll_sources_once(&mut self) -> bool;
    /// The time until which polling pays for any recently active source, by its
    /// [`crate::event_loop::PollPredictor`]; a time that has passed if it pays for none. Called when the loop has run dry and
    /// polling is on.
    fn predict_poll_deadline_ns(&mut self, settings: &PollSettings, now_ns: u64) -> u64;
    /// Learns from the idle time after [`Runner::predict_poll_deadline_ns`], which has ended, with one iteration since.
    fn learn_from_idle(&mut self, settings: &PollSettings, idle: IdleEnd);
    /// Enables kicks before the loop blocks. True when a request came in just before that: then the loop does not block.
    fn prepare_to_block_or_find_work(&mut self, cx: &mut RunnerContext<Self>) -> bool;
    /// Handles the end of the loop.
    fn on_stop(&mut self, cx: &mut RunnerContext<Self>);
}

/// The context of a runner.
pub type RunnerContext<P> = Context<<P as Runner>::Handler, <P as Runner>::Timer>;

/// An event loop with its runner. [`EventLoop::spawn`] starts it on a thread; [`EventLoop::iterate`] runs it
/// step by step, for tests.
pub struct EventLoop<P: Runner> {
    runner: P,
    cx: RunnerContext<P>,
    mailbox: Arc<Mailbox<P::Message>>,
    wake: Arc<Wake>,
    polling: PollSettings,
    budget: PollBudget,
    /// The last polling was a success.
    last_poll_hit: bool,
    /// Result of polling since the loop ran dry.
    poll_result: PollOutcome,
    /// The last idle time, until the runner has learnt from it.
    last_idle: Option<IdleEnd>,
    events: Vec<Event>,
    busy_iterations: u32,
    /// When descriptors were checked last while polling.
    checked_ns: u64,
}

/// Cookie of the wake-up eventfd. No handler has it: a slab slot of this number does not exist.
const WAKE_COOKIE: u64 = u64::MAX;

impl<P: Runner> EventLoop<P> {
    /// A loop on `poller`. `make_runner` creates the runner, which may register handlers.
    ///
    /// # Errors
    /// When an eventfd cannot be created or watched, or `make_runner` fails.
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
        Ok(EventLoop {
            runner,
            cx,
            mailbox,
            wake,
            polling,
            budget: PollBudget::new(polling.cpu_max_percent),
            last_poll_hit: false,
            poll_result: PollOutcome::Not,
            last_idle: None,
            events: Vec::with_capacity(MAX_EVENTS_PER_WAIT),
            busy_iterations: 0,
            checked_ns: 0,
        })
    }

    /// Sender of messages to this loop.
    #[must_use]
    pub fn remote(&self) -> Remote<P::Message> {
        Remote::new(self.mailbox.clone())
    }

    /// The runner, for tests that run the loop step by step.
    pub fn runner(&mut self) -> &mut P {
        &mut self.runner
    }

    /// The context of the runner, for tests that run the loop step by step.
    pub fn context(&mut self) -> &mut RunnerContext<P> {
        &mut self.cx
    }

    /// Runs one iteration and the wait after it; false once a stop was requested.
    ///
    /// # Errors
    /// When the poller fails, which a working kernel does not.
    pub fn iterate(&mut self) -> io::Result<bool> {
        if self.wake.take_notified_flag() && self.handle_mail() {
            self.mailbox.close_and_drop_mail();
            self.runner.on_stop(&mut self.cx);
            return Ok(false);
        }
        self.expire_timers();

        let (runner, cx) = (&mut self.runner, &mut self.cx);
        runner.reap(cx);
        runner.complete_reaped(cx);
        runner.publish_and_notify(cx);
        runner.admit(cx);
        runner.submit(cx);
        if let Some(idle) = self.last_idle.take() {
            runner.learn_from_idle(&self.polling, idle);
        }

        if self.runner.has_work_for_next_iteration() {
            self.check_descriptors_periodically()?;
        } else {
            self.poll_or_block()?;
        }
        Ok(true)
    }

    /// Iterates until a stop is requested.
    ///
    /// # Errors
    /// As for [`EventLoop::iterate`].
    pub fn run(&mut self) -> io::Result<()> {
        while self.iterate()? {}
        Ok(())
    }

    /// Handles messages. True when a stop was requested.
    fn handle_mail(&mut self) -> bool {
        let mut stop = false;
        for mail in self.mailbox.take_all() {
            match mail {
                Mail::Message(message) => self.runner.on_message(&mut self.cx, message),
                Mail::Polling(settings) => {
                    self.polling = settings;
                    (self.last_poll_hit, self.last_idle) = (false, None);
                    self.budget = PollBudget::new(settings.cpu_max_percent);
                }
                Mail::Stop => stop = true,
            }
        }
        stop
    }

    /// Calls the runner for each timer that is due.
    fn expire_timers(&mut self) {
        if self.cx.timers.is_empty() {
            return;
        }
        let now_ns = self.cx.now_ns();
        self.cx.expired_until_ns = now_ns;
        while let Some(timer) = self.cx.timers.pop_expired(now_ns) {
            self.runner.on_timer(&mut self.cx, timer);
        }
    }

    /// Checks descriptors now and then while there is more work.
    fn check_descriptors_periodically(&mut self) -> io::Result<()> {
        self.cx.totals.busy_iterations.add(1);
        self.busy_iterations += 1;
        if self.busy_iterations >= BUSY_ITERATIONS_PER_CHECK {
            self.busy_iterations = 0;
            self.wait_and_dispatch(Some(0))?;
        }
        Ok(())
    }

    /// Polls while it pays, then blocks.
    fn poll_or_block(&mut self) -> io::Result<()> {
        if self.is_polling_on() && self.poll_while_worthwhile()? {
            return self.check_descriptors_periodically();
        }
        if self.runner.prepare_to_block_or_find_work(&mut self.cx) || !self.wake.try_begin_sleep() {
            // Not idle after all; descriptors are still checked now and then.
            return self.check_descriptors_periodically();
        }
        self.sleep()?;
        self.dispatch_events();
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
        self.wake.end_sleep();
        waited?;
        if self.is_polling_on() {
            // Before the handlers run: their time is not idle time.
            self.keep_idle_end_for_learning(self.cx.now_ns());
        }
        Ok(())
    }

    /// Whether the settings allow polling.
    fn is_polling_on(&self) -> bool {
        self.polling.max_ns > 0 && self.polling.cpu_max_percent > 0
    }

    /// Notes the end of an idle time, for the runner to learn from.
    fn keep_idle_end_for_learning(&mut self, woke_ns: u64) {
        let polled = self.poll_result;
        self.last_idle = Some(IdleEnd { woke_ns, polled });
    }

    /// Whether an active source has work, or another thread has woken the loop.
    fn poll_once(&mut self) -> bool {
        self.runner.poll_sources_once() || self.wake.is_notified()
    }

    /// Polls for as long as it pays for recently active sources; true when there is work.
    fn poll_while_worthwhile(&mut self) -> io::Result<bool> {
        if self.last_poll_hit && self.budget.is_unlimited() {
            for _ in 0..FREE_POLLS {
                if self.poll_once() {
                    self.cx.totals.count_poll(true);
                    tracepoints::poll_end(true, 0);
                    return Ok(true);
                }
                std::hint::spin_loop();
            }
        }
        let start_ns = self.cx.now_ns();
        let end_ns = self
            .runner
            .predict_poll_deadline_ns(&self.polling, start_ns);
        let window_ns = end_ns.saturating_sub(start_ns).min(self.polling.max_ns);
        self.poll_result = PollOutcome::Not;
        self.last_poll_hit = window_ns > 0
            && self.budget.allows(start_ns, window_ns)
            && self.poll_until(start_ns, start_ns + window_ns)?;
        Ok(self.last_poll_hit)
    }

    /// Counts a polling window that has ended.
    fn spend_and_count_poll_window(&mut self, spent_ns: u64, found: bool) {
        self.budget.spend(spent_ns);
        self.cx.totals.count_poll(found);
        self.cx.totals.poll_time_ns.add(spent_ns);
        tracepoints::poll_end(found, spent_ns);
    }

    /// Polls until `end_ns`, a timer or work; true when there is work.
    fn poll_until(&mut self, start_ns: u64, end_ns: u64) -> io::Result<bool> {
        let due_ns = self.cx.timers.next_deadline_ns().unwrap_or(u64::MAX);
        tracepoints::poll_begin(end_ns - start_ns);
        loop {
            let found = self.poll_once();
            let now_ns = self.cx.now_ns();
            // A timer that is due is work as well, but no event of a source.
            if found || now_ns >= end_ns.min(due_ns) {
                self.spend_and_count_poll_window(now_ns.saturating_sub(start_ns), found);
                // Found after the end: this thread did not run meanwhile, since another one had the CPU.
                self.poll_result = match (found, now_ns >= end_ns) {
                    (true, false) => PollOutcome::Found,
                    (false, false) => PollOutcome::Not,
                    (_, true) => PollOutcome::InVain,
                };
                self.keep_idle_end_for_learning(now_ns);
                return Ok(found || now_ns >= due_ns);
            }
            if now_ns.saturating_sub(self.checked_ns) >= POLLING_CHECK_NS {
                self.checked_ns = now_ns;
                self.wait_and_dispatch(Some(0))?;
                // Not every event of a descriptor can be polled for: run an iteration.
                if !self.events.is_empty() {
                    self.spend_and_count_poll_window(now_ns.saturating_sub(start_ns), true);
                    self.poll_result = PollOutcome::Found;
                    self.keep_idle_end_for_learning(now_ns);
                    return Ok(true);
                }
            }
            std::hint::spin_loop();
        }
    }

    /// Waits for ready descriptors, at most this long, and handles them.
    fn wait_and_dispatch(&mut self, timeout_ns: Option<u64>) -> io::Result<()> {
        self.cx.poller.wait(&mut self.events, timeout_ns)?;
        self.dispatch_events();
        Ok(())
    }

    /// Calls the runner for each ready descriptor whose handler still exists.
    fn dispatch_events(&mut self) {
        for index in 0..self.events.len() {
            let Event { cookie, readiness } = self.events[index];
            // The cookie of the wake-up eventfd is no handler's: the mailbox is read anyway.
            let id = HandlerId::from_cookie(cookie);
            if let Some(handler) = self.cx.handlers.get(id) {
                self.runner.on_ready(&mut self.cx, id, handler, readiness);
            }
        }
    }
}
