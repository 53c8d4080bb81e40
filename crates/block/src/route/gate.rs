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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use std::sync::{Arc, Mutex};
    use std::task::Waker;

    use engine::{Completion, Op};

    use super::*;
    use crate::{Aio, AttachedDisk, FaultRules, Faults, IoContext, Node, testing};

    const LEN: usize = 8192;
    const SOURCE: u32 = 3;

    /// State that the gates of all routes share.
    #[derive(Default)]
    struct Seen {
        is_open: AtomicBool,
        passed: AtomicU32,
        bypassed: AtomicU32,
        waiting: Mutex<Vec<Waker>>,
    }

    impl Seen {
        fn open(&self) {
            self.is_open.store(true, Ordering::Relaxed);
            self.waiting.lock().unwrap().drain(..).for_each(Waker::wake);
        }

        fn counted(&self) -> [u32; 2] {
            [&self.passed, &self.bypassed].map(|count| count.load(Ordering::Relaxed))
        }
    }

    struct Turnstile(Arc<Seen>);

    impl Gate for Turnstile {
        fn try_pass(&self, _: &Request) -> bool {
            let is_open = self.0.is_open.load(Ordering::Relaxed);
            self.0
                .passed
                .fetch_add(u32::from(is_open), Ordering::Relaxed);
            is_open
        }

        fn wait_to_pass(self: Rc<Self>, _: TaskContext, request: Request) -> LocalFuture<()> {
            Box::pin(poll_fn(move |cx| {
                if self.try_pass(&request) {
                    return Poll::Ready(());
                }
                self.0.waiting.lock().unwrap().push(cx.waker().clone());
                Poll::Pending
            }))
        }

        fn on_bypass(&self, _: &Request) {
            self.0.bypassed.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn gated(below: &Arc<Node>, seen: &Arc<Seen>) -> Arc<Node> {
        let seen = seen.clone();
        Node::with_changed_routes_for_test("gated", below, move |below| {
            GatedRoute::gate_data_requests(Rc::new(Turnstile(seen.clone())), below)
        })
    }

    fn file(folder: &tempfile::TempDir) -> Arc<Node> {
        testing::file(&folder.path().join("disk"), &[7; LEN], Aio::Threads)
    }

    /// Reads all of it.
    fn read(io: &mut IoContext, disk: &AttachedDisk, number: u64) -> &'static [u8] {
        let token = u64::from(SOURCE) << 32 | number;
        let bytes = usize::try_from(disk.node().size()).unwrap();
        testing::submit(io, disk, (Op::Read, 0), vec![0; bytes], token)
    }

    /// Runs the phases a few times.
    fn run(io: &mut IoContext) -> Vec<Completion> {
        let mut done = Vec::new();
        for _ in 0..3 {
            io.poll_tasks_and_submit();
            io.reap_and_poll_tasks(&mut done);
        }
        done
    }

    /// By itself, through a window, below a filter, and through another gate that is open.
    #[test]
    fn requests_wait_at_a_closed_gate_and_pass_each_gate_once() {
        let folder = tempfile::tempdir().unwrap();
        let (seen, open) = (Arc::new(Seen::default()), Arc::new(Seen::default()));
        open.open();
        let below = gated(&file(&folder), &seen);
        let window = Node::new_window("window", &below, 4096, None, false, true).unwrap();
        let faults = Faults::new(FaultRules::default());
        let filter = Node::new_filter("filter", &window, faults, false, true);
        let outer = gated(&window, &open);
        for (node, outer_gates) in [(&below, 0), (&window, 0), (&filter, 0), (&outer, 3)] {
            let mut io = testing::io();
            let disk = testing::attach(&mut io, node);
            let reads = [1, 2].map(|number| read(&mut io, &disk, number));
            assert_eq!(run(&mut io), [], "the gate is closed");
            assert_eq!(seen.counted(), [0, 0]);
            seen.open();
            let late = read(&mut io, &disk, 3);
            let done = testing::run_until_completed(&mut io, 3);
            assert!(done.iter().all(|done| done.result == Ok(())), "{done:?}");
            assert!(
                reads
                    .iter()
                    .chain([&late])
                    .all(|read| read.iter().all(|byte| *byte == 7))
            );
            assert_eq!(seen.counted(), [3, 0]);
            assert_eq!(open.counted(), [outer_gates, 0]);
            seen.passed.store(0, Ordering::Relaxed);
            seen.is_open.store(false, Ordering::Relaxed);
            io.detach(disk);
        }
    }

    /// A guest's flush is about what was answered before it.
    #[test]
    fn flushes_do_not_wait_at_gates() {
        let folder = tempfile::tempdir().unwrap();
        let node = gated(&file(&folder), &Arc::default());
        let mut io = testing::io();
        let disk = testing::attach(&mut io, &node);
        read(&mut io, &disk, 1);
        testing::submit(&mut io, &disk, (Op::Flush, 0), Vec::new(), 2);
        let done = testing::run_until_completed(&mut io, 1);
        assert_eq!((done[0].token, done[0].result), (2, Ok(())));
    }

    /// A node is exchanged, and then a queue stops.
    #[test]
    fn a_source_that_waits_for_its_requests_does_not_wait_for_a_gate() {
        let folder = tempfile::tempdir().unwrap();
        let seen = Arc::new(Seen::default());
        let node = gated(&file(&folder), &seen);
        let mut io = testing::io();
        let disk = testing::attach(&mut io, &node);
        read(&mut io, &disk, 1);
        assert_eq!(run(&mut io), []);
        read(&mut io, &disk, 2);
        io.let_current_bypass_gates(SOURCE);
        testing::run_until_completed(&mut io, 2);
        assert_eq!(seen.counted(), [0, 2]);
        read(&mut io, &disk, 3);
        assert_eq!(run(&mut io), [], "it came later");
        io.end_unbounded_waits(SOURCE + 1);
        assert_eq!(run(&mut io), [], "another source stops");
        assert_eq!(seen.counted(), [0, 2], "it still waits");
        io.end_unbounded_waits(SOURCE);
        read(&mut io, &disk, 4);
        testing::run_until_completed(&mut io, 2);
        assert_eq!(seen.counted(), [0, 4]);
    }
}
