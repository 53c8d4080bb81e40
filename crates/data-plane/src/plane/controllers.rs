//! What the plane does for its controllers. None of it is on the way of a queue's request.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use block::Node;
use event_loop::iothread::PlaneContext;

use super::{Handler, StoragePlane};
use crate::controller::{Controller, ControllerDisk};
use crate::controllers::{Running, now_ns};

/// While rings are polled for, one of so many looks at them is at a socket as well: it costs about as much as they do.
const RING_LOOKS: u32 = 8;

impl StoragePlane {
    pub(super) fn start_controller(
        &mut self,
        cx: &mut PlaneContext<Self>,
        controller: Box<dyn Controller>,
        nodes: Vec<Arc<Node>>,
    ) -> u32 {
        let place = self.vrings.reserve();
        let disks = nodes.into_iter().map(|node| ControllerDisk {
            route: self.attach(cx, &node),
            node,
        });
        let running = Running::new(controller, disks.collect(), place);
        self.vrings.controllers.put(running);
        self.lists.make_room(self.vrings.count());
        self.trace.make_room(self.vrings.count());
        self.tend(cx, place);
        place
    }

    /// Its turn, among what has something to publish.
    #[cold]
    pub(super) fn run_controller(&mut self, place: u32) {
        let Some(running) = self.vrings.controllers.get_mut(place) else {
            return;
        };
        if !running.run(&mut self.engines, now_ns()) {
            self.lists.stall(place);
        }
        if running.wants_loop() {
            self.vrings.controllers.want_loop(place);
        }
    }

    /// Its turn comes next.
    fn make_controller_due(&mut self, place: u32) {
        if self.vrings.controllers.get_mut(place).is_some() {
            self.lists.unpublished.insert(place);
        }
    }

    /// Looks at the socket of one that is polled for.
    #[cold]
    pub(super) fn look_at_controller(&mut self) -> bool {
        self.looks = self.looks.wrapping_add(1);
        if !self.lists.active.is_empty() && !self.looks.is_multiple_of(RING_LOOKS) {
            return false;
        }
        let Some(running) = self.vrings.controllers.next_polled() else {
            return false;
        };
        let found = running.look();
        if found {
            let place = running.place();
            self.make_controller_due(place);
        }
        found
    }

    /// A descriptor of a controller's is ready.
    #[cold]
    pub(super) fn controller_ready(&mut self, place: u32, source: u8) {
        if let Some(running) = self.vrings.controllers.get_mut(place) {
            running.ready(source, now_ns());
            self.make_controller_due(place);
        }
    }

    /// Its turn, and then what it needs of the loop.
    fn tend(&mut self, cx: &mut PlaneContext<Self>, place: u32) {
        self.run_controller(place);
        self.look_after(cx, place);
    }

    /// What controllers need of the loop.
    #[cold]
    pub(super) fn look_after_controllers(&mut self, cx: &mut PlaneContext<Self>) {
        while let Some(place) = self.vrings.controllers.next_wanting() {
            self.look_after(cx, place);
        }
    }

    fn look_after(&mut self, cx: &mut PlaneContext<Self>, place: u32) {
        let Some(running) = self.vrings.controllers.get_mut(place) else {
            return;
        };
        if let Some(reply) = running.ended() {
            return self.end_controller(cx, place, &reply);
        }
        let mut deleted = Vec::new();
        let watched = running.watch(
            |fd, interest, source| cx.add(fd, interest, Handler::Controller(place, source)),
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
            self.disconnect_controller(place);
        }
        if more || watched.is_err() {
            self.make_controller_due(place);
        }
        if let Some(deadline_ns) = deadline_ns {
            self.arm_timer_for(cx, deadline_ns);
        }
    }

    fn disconnect_controller(&mut self, place: u32) {
        if let Some(running) = self.vrings.controllers.get_mut(place) {
            running.disconnect();
        }
    }

    /// The plane's timer has expired, which is one for all.
    #[cold]
    pub(super) fn tend_all(&mut self, cx: &mut PlaneContext<Self>) {
        for place in self.vrings.controllers.places() {
            self.tend(cx, place);
        }
    }

    pub(super) fn stop_controller(
        &mut self,
        cx: &mut PlaneContext<Self>,
        place: u32,
        reply: Sender<u32>,
    ) {
        if let Some(running) = self.vrings.controllers.get_mut(place) {
            running.stop(reply);
            self.engines.stop_source(place);
            self.tend(cx, place);
        }
    }

    /// Stops it if no front-end is there and nothing is in flight; the answer says whether that is so.
    pub(super) fn stop_idle_controller(
        &mut self,
        cx: &mut PlaneContext<Self>,
        place: u32,
        reply: &Sender<bool>,
    ) {
        let idle = match self.vrings.controllers.get_mut(place) {
            Some(running) => running.is_idle(),
            None => true,
        };
        if idle {
            let (ended, _) = std::sync::mpsc::channel();
            self.stop_controller(cx, place, ended);
        }
        let _ = reply.send(idle);
    }

    /// Nobody connects to it from now on; the answer says whether somebody is there, so that it cannot be.
    pub(super) fn park_controller(
        &mut self,
        cx: &mut PlaneContext<Self>,
        place: u32,
        reply: &Sender<bool>,
    ) {
        if let Some(running) = self.vrings.controllers.get_mut(place) {
            let _ = reply.send(running.park());
            self.look_after(cx, place);
        }
    }

    pub(super) fn go_on_with_controller(&mut self, cx: &mut PlaneContext<Self>, place: u32) {
        if let Some(running) = self.vrings.controllers.get_mut(place) {
            running.go_on();
            self.look_after(cx, place);
        }
    }

    fn end_controller(&mut self, cx: &mut PlaneContext<Self>, place: u32, reply: &Sender<u32>) {
        let Some(running) = self.vrings.controllers.take(place) else {
            return;
        };
        for handler in running.handlers() {
            cx.delete(handler);
        }
        self.lists.forget(place);
        // Before the answer: whoever gets it may close the disk and finds that nobody else holds it.
        for route in running.into_routes() {
            self.engines.detach(route);
        }
        self.engines.source_ended(place);
        self.vrings.remove(place);
        let _ = reply.send(0);
    }

    /// Another opening of one of its disks.
    pub(super) fn set_controller_node(
        &mut self,
        cx: &mut PlaneContext<Self>,
        place: u32,
        node: &Arc<Node>,
    ) {
        if self.vrings.controllers.get_mut(place).is_none() {
            return;
        }
        let new = ControllerDisk {
            route: self.attach(cx, node),
            node: node.clone(),
        };
        let old = match self.vrings.controllers.get_mut(place) {
            Some(running) => running.set_disk(new),
            None => new,
        };
        self.engines.detach(old.route);
    }

    /// It hands requests over, or does not.
    pub(super) fn enable_controller(
        &mut self,
        cx: &mut PlaneContext<Self>,
        place: u32,
        enabled: bool,
    ) {
        if let Some(running) = self.vrings.controllers.get_mut(place) {
            running.disabled = !enabled;
            self.tend(cx, place);
        }
    }

    pub(super) fn settle_controller(
        &mut self,
        cx: &mut PlaneContext<Self>,
        place: u32,
        reply: Sender<()>,
    ) {
        if let Some(running) = self.vrings.controllers.get_mut(place) {
            running.settle(reply);
            self.tend(cx, place);
        }
    }
}
