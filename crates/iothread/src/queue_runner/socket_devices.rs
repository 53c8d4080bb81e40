//! Socket devices of an iothread: they are started, run, polled, commanded and ended in the phases of its loop. Requests of queues
//! use none of this code.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use block::Node;

use super::{Handler, QueuesRunner};
use crate::event_loop::iteration::RunnerContext;
use crate::messages::SocketDeviceCommand;
use crate::socket_device::SocketDevice;
use crate::socket_devices::RunningSocketDevice;

/// While rings are polled, one of so many polls also polls a socket: it costs about as much as they do.
const RING_POLLS_PER_SOCKET_POLL: u32 = 8;

/// Time that the turns of socket devices take in one iteration, and one more turn: others on the iothread wait for it.
const SOCKET_DEVICES_NS: u64 = 1_000_000;

/// A time that has passed: one turn, and no more.
const ONE_TURN: u64 = 0;

impl QueuesRunner {
    /// Starts a socket device, and returns its index.
    pub(super) fn start_socket_device(
        &mut self,
        cx: &mut RunnerContext<Self>,
        device: Box<dyn SocketDevice>,
        nodes: Vec<Arc<Node>>,
    ) -> u32 {
        let source_index = self.sources.reserve_index();
        let (_, mut context) = self.command_context(cx, source_index);
        let disks = nodes
            .iter()
            .map(|node| context.attach_node_and_reserve_completions(node))
            .collect();
        let running = RunningSocketDevice::new(device, disks, source_index);
        self.sources.socket_devices.add(running);
        self.lists
            .reserve_sources(self.sources.allocated_index_count());
        self.trace
            .reserve_sources(self.sources.allocated_index_count());
        self.run_and_update_socket_device(cx, source_index);
        source_index
    }

    /// Runs socket devices in the order in which they became ready, in the notify phase, as long as their time lasts: each of many may
    /// have much to do. The others are the first in the next iteration, after queues have had their turn.
    #[cold]
    pub(super) fn run_ready_socket_devices(&mut self) {
        let until_ns = block::clock_ns().saturating_add(SOCKET_DEVICES_NS);
        // None becomes ready meanwhile: it would be lost.
        let mut ready = std::mem::take(&mut self.lists.ready_devices);
        let mut is_over = false;
        ready.retain(|source_index| {
            if !is_over {
                self.run_socket_device(source_index, until_ns);
                is_over = block::clock_ns() >= until_ns;
                return false;
            }
            true
        });
        self.lists.ready_devices = ready;
    }

    /// Runs a socket device for some turns, until this time.
    #[cold]
    fn run_socket_device(&mut self, source_index: u32, until_ns: u64) {
        let Some(running) = self.sources.socket_devices.get_mut(source_index) else {
            return;
        };
        if !running.run_turns_and_submit(&mut self.io, until_ns) {
            self.lists.stall(source_index);
        }
        if running.needs_update_or_end() {
            self.sources.socket_devices.schedule_update(source_index);
        }
    }

    /// Schedules a socket device for the next notify phase.
    fn schedule_socket_device_turn(&mut self, source_index: u32) {
        if self.sources.socket_devices.get_mut(source_index).is_some() {
            self.lists.ready_devices.insert(source_index);
        }
    }

    /// Polls the socket of one socket device, in turn.
    #[cold]
    pub(super) fn poll_next_socket_if_due(&mut self) -> bool {
        self.polls = self.polls.wrapping_add(1);
        if !self.lists.active.is_empty() && !self.polls.is_multiple_of(RING_POLLS_PER_SOCKET_POLL) {
            return false;
        }
        let Some(running) = self.sources.socket_devices.next_to_poll() else {
            return false;
        };
        let found = running.poll_socket();
        if found {
            let source_index = running.source_index();
            self.schedule_socket_device_turn(source_index);
        }
        found
    }

    /// Handles a ready descriptor of a socket device.
    #[cold]
    pub(super) fn on_socket_device_ready(&mut self, source_index: u32, descriptor: u8) {
        if let Some(running) = self.sources.socket_devices.get_mut(source_index) {
            running.on_ready(descriptor, block::clock_ns());
            self.schedule_socket_device_turn(source_index);
        }
    }

    /// Runs a socket device, and updates its watches and its timer.
    fn run_and_update_socket_device(&mut self, cx: &mut RunnerContext<Self>, source_index: u32) {
        self.run_socket_device(source_index, ONE_TURN);
        self.update_watches_and_timer_or_end(cx, source_index);
    }

    /// Updates the watches and timers of socket devices that need it.
    #[cold]
    pub(super) fn update_scheduled_watches_and_timers(&mut self, cx: &mut RunnerContext<Self>) {
        while let Some(source_index) = self.sources.socket_devices.pop_scheduled_update() {
            self.update_watches_and_timer_or_end(cx, source_index);
        }
    }

