//! Driver `throttle`: a filter whose requests wait as the limits of its throttle group say.

use std::sync::Arc;

use crate::node::{AttachContext, Driver, Node};
use crate::route::OpHandler;
use crate::route::Route;
use crate::route::gate::GatedRoute;
use crate::throttle::{ThrottleGate, ThrottleMember};

/// The driver of a throttled node.
pub(crate) struct ThrottleFilter {
    pub below: Arc<Node>,
    pub member: Arc<ThrottleMember>,
}

impl Driver for ThrottleFilter {
    fn below(&self) -> Option<(&Arc<Node>, u64)> {
        Some((&self.below, 0))
    }

    fn throttle(&self) -> Option<&Arc<ThrottleMember>> {
        Some(&self.member)
    }

    /// Makes the route below, and a gate in front of it. Requests are not merged: those of the guest are counted.
    fn attach_route(&self, node: &Node, cx: &mut AttachContext<'_>) -> Route {
        let mut below = cx.attach_route(&self.below);
        below.merging_helps = false;
        if !node.passes_discards() {
            below.discard = OpHandler::Nothing;
        }
        GatedRoute::gate_data_requests(ThrottleGate::new(&self.member, node.name()), below)
    }
}
