//! Runner of the queues and socket devices of an iothread: the five phases over rings, devices and engines.

mod phases;
mod queue_commands;
mod socket_devices;

use std::sync::Arc;
use std::sync::mpsc::Sender;

use block::{AttachedDisk, IoContext, Node};
use engine::Completion;
use rustix::thread::CpuSet;
use telemetry::counters::TickClock;
use virtqueue::Chain;
use virtqueue::queue_setup::StartError;

use crate::affinity::{AffinityError, bind_thread, restore_affinity};
use crate::completion_dispatcher::CompletionDispatcher;
use crate::event_loop::iteration::RunnerContext;
use crate::event_loop::{HandlerId, Interest, Remote, TimerId};
use crate::latency_trace::CompletionToSignalTrace;
use crate::messages::{Message, QueueRegistration, VringSetup};
use crate::queue_lists::QueueLists;
use crate::source_table::SourceTable;
use crate::submit_totals::SubmitTotals;
use crate::vring::Vring;
use queue_commands::set_kick_unless_stopping;

/// Delay before the retry of a request for which the kernel had no memory, with none in flight.
const RETRY_NS: u64 = 1_000_000;

/// Polling interval of a queue whose front-end does not kick (it passed no descriptor): a compromise between its latency and CPU time.
const UNKICKED_POLL_NS: u64 = 100_000;

/// Room for the completions of worker threads in one reap, beside those of the other engines: as many
/// as a fully busy thread pool could have finished at once. (With more the list grows.)
const WORKER_COMPLETIONS: usize = 4096;

/// Limit of completions dispatched between two notify phases: it bounds how long one queue's completions
/// delay another's signal. As many as eight busy queues admit in one iteration, so that it seldom applies.
const COMPLETE_BUDGET: usize = 512;

/// Tag of a descriptor that the runner watches.
#[derive(Clone, Copy)]
pub enum Handler {
    /// The eventfd of Linux AIO or of the io_uring.
    Engine,
    /// The kick descriptor of the queue with this index.
    Kick(u32),
    /// A descriptor of the socket device with this index, and its own index among those watched.
    SocketDevice(u32, u8),
}

/// The queues and socket devices of an iothread, with its engines.
pub struct QueuesRunner {
    // First, so that it is dropped first: it waits for what is in flight in the queues' memory.
    io: IoContext,
    sources: SourceTable,
    /// Sender of messages to itself, for messages between queues.
    remote: Remote<Message>,
    lists: QueueLists,
    completions: Vec<Completion>,
    /// Number of completions that were dispatched already.
    dispatched_count: usize,
    chain: Chain,
    clock: TickClock,
    /// Counts of what was submitted to the kernel, for other threads.
    submit_totals: Arc<SubmitTotals>,
    /// Whether this iteration has dispatched completions already: more of them wait for the next one.
    has_dispatched: bool,
    /// Whether a queue was left with work because its budget was used up.
    more: bool,
    trace: CompletionToSignalTrace,
    /// The descriptors of the engines.
    engine_handlers: Vec<HandlerId>,
    /// The affinity of its thread before it was bound, if it was.
    cpus_before_binding: Option<CpuSet>,
    /// The deadline that the timer is armed for, and its ID.
    timer: Option<(u64, TimerId)>,
    /// Number of polls, while there are socket devices.
    polls: u32,
}

impl QueuesRunner {
    /// A runner with these engines, to which `remote` leads.
    #[must_use]
    pub fn new(remote: &Remote<Message>, io: IoContext) -> Self {
        QueuesRunner {
            io,
            remote: remote.clone(),
            sources: SourceTable::default(),
            lists: QueueLists::default(),
            completions: Vec::new(),
            dispatched_count: 0,
            clock: TickClock::of_process(),
            submit_totals: Arc::default(),
            has_dispatched: false,
            chain: Chain::new(),
            more: false,
            trace: CompletionToSignalTrace::default(),
            engine_handlers: Vec::new(),
            cpus_before_binding: None,
            timer: None,
            polls: 0,
        }
    }

    /// Its engines, for tests that read their counters.
    #[must_use]
    pub fn io_context(&self) -> &IoContext {
        &self.io
    }

    /// Its engines, for the simulator, which acts as their worker threads.
    #[cfg(feature = "simulation")]
    pub fn io_context_mut(&mut self) -> &mut IoContext {
        &mut self.io
    }

    /// Counters of requests submitted to the kernel.
    #[must_use]
    pub fn submit_totals(&self) -> Arc<SubmitTotals> {
        self.submit_totals.clone()
    }

    /// Sets the affinity that its thread had before it was bound.
    pub(crate) fn record_affinity_before_binding(&mut self, unbound: Option<CpuSet>) {
        self.cpus_before_binding = unbound;
    }

