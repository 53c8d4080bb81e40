//! Callbacks of the event loop: the five phases (reap, complete, notify, admit, submit) over all queues, polling, and the
//! messages of the control plane.

use super::{Handler, QueuesRunner, UNKICKED_POLL_NS};
use crate::event_loop::iteration::RunnerContext;
use crate::event_loop::{HandlerId, IdleEnd, PollSettings, Readiness, Runner};
use crate::log_engine_counters;
use crate::messages::Message;
use crate::vring::Vring;

impl Runner for QueuesRunner {
    type Handler = Handler;
    type Timer = ();
    type Message = Message;

    /// Makes a kicked queue active, or schedules the turn of a socket device.
    fn on_ready(
        &mut self,
        _: &mut RunnerContext<Self>,
        _: HandlerId,
        handler: Handler,
        _: Readiness,
    ) {
        match handler {
            // The reap phase reads the completion rings anyway, and sockets that may be ready.
            Handler::Engine => self.io.note_descriptor_event(),
            Handler::Kick(source_index) => self.on_kick(source_index),
            Handler::SocketDevice(source_index, descriptor) => {
                self.on_socket_device_ready(source_index, descriptor)
            }
        }
    }

    fn on_timer(&mut self, cx: &mut RunnerContext<Self>, (): ()) {
        self.timer = None;
        self.schedule_due_socket_devices(cx);
    }

    /// Runs a message of the control plane, or passes it to the queue or socket device that it is for.
    fn on_message(&mut self, cx: &mut RunnerContext<Self>, message: Message) {
        // The receiver of an answer may be gone; ignore the error.
        match message {
            Message::Start(setup, reply) => {
                let _ = reply.send(self.start_queue(cx, *setup));
            }
            Message::StartSocketDevice(device, nodes, reply) => {
                let _ = reply.send(self.start_socket_device(cx, device, nodes));
            }
            Message::Stop(source_index, reply) => self.begin_stop_source(cx, source_index, reply),
            Message::Queue(source_index, command) => {
                self.with_queue(cx, source_index, |vring, context| {
                    context.run_queue_command(vring, command)
                });
            }
            Message::Device(source_index, command) => {
                self.with_queue(cx, source_index, |vring, context| {
                    context.run_device_command(vring, command)
                });
            }
            Message::SocketDevice(source_index, command) => {
                self.run_socket_device_command(cx, source_index, command);
            }
            Message::SetAioMaxBatch(max_batch) => self.io.set_max_batch(max_batch),
            Message::SetAioMaxEvents(events) => self.io.set_new_engine_max_events(events),
            Message::SetThreadPool(min, max, reply) => {
                let _ = reply.send(self.io.set_worker_limits(min, max));
            }
            Message::SetCpuAffinity(iothread, cpus, reply) => {
                let _ = reply.send(self.set_cpu_affinity(&iothread, &cpus));
            }
            Message::Ping(reply) => {
                // The receiver may be gone; ignore the error.
                let _ = reply.send(());
            }
        }
    }

    fn reap(&mut self, _: &mut RunnerContext<Self>) {
        if self.completions.is_empty() {
            self.io.reap_and_poll_tasks(&mut self.completions);
        }
    }

    fn complete_reaped(&mut self, _: &mut RunnerContext<Self>) {
        self.has_dispatched = !self.completions.is_empty();
        if self.has_dispatched {
            self.dispatch_completions_and_submit_stalled();
        }
    }

    fn publish_and_notify(&mut self, _: &mut RunnerContext<Self>) {
        self.publish_queues_and_run_socket_devices();
    }

    fn admit(&mut self, _: &mut RunnerContext<Self>) {
        let admit =
            |vring: &mut Vring| vring.admit(&mut self.chain, &mut self.io, || self.clock.now());
        self.more = self.lists.admit(&mut self.sources, admit);
    }

    /// Submits pending requests, completes those that were done at once, and updates watches and timers.
    fn submit(&mut self, cx: &mut RunnerContext<Self>) {
        self.submit_and_update_totals();
        if !self.has_dispatched && self.io.has_completions_or_woken_tasks() {
            self.reap_and_answer_inline_completions();
        }
        if self.sources.socket_devices.has_scheduled_updates() {
            self.update_scheduled_watches_and_timers(cx);
        }
        self.arm_timer_for_engines(cx);
    }

    fn has_work_for_next_iteration(&self) -> bool {
        self.more
            || !self.lists.unpublished.is_empty()
            || !self.lists.ready_devices.is_empty()
            || !self.completions.is_empty()
            || self.io.has_completions_or_woken_tasks()
    }

    fn poll_sources_once(&mut self) -> bool {
        self.io.has_completions_or_woken_tasks()
            || self.lists.active.iter().any(|source_index| {
                self.sources
                    .get(source_index)
                    .is_some_and(|vring| vring.may_admit() && vring.has_available())
            })
            || (!self.sources.socket_devices.is_empty() && self.poll_next_socket_if_due())
    }

    /// Enables kicks. Sets a timer if there are queues that are polled since their guests do not kick.
    fn prepare_to_block_or_find_work(&mut self, cx: &mut RunnerContext<Self>) -> bool {
        let enabled = self.lists.enable_kicks(&mut self.sources);
        if enabled.any_unkicked {
            let poll_ns = cx.now_ns() + UNKICKED_POLL_NS;
            self.arm_timer_no_later_than(cx, poll_ns);
        }
        self.io.arm_eventfds_and_check_finished() || enabled.found_work
    }

    /// The latest deadline of the active queues and of the socket devices.
    fn predict_poll_deadline_ns(&mut self, settings: &PollSettings, now_ns: u64) -> u64 {
        let mut until_ns = 0;
        for source_index in self.lists.active.iter() {
            if let Some(vring) = self.sources.get_mut(source_index) {
                until_ns = until_ns.max(vring.predict_poll_deadline_ns(settings, now_ns));
            }
        }
        for running in self.sources.socket_devices.iter_mut() {
            until_ns = until_ns.max(running.predict_poll_deadline_ns(settings, now_ns));
        }
        until_ns
    }

    /// Has the predictors of all sources that were polled learn.
    fn learn_from_idle(&mut self, settings: &PollSettings, idle: IdleEnd) {
        for source_index in self.lists.active.iter() {
            if let Some(vring) = self.sources.get_mut(source_index) {
                vring.learn_from_idle(settings, idle);
            }
        }
        for running in self.sources.socket_devices.iter_mut() {
            running.learn_from_idle(settings, idle);
        }
    }

    fn on_stop(&mut self, _: &mut RunnerContext<Self>) {
        self.trace.log_percentiles();
        tracing::debug!("iothread stopped");
        log_engine_counters::log_engine_counters(&self.io);
    }
}
