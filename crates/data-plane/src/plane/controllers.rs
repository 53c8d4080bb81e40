//! What the plane does for its controllers. None of it is on the way of a queue's request.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use block::Node;
use event_loop::Interest;
use event_loop::iothread::PlaneContext;

use super::{Handler, StoragePlane};
use crate::controller::{Controller, ControllerError};
use crate::controllers::{Running, TEND, now_ns};

impl StoragePlane {
    pub(super) fn start_controller(
        &mut self,
        cx: &mut PlaneContext<Self>,
        controller: Box<dyn Controller>,
        nodes: Vec<Arc<Node>>,
    ) -> Result<u32, ControllerError> {
        let place = self.vrings.reserve();
        let started = Running::new(controller, nodes, place).and_then(|mut running| {
            let handler = Handler::Controller(place, TEND);
            running.tend_handler =
                Some(cx.add(running.tend_fd()?, Interest::ReadableEdge, handler)?);
            Ok(running)
        });
        let running = match started {
            Ok(running) => running,
            Err(error) => {
                self.vrings.remove(place);
                return Err(error);
            }
        };
        for node in running.nodes() {
            self.attach(cx, node);
        }
        self.vrings.controllers.put(running);
        self.lists.make_room(self.vrings.count());
        self.trace.make_room(self.vrings.count());
        self.tend(cx, place);
        Ok(place)
    }

    /// Its turn, among what has something to publish.
    #[cold]
    pub(super) fn run_controller(&mut self, place: u32) {
        let Some(running) = self.vrings.controllers.get_mut(place) else {
            return;
        };
        running.due = false;
        if !running.run(&mut self.engines, now_ns()) {
            self.lists.stall_controller(place);
        }
    }

    /// A descriptor of a controller's is ready, or it wants to be looked after.
    #[cold]
    pub(super) fn controller_ready(&mut self, cx: &mut PlaneContext<Self>, place: u32, source: u8) {
        let now_ns = cx.now_ns();
        if let Some(running) = self.vrings.controllers.get_mut(place) {
            running.ready(source, now_ns);
            self.tend(cx, place);
        }
    }

    /// Its turn, and then what it needs of the loop.
    pub(super) fn tend(&mut self, cx: &mut PlaneContext<Self>, place: u32) {
        self.run_controller(place);
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
        let deadline_ns = running.deadline_ns();
        for handler in deleted {
            cx.delete(handler);
        }
        if let Err(error) = watched {
            tracing::error!(
                %error,
                advice = "raise `ulimit -n` (`LimitNOFILE=`)",
                "a device's socket cannot be watched: its front-end is sent away"
            );
            self.disconnect_controller(place);
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
            self.engines.hold_no_more(place);
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

    fn end_controller(&mut self, cx: &mut PlaneContext<Self>, place: u32, reply: &Sender<u32>) {
        let Some(running) = self.vrings.controllers.take(place) else {
            return;
        };
        for handler in running.handlers() {
            cx.delete(handler);
        }
        self.lists.forget_controller(place);
        let nodes = running.nodes().to_vec();
        // Before the answer: whoever gets it may close the disk and finds that nobody else holds it.
        drop(running);
        for node in nodes {
            self.engines.detach(&node);
        }
        self.engines.may_hold(place);
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
        self.attach(cx, node);
        let running = self.vrings.controllers.get_mut(place);
        match running.and_then(|running| running.set_node(node)) {
            Some(old) => self.engines.detach(&old),
            None => self.engines.detach(node),
        }
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