    /// Phase 2: dispatches as many completions as the budget allows, then submits what waited for their room.
    fn dispatch_completions_and_submit_stalled(&mut self) {
        if self.completions.is_empty() {
            return;
        }
        if telemetry::tracepoints::reap::enabled() && self.dispatched_count == 0 {
            telemetry::tracepoints::reap::fire(self.completions.len() as u64);
        }
        let now = self.clock.now();
        let begin = self.dispatched_count;
        let end = self.completions.len().min(begin + COMPLETE_BUDGET);
        let mut dispatcher = CompletionDispatcher {
            io: &mut self.io,
            sources: &mut self.sources,
            lists: &mut self.lists,
            trace: &mut self.trace,
        };
        dispatcher.dispatch(&self.completions[begin..end], now);
        self.dispatched_count = end;
        if end == self.completions.len() {
            self.completions.clear();
            self.dispatched_count = 0;
        }
        // After the admissions, the next iteration has this work.
        self.more |= self
            .lists
            .submit_stalled(&mut self.sources, &mut self.io, now);
    }

    /// Answers requests that completed while they were submitted, without another iteration.
    #[inline(never)]
    fn reap_and_answer_inline_completions(&mut self) {
        self.io.reap_and_poll_tasks(&mut self.completions);
        self.dispatch_completions_and_submit_stalled();
        self.publish_queues_and_run_socket_devices();
        // Reaping may have found requests to continue: a short transfer, a flush after a discard. If the next iteration has work,
        // they are submitted then: tasks would take the room that stalled queues are to share with them.
        if !self.more {
            self.submit_and_update_totals();
        }
    }

    /// Submits pending requests to the kernel, if a backend of this thread does that, and updates the counters, also for full batches
    /// that were submitted before.
    fn submit_and_update_totals(&mut self) {
        if self.io.may_need_submit_phase() {
            self.io.poll_tasks_and_submit();
            self.submit_totals.update(&self.io);
        }
    }

    /// Publishes the used entries of each queue in *unpublished* once, with at most one signal, and ends those that were stopped
    /// and have drained. Then socket devices run.
    fn publish_queues_and_run_socket_devices(&mut self) {
        while let Some(source_index) = self.lists.unpublished.pop_last() {
            if let Some(vring) = self.sources.get_mut(source_index) {
                if vring.publish_and_signal(|| self.trace.record_latency_at_signal(source_index)) {
                    self.lists.stall(source_index);
                }
                if vring.stopping.is_some() {
                    self.end_queue_if_drained(source_index);
                }
            }
        }
        if !self.lists.ready_devices.is_empty() {
            self.run_ready_socket_devices();
        }
    }

    /// Starts a queue, and returns its index.
    fn start_queue(
        &mut self,
        cx: &mut RunnerContext<Self>,
        setup: VringSetup,
    ) -> Result<u32, StartError> {
        let source_index = self.sources.reserve_index();
        let reports = setup.reports.as_ref().map(|reports| reports.export.clone());
        let stats = setup.stats.clone();
        let remote = self.remote.clone();
        let (_, mut context) = self.command_context(cx, source_index);
        let attach = |node: &Arc<Node>| context.attach_node_and_reserve_completions(node);
        let started = Vring::new_with_attached_disks(setup, source_index, &remote, attach)
            .map_err(StartError::from);
        let started = started.and_then(|(mut vring, kick)| {
            if let Err(error) = set_kick_unless_stopping(&mut vring, kick, source_index, cx) {
                self.detach_disks_of_vring(vring);
                return Err(error);
            }
            Ok(vring)
        });
        match started {
            Ok(mut vring) => {
                vring.registration = reports.map(|export| {
                    QueueRegistration::register(export, &self.remote, source_index, stats)
                });
                vring.register_memory_if_fixed_buffers(&mut self.io);
                let source_count = self.sources.allocated_index_count();
                self.lists.reserve_sources(source_count);
                self.trace.reserve_sources(source_count);
                self.lists.activate_if_may_admit(&mut vring, source_index);
                self.sources.insert_vring(source_index, vring);
                Ok(source_index)
            }
            Err(error) => {
                self.sources.free_index_and_take_vring(source_index);
                Err(error)
            }
        }
    }

