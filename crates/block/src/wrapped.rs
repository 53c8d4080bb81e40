//! A node that changes the routes of another one by a function, for tests and the simulator: it adds gates or marks.

use std::sync::Arc;

use crate::node::AttachContext;
use crate::node::Driver;
use crate::node::Node;
use crate::route::Route;

/// The driver of a node that changes the routes below it.
struct RouteWrapper<F> {
    below: Arc<Node>,
    wrap: F,
}

impl<F: Fn(Route) -> Route + Send + Sync> Driver for RouteWrapper<F> {
    fn below(&self) -> Option<(&Arc<Node>, u64)> {
        Some((&self.below, 0))
    }

    fn attach(&self, _: &Node, cx: &mut AttachContext<'_>) -> Route {
        (self.wrap)(cx.attach(&self.below))
    }
}

impl Node {
    /// A node in front of another one, with its routes as `wrap` changes them.
    pub(crate) fn with_wrapped_routes(
        name: &str,
        below: &Arc<Node>,
        wrap: impl Fn(Route) -> Route + Send + Sync + 'static,
    ) -> Arc<Node> {
        let driver = RouteWrapper {
            below: below.clone(),
            wrap,
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
