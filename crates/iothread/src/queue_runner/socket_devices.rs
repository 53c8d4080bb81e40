//! Socket devices in the phases of an iothread. Requests of queues use none of this code.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use block::Node;

use super::{Handler, QueueRunner};
use crate::event_loop::iothread::RunnerContext;
use crate::messages::SocketDeviceCommand;
use crate::socket_device::SocketDevice;
use crate::socket_devices::{RunningSocketDevice, now_ns};

/// While rings are polled, one of so many polls also polls a socket: it costs about as much as they do.
const RING_POLLS_PER_SOCKET_POLL: u32 = 8;

impl QueueRunner {
    pub(super) fn start_socket_device(
        &mut self,
        cx: &mut RunnerContext<Self>,
        device: Box<dyn SocketDevice>,
        nodes: Vec<Arc<Node>>,
    ) -> u32 {
        let place = self.vrings.reserve();
        let (_, mut controls) = self.controls(cx, place);
        let disks = nodes.iter().map(|node| controls.attach(node)).collect();
        let running = RunningSocketDevice::new(device, disks, place);
        self.vrings.socket_devices.put(running);
        self.lists.make_room(self.vrings.count());
        self.trace.make_room(self.vrings.count());
        self.run_and_update(cx, place);
        place
    }

    /// Runs a socket device, in the notify phase.
    #[cold]
    pub(super) fn run_socket_device(&mut self, place: u32) {
        let Some(running) = self.vrings.socket_devices.get_mut(place) else {
            return;
        };
        if !running.run(&mut self.io, now_ns()) {
            self.lists.stall(place);
        }
        if running.needs_update() {
            self.vrings.socket_devices.schedule_update(place);
        }
    }

    /// Schedules a socket device for the next notify phase.
    fn schedule_socket_device(&mut self, place: u32) {
        if self.vrings.socket_devices.get_mut(place).is_some() {
            self.lists.unpublished.insert(place);
        }
    }

    /// Polls the socket of one socket device, in turn.
    #[cold]
    pub(super) fn poll_next_socket(&mut self) -> bool {
        self.polls = self.polls.wrapping_add(1);
        if !self.lists.active.is_empty() && !self.polls.is_multiple_of(RING_POLLS_PER_SOCKET_POLL) {
            return false;
        }
        let Some(running) = self.vrings.socket_devices.next_polled() else {
            return false;
        };
        let found = running.poll_socket();
        if found {
            let place = running.place();
            self.schedule_socket_device(place);
        }
        found
    }

    /// Handles a ready descriptor of a socket device.
    #[cold]
    pub(super) fn socket_device_ready(&mut self, place: u32, source: u8) {
        if let Some(running) = self.vrings.socket_devices.get_mut(place) {
            running.ready(source, now_ns());
            self.schedule_socket_device(place);
        }
    }

    /// Runs a socket device, and updates its watches and its timer.
    fn run_and_update(&mut self, cx: &mut RunnerContext<Self>, place: u32) {
        self.run_socket_device(place);
        self.update_watches(cx, place);
    }

    /// Updates the watches and timers of socket devices that need it.
    #[cold]
    pub(super) fn update_socket_devices(&mut self, cx: &mut RunnerContext<Self>) {
        while let Some(place) = self.vrings.socket_devices.next_update() {
            self.update_watches(cx, place);
        }
    }

    fn update_watches(&mut self, cx: &mut RunnerContext<Self>, place: u32) {
        let Some(running) = self.vrings.socket_devices.get_mut(place) else {
            return;
        };
        if let Some(reply) = running.ended() {
            return self.end_socket_device(cx, place, &reply);
        }
        let mut deleted = Vec::new();
        let watched = running.watch(
            |fd, interest, source| cx.add(fd, interest, Handler::SocketDevice(place, source)),
            |handler| deleted.push(handler),
        );
        let (more, deadline_ns) = (running.has_more(), running.deadline_ns());
        for handler in deleted {
            cx.delete(handler);
        }
        if let Err(error) = &watched {
            tracing::error!(
                %error,
                advice = "raise `ulimit -n` (`LimitNOFILE=`)",
                "a device's socket cannot be watched: its front-end is disconnected"
            );
            self.disconnect_socket_device(place);
        }
        if more || watched.is_err() {
            self.schedule_socket_device(place);
        }
        if let Some(deadline_ns) = deadline_ns {
            self.arm_timer_for(cx, deadline_ns);
        }
    }

    fn disconnect_socket_device(&mut self, place: u32) {
        if let Some(running) = self.vrings.socket_devices.get_mut(place) {
            running.disconnect();
        }
    }

    /// Runs all socket devices, after the timer, which they share, has expired.
    #[cold]
    pub(super) fn run_all_socket_devices(&mut self, cx: &mut RunnerContext<Self>) {
        for place in self.vrings.socket_devices.places() {
            self.run_and_update(cx, place);
        }
    }

    pub(super) fn stop_socket_device(
        &mut self,
        cx: &mut RunnerContext<Self>,
        place: u32,
        reply: Sender<u32>,
    ) {
        if let Some(running) = self.vrings.socket_devices.get_mut(place) {
            running.stop(reply);
            self.io.stop_source(place);
            self.run_and_update(cx, place);
        }
    }

    /// Runs a command for a socket device, if there is one.
    #[cold]
    pub(super) fn control_socket_device(
        &mut self,
        cx: &mut RunnerContext<Self>,
        place: u32,
        command: SocketDeviceCommand,
    ) {
        let (vrings, mut controls) = self.controls(cx, place);
        let Some(running) = vrings.socket_devices.get_mut(place) else {
            return;
        };
        // The receiver of an answer may be gone; ignore the error.
        match command {
            SocketDeviceCommand::Enable(enabled) => {
                running.disabled = !enabled;
                self.run_and_update(cx, place);
            }
            SocketDeviceCommand::Settle(reply) => {
                running.settle(reply);
                controls.io.open_gates(place);
                self.run_and_update(cx, place);
            }
            SocketDeviceCommand::SetNode(node, reply) => {
                running.set_node(&node, || controls.attach(&node));
                running.settle(reply);
                controls.io.open_gates(place);
                self.run_and_update(cx, place);
            }
            SocketDeviceCommand::StopIfIdle(reply) => {
                let idle = running.is_idle();
                if idle {
                    let (ended, _) = std::sync::mpsc::channel();
                    self.stop_socket_device(cx, place, ended);
                }
                let _ = reply.send(idle);
            }
            SocketDeviceCommand::Park(reply) => {
                let _ = reply.send(running.park());
                self.update_watches(cx, place);
            }
            SocketDeviceCommand::Unpark => {
                running.unpark();
                self.update_watches(cx, place);
            }
        }
    }

    fn end_socket_device(&mut self, cx: &mut RunnerContext<Self>, place: u32, reply: &Sender<u32>) {
        let Some(running) = self.vrings.socket_devices.take(place) else {
            return;
        };
        for handler in running.handlers() {
            cx.delete(handler);
        }
        self.lists.forget(place);
        // Before the answer: its receiver may close the disk then, which nothing else may hold.
        for disk in running.into_disks() {
            self.io.detach(disk);
        }
        self.io.source_ended(place);
        self.vrings.remove(place);
        let _ = reply.send(0);
    }
}
