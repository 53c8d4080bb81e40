//! A node of the simulator whose gate delays every other request for some iterations of its iothread.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use engine::Request;

use crate::node::Node;
use crate::route::gate::{Gate, GatedRoute};
use crate::route::task::{LocalFuture, TaskContext};

/// A gate at which every other request waits for so many iterations of its iothread.
struct AlternatingGate {
    turns: u32,
    waits: Cell<bool>,
}

impl Gate for AlternatingGate {
    fn try_pass(&self, _: &Request) -> bool {
        self.waits.replace(!self.waits.get())
    }

    /// Is pending, and wakes itself at once, for as many polls as there are turns: one in each iteration.
    fn wait_to_pass(self: Rc<Self>, _: TaskContext, _: Request) -> LocalFuture<()> {
        let mut left = self.turns;
        Box::pin(std::future::poll_fn(move |cx| {
            if left == 0 {
                return Poll::Ready(());
            }
            left -= 1;
            cx.waker().wake_by_ref();
            Poll::Pending
        }))
    }

    fn on_bypass(&self, _: &Request) {}
}

impl Node {
    /// A node in front of another one, at which every other request waits for so many iterations of its iothread.
    #[must_use]
    pub fn with_alternating_gate(name: &str, below: &Arc<Node>, turns: u32) -> Arc<Node> {
        let wrap = move |below| {
            let waits = Cell::new(false);
            GatedRoute::gate_data_requests(Rc::new(AlternatingGate { turns, waits }), below)
        };
        Node::with_changed_routes_for_test(name, below, wrap)
    }
}
