//! Socket devices in the phases of an iothread. None of it is on the way of a queue's request.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use block::Node;

use super::{Handler, QueueRunner};
use crate::event_loop::iothread::RunnerContext;
use crate::messages::SocketDeviceCommand;
use crate::socket_device::SocketDevice;
use crate::socket_devices::{RunningSocketDevice, now_ns};

/// While rings are polled for, one of so many looks at them is at a socket as well: it costs about as much as they do.
const RING_LOOKS: u32 = 8;

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
        self.tend(cx, place);
        place
    }

    /// Its turn, among what has something to publish.
    #[cold]
    pub(super) fn run_socket_device(&mut self, place: u32) {
        let Some(running) = self.vrings.socket_devices.get_mut(place) else {
            return;
        };
        if !running.run(&mut self.io, now_ns()) {
            self.lists.stall(place);
        }
        if running.wants_loop() {
            self.vrings.socket_devices.want_loop(place);
        }
    }

    /// Its turn comes next.
    fn schedule_socket_device(&mut self, place: u32) {
        if self.vrings.socket_devices.get_mut(place).is_some() {
            self.lists.unpublished.insert(place);
        }
    }

    /// Looks at the socket of one that is polled for.
    #[cold]
    pub(super) fn poll_next_socket(&mut self) -> bool {
        self.looks = self.looks.wrapping_add(1);
        if !self.lists.active.is_empty() && !self.looks.is_multiple_of(RING_LOOKS) {
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

    /// A descriptor of a socket device's is ready.
    #[cold]
    pub(super) fn socket_device_ready(&mut self, place: u32, source: u8) {
        if let Some(running) = self.vrings.socket_devices.get_mut(place) {
            running.ready(source, now_ns());
            self.schedule_socket_device(place);
        }
    }

    /// Its turn, and then what it needs of the loop.
    fn tend(&mut self, cx: &mut RunnerContext<Self>, place: u32) {
        self.run_socket_device(place);
        self.look_after(cx, place);
    }

    /// What socket devices need of the loop.
    #[cold]
    pub(super) fn tend_waiting_socket_devices(&mut self, cx: &mut RunnerContext<Self>) {
        while let Some(place) = self.vrings.socket_devices.next_wanting() {
            self.look_after(cx, place);
        }
    }

    fn look_after(&mut self, cx: &mut RunnerContext<Self>, place: u32) {
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
                "a device's socket cannot be watched: its front-end is sent away"
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

    /// The runner's timer has expired, which is one for all.
    #[cold]
    pub(super) fn tend_all(&mut self, cx: &mut RunnerContext<Self>) {
        for place in self.vrings.socket_devices.places() {
            self.tend(cx, place);
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
            self.tend(cx, place);
        }
    }

    /// A command for one, if there is one.
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
                self.tend(cx, place);
            }
            SocketDeviceCommand::Settle(reply) => {
                running.settle(reply);
                controls.io.open_gates(place);
                self.tend(cx, place);
            }
            SocketDeviceCommand::SetNode(node, reply) => {
                running.set_node(&node, || controls.attach(&node));
                running.settle(reply);
                controls.io.open_gates(place);
                self.tend(cx, place);
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
                self.look_after(cx, place);
            }
            SocketDeviceCommand::Unpark => {
                running.unpark();
                self.look_after(cx, place);
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
        // Before the answer: its receiver may close the disk then, and finds that nothing else holds it.
        for disk in running.into_disks() {
            self.io.detach(disk);
        }
        self.io.source_ended(place);
        self.vrings.remove(place);
        let _ = reply.send(0);
    }
}
