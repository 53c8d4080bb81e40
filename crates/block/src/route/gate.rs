//! Gates, which decide when the requests of a route start, for example for a limit of requests per second.
//!
//! A request that the gate's [`Allowance`] lets pass costs a few instructions, another one that passes at once a call. One that
//! has to wait becomes a [task](crate::route::task), which waits at the gate and then continues on the route behind it. The
//! request has not started while it waits, so a source that ends, or whose node is exchanged, does not wait for it: it bypasses
//! the gate.

mod allowance;

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use engine::{Errno, Request};

pub(crate) use self::allowance::{Allowance, PassedRequests};

use crate::route::task::{LocalFuture, TaskContext, TaskNode};
use crate::route::{OpHandler, Route};

/// Decides when the requests of one route start.
///
/// Each request is counted once: when it passes at once, when its wait ends, or when it bypasses the gate.
pub(crate) trait Gate {
    /// What may pass without [`Self::try_pass`].
    fn allowance(&self) -> Rc<Allowance> {
        Rc::default()
    }

    /// Lets a request pass at once. False: it has to wait.
    fn try_pass(&self, request: &Request) -> bool;

    /// Waits until a request may pass. Dropping the future earlier removes the request from the gate's queue.
    fn wait_to_pass(self: Rc<Self>, cx: TaskContext, request: Request) -> LocalFuture<()>;

    /// Counts a request that starts without waiting any longer, because its source ends or waits for it.
    fn on_bypass(&self, request: &Request);
}

/// A gate, and the route behind it.
pub(crate) struct GatedRoute {
    pub gate: Rc<dyn Gate>,
    allowance: Rc<Allowance>,
    pub below: Route,
}

impl GatedRoute {
    /// A gate in front of a route.
    pub fn new(gate: Rc<dyn Gate>, below: Route) -> Self {
        GatedRoute {
            allowance: gate.allowance(),
            gate,
            below,
        }
    }

    /// Lets a request pass at once. False: it has to wait.
    #[inline]
    pub fn try_pass(&self, request: &Request) -> bool {
        self.allowance.take(request) || self.gate.try_pass(request)
    }

    /// Waits until the gate lets a request pass, or the request bypasses it because its source stops or waits for it.
    pub async fn wait_to_pass_or_bypass(&self, cx: &TaskContext, request: Request) {
        let mut pass = self.gate.clone().wait_to_pass(cx.clone(), request);
        let has_passed = poll_fn(|polled| match pass.as_mut().poll(polled) {
            // It may have passed before its source stopped, and is counted then.
            Poll::Ready(()) => Poll::Ready(true),
            Poll::Pending if cx.is_stopping() || cx.may_bypass_gates() => Poll::Ready(false),
            Poll::Pending => Poll::Pending,
        });
        if !has_passed.await {
            drop(pass);
            self.gate.on_bypass(&request);
        }
    }

    /// The route with a gate in front of reads, and of what changes data, discards among it. Flushes do not wait.
    pub fn gate_data_requests(gate: Rc<dyn Gate>, below: Route) -> Route {
        let gated = Rc::new(GatedRoute::new(gate, below.clone()));
        let handler = || OpHandler::Gated(gated.clone());
        Route {
            read: handler(),
            write: handler(),
            zeroes: handler(),
            discard: match below.discard {
                OpHandler::Nothing => OpHandler::Nothing,
                _ => handler(),
            },
            ..below
        }
    }
}

/// The async task of a request that has to wait.
impl TaskNode for GatedRoute {
    fn needed_buffer_bytes(&self, request: &Request) -> usize {
        self.below.needed_buffer_bytes(request)
    }

    fn run(self: Rc<Self>, cx: TaskContext, request: Request) -> LocalFuture<Result<(), Errno>> {
        Box::pin(async move {
            self.wait_to_pass_or_bypass(&cx, request).await;
            cx.run_on_route(&self.below, request).await
        })
    }
}