    /// The context for a command to this source, and the queues and socket devices that commands go to.
    fn command_context<'a>(
        &'a mut self,
        cx: &'a mut RunnerContext<Self>,
        source_index: u32,
    ) -> (&'a mut SourceTable, CommandContext<'a>) {
        let context = CommandContext {
            source_index,
            now: self.clock.now(),
            cx,
            io: &mut self.io,
            engine_handlers: &mut self.engine_handlers,
            completions: &mut self.completions,
            lists: &mut self.lists,
        };
        (&mut self.sources, context)
    }

    /// Runs a command for the queue with this index, if there is one.
    fn with_queue(
        &mut self,
        cx: &mut RunnerContext<Self>,
        source_index: u32,
        run: impl FnOnce(&mut Vring, CommandContext<'_>),
    ) {
        let (sources, context) = self.command_context(cx, source_index);
        if let Some(vring) = sources.get_mut(source_index) {
            run(vring, context);
        }
    }

    /// Detaches the disks of a queue that has ended, with nothing in flight.
    fn detach_disks_of_vring(&mut self, vring: Vring) {
        for disk in vring.into_disks() {
            self.io.detach(disk);
        }
    }

    /// Binds the thread. Its worker threads keep the affinity that it had before it was bound for the first time.
    fn set_cpu_affinity(&mut self, iothread: &str, cpus: &[u16]) -> Result<(), AffinityError> {
        match (cpus, &self.cpus_before_binding) {
            ([], None) => {}
            ([], Some(unbound)) => restore_affinity(iothread, unbound)?,
            _ => {
                let before = bind_thread(iothread, cpus)?;
                let unbound = *self.cpus_before_binding.get_or_insert(before);
                self.io.set_new_worker_cpus(unbound);
            }
        }
        Ok(())
    }

    /// Stops a queue or a socket device. It ends, and `reply` is notified, when nothing of it is in flight.
    fn begin_stop_source(
        &mut self,
        cx: &mut RunnerContext<Self>,
        source_index: u32,
        reply: Sender<u32>,
    ) {
        let Some(vring) = self.sources.get_mut(source_index) else {
            return self.begin_stop_socket_device(cx, source_index, reply);
        };
        if let Some(kick) = vring.kick.take() {
            cx.delete(kick);
        }
        vring.begin_stop(reply);
        self.io.end_unbounded_waits(source_index);
        if vring.may_admit() {
            self.lists.activate_if_may_admit(vring, source_index);
        } else {
            self.lists.stop_admitting(source_index);
        }
        // The notify phase ends it, now or after its last completion.
        self.lists.unpublished.insert(source_index);
    }

    /// Makes a queue active that the guest has kicked.
    fn on_kick(&mut self, source_index: u32) {
        if let Some(vring) = self.sources.get_mut(source_index) {
            if telemetry::tracepoints::kick::enabled() {
                vring.trace_kick();
            }
            self.lists.activate_if_may_admit(vring, source_index);
        }
    }

    /// Removes a queue that was stopped and has nothing in flight.
    #[cold]
    fn end_queue_if_drained(&mut self, source_index: u32) {
        let Some(vring) = self.sources.get_mut(source_index) else {
            return;
        };
        if !vring.is_stopping_and_drained() {
            return;
        }
        self.lists.stop_admitting(source_index);
        if let Some(reply) = vring.stopping.take() {
            // Before the answer: its receiver may close the disk and unmap the memory then, and finds
            // that nothing else holds them.
            let base = vring.finish_stop_and_get_base(&mut self.io, self.clock.now());
            self.io.forget_ended_source(source_index);
            if let Some(vring) = self.sources.free_index_and_take_vring(source_index) {
                self.detach_disks_of_vring(*vring);
            }
            self.trace.log_percentiles();
            // The receiver may be gone; ignore the error.
            let _ = reply.send(base);
        }
    }

    /// Arms a timer for deadlines and retries, which no descriptor announces.
    fn arm_timer_for_engines(&mut self, cx: &mut RunnerContext<Self>) {
        let retry = || cx.now_ns() + RETRY_NS;
        let deadline = match (self.io.next_deadline_ns(), self.io.needs_retry()) {
            (deadline, false) => deadline,
            (deadline, true) => Some(deadline.unwrap_or(u64::MAX).min(retry())),
        };
        if let Some(deadline_ns) = deadline {
            self.arm_timer_no_later_than(cx, deadline_ns);
        }
    }

    /// Arms the timer, so that an iteration runs at `deadline_ns` at the latest.
    fn arm_timer_no_later_than(&mut self, cx: &mut RunnerContext<Self>, deadline_ns: u64) {
        if let Some((armed_ns, timer)) = self.timer {
            if armed_ns <= deadline_ns {
                return;
            }
            cx.cancel_timer(timer);
        }
        self.timer = Some((deadline_ns, cx.add_timer(deadline_ns, ())));
    }
}

/// The parts of an iothread that commands use.
pub(crate) struct CommandContext<'a> {
    /// Index of the queue or socket device that the command is for.
    pub source_index: u32,
    /// The current time, in ticks.
    pub now: u64,
    pub cx: &'a mut RunnerContext<QueuesRunner>,
    pub io: &'a mut IoContext,
    pub lists: &'a mut QueueLists,
    engine_handlers: &'a mut Vec<HandlerId>,
    completions: &'a mut Vec<Completion>,
}

impl CommandContext<'_> {
    /// Attaches a node, and makes room for the completions of its requests.
    pub fn attach_node_and_reserve_completions(&mut self, node: &Arc<Node>) -> AttachedDisk {
        // New settings that only new engines can have apply now.
        if self.io.end_outdated_engines_if_unused() {
            for handler in self.engine_handlers.drain(..) {
                self.cx.delete(handler);
            }
        }
        let disk = self.io.attach(node, &mut |eventfd| {
            let eventfd = eventfd.try_clone_to_owned()?;
            let handler = self
                .cx
                .add(eventfd, Interest::ReadableEdge, Handler::Engine);
            self.engine_handlers.push(handler?);
            Ok(())
        });
        let most = self.io.max_reaped_without_workers() + WORKER_COMPLETIONS;
        self.completions
            .reserve(most.saturating_sub(self.completions.len()));
        disk
    }
}
