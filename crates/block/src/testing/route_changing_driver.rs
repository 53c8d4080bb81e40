//! Driver of a node that changes the routes of the node below it by a function, for tests and the simulator: the function
//! adds gates or marks.

use std::sync::Arc;

use crate::node::AttachContext;
use crate::node::Driver;
use crate::node::Node;
use crate::route::Route;

/// The driver of a node that changes the routes of the node below it.
struct RouteChangingTestDriver<F> {
    below: Arc<Node>,
    change: F,
}

impl<F: Fn(Route) -> Route + Send + Sync> Driver for RouteChangingTestDriver<F> {
    fn below(&self) -> Option<(&Arc<Node>, u64)> {
        Some((&self.below, 0))
    }

    fn attach_route(&self, _: &Node, cx: &mut AttachContext<'_>) -> Route {
        (self.change)(cx.attach_route(&self.below))
    }
}

impl Node {
    /// A node in front of another one, with its routes as `change` returns them.
    pub(crate) fn with_changed_routes_for_test(
        name: &str,
        below: &Arc<Node>,
        change: impl Fn(Route) -> Route + Send + Sync + 'static,
    ) -> Arc<Node> {
        let driver = RouteChangingTestDriver {
            below: below.clone(),
            change,
        };
        Node::new(
            name,
            below.geometry(),
            below.read_only(),
            below.passes_discards(),
            Box::new(driver),
        )
    }
}