    /// Watches the descriptors that a socket device has now, and arms the timer for it. Ends it if it was stopped and has
    /// nothing in flight.
    fn update_watches_and_timer_or_end(&mut self, cx: &mut RunnerContext<Self>, source_index: u32) {
        let Some(running) = self.sources.socket_devices.get_mut(source_index) else {
            return;
        };
        if let Some(reply) = running.take_stop_reply_if_drained() {
            return self.finish_stop_socket_device(cx, source_index, &reply);
        }
        let mut deleted = Vec::new();
        let watched = running.apply_watches(
            |fd, interest, descriptor| {
                cx.add(
                    fd,
                    interest,
                    Handler::SocketDevice(source_index, descriptor),
                )
            },
            |handler| deleted.push(handler),
        );
        let (more, deadline_ns) = (
            running.has_more_work(),
            running.record_and_get_deadline_ns(),
        );
        for handler in deleted {
            cx.delete(handler);
        }
        if let Err(error) = &watched {
            tracing::error!(
                %error,
                advice = "raise `ulimit -n` (`LimitNOFILE=`)",
                "a device's socket cannot be watched: its front-end is disconnected"
            );
            self.disconnect_socket_device(source_index);
        }
        if more || watched.is_err() {
            self.schedule_socket_device_turn(source_index);
        }
        if let Some(deadline_ns) = deadline_ns {
            self.arm_timer_no_later_than(cx, deadline_ns);
        }
    }

    /// Disconnects the front-end of a socket device.
    fn disconnect_socket_device(&mut self, source_index: u32) {
        if let Some(running) = self.sources.socket_devices.get_mut(source_index) {
            running.disconnect();
        }
    }

    /// Schedules turns of the socket devices whose deadlines have passed, and arms the timer, which they share, for the others.
    #[cold]
    pub(super) fn schedule_due_socket_devices(&mut self, cx: &mut RunnerContext<Self>) {
        let (now_ns, mut next_ns) = (cx.now_ns(), None);
        for running in self.sources.socket_devices.iter_mut() {
            match running.armed_ns() {
                None => {}
                Some(armed_ns) if armed_ns > now_ns => {
                    next_ns = Some(armed_ns.min(next_ns.unwrap_or(armed_ns)));
                }
                Some(_) => {
                    running.forget_armed_deadline();
                    self.lists.ready_devices.insert(running.source_index());
                }
            }
        }
        if let Some(deadline_ns) = next_ns {
            self.arm_timer_no_later_than(cx, deadline_ns);
        }
    }

    /// Stops a socket device, if there is one. It ends, and `reply` is notified, when nothing of it is in flight.
    pub(super) fn begin_stop_socket_device(
        &mut self,
        cx: &mut RunnerContext<Self>,
        source_index: u32,
        reply: Sender<u32>,
    ) {
        if let Some(running) = self.sources.socket_devices.get_mut(source_index) {
            running.begin_stop(reply);
            self.io.end_unbounded_waits(source_index);
            self.run_and_update_socket_device(cx, source_index);
        }
    }

    /// Runs a command for a socket device, if there is one.
    #[cold]
    pub(super) fn run_socket_device_command(
        &mut self,
        cx: &mut RunnerContext<Self>,
        source_index: u32,
        command: SocketDeviceCommand,
    ) {
        let (sources, mut context) = self.command_context(cx, source_index);
        let Some(running) = sources.socket_devices.get_mut(source_index) else {
            return;
        };
        // The receiver of an answer may be gone; ignore the error.
        match command {
            SocketDeviceCommand::Enable(enabled) => {
                running.disabled = !enabled;
                self.run_and_update_socket_device(cx, source_index);
            }
            SocketDeviceCommand::Run => self.run_and_update_socket_device(cx, source_index),
            SocketDeviceCommand::Settle(reply) => {
                running.reply_when_current_requests_end(reply);
                self.run_and_update_socket_device(cx, source_index);
            }
            SocketDeviceCommand::SetNode(node, reply) => {
                running.replace_disks_of_node(&node, || {
                    context.attach_node_and_reserve_completions(&node)
                });
                running.reply_when_current_requests_end(reply);
                self.run_and_update_socket_device(cx, source_index);
            }
            SocketDeviceCommand::StopIfIdle(reply) => {
                let idle = running.is_disconnected_and_drained();
                if idle {
                    let (ended, _) = std::sync::mpsc::channel();
                    self.begin_stop_socket_device(cx, source_index, ended);
                }
                let _ = reply.send(idle);
            }
            SocketDeviceCommand::PauseAccepting(reply) => {
                let _ = reply.send(running.pause_accepting_if_idle());
                self.update_watches_and_timer_or_end(cx, source_index);
            }
            SocketDeviceCommand::ResumeAccepting => {
                running.resume_accepting();
                self.update_watches_and_timer_or_end(cx, source_index);
            }
        }
    }

    /// Removes a socket device that was stopped and has nothing in flight.
    fn finish_stop_socket_device(
        &mut self,
        cx: &mut RunnerContext<Self>,
        source_index: u32,
        reply: &Sender<u32>,
    ) {
        let Some(running) = self.sources.socket_devices.remove(source_index) else {
            return;
        };
        for handler in running.watch_handler_ids() {
            cx.delete(handler);
        }
        self.lists.remove_everywhere(source_index);
        // Before the answer: its receiver may close the disk then, which nothing else may hold.
        for disk in running.into_disks() {
            self.io.detach(disk);
        }
        self.io.forget_ended_source(source_index);
        self.sources.free_index_and_take_vring(source_index);
        let _ = reply.send(0);
    }
}
