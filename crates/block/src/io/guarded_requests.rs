//! Requests with a guard that lasts until they complete: a lease on the place that a lookup has found, or a mark.
//!
//! Such a request has another token below this layer: its index in this table in the lower half, and [`token::GUARDED`] in
//! the upper one. Neither sources nor backends know of leases and marks. A request behind several marks has an entry for
//! each.

use engine::Completion;

use crate::lease::Lease;
use crate::route::mark::PendingMark;
use crate::token;

/// A guard that is dropped when its request completes.
pub(super) enum RequestGuard {
    Lease(#[expect(dead_code, reason = "held, and dropped")] Lease),
    Mark(#[expect(dead_code, reason = "held, and dropped")] PendingMark),
}

/// A request with a guard in flight, or a free entry.
struct GuardedEntry {
    /// The request's original token: its source's, or that of another entry.
    token: u64,
    /// `None`: the entry is free.
    guard: Option<RequestGuard>,
}

/// The requests with guards of an iothread.
#[derive(Default)]
pub(super) struct GuardedRequests {
    entries: Vec<GuardedEntry>,
    free: Vec<u32>,
}

impl GuardedRequests {
    /// Whether no request with a guard is in flight.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.entries.len() == self.free.len()
    }

    /// Adds a guard to a request, and returns the token to submit it with.
    pub fn add_guard(&mut self, token: u64, guard: RequestGuard) -> u64 {
        let entry = GuardedEntry {
            token,
            guard: Some(guard),
        };
        if let Some(index) = self.free.pop() {
            self.entries[index as usize] = entry;
            return token::new(token::GUARDED, index);
        }
        self.entries.push(entry);
        let index = u32::try_from(self.entries.len() - 1);
        token::new(
            token::GUARDED,
            index.unwrap_or_else(|_| unreachable!("memory ends before")),
        )
    }

    /// The original token of a request with a guard; `None`: it has none.
    fn original_token(&self, token: u64) -> Option<u64> {
        let is_guarded = token::source_index(token) == token::GUARDED;
        let entry = is_guarded.then(|| self.entries.get(token::request_number(token) as usize));
        Some(entry??.token)
    }

    /// The place of a request's source.
    pub fn source_of(&self, mut token: u64) -> u32 {
        while let Some(own) = self.original_token(token) {
            token = own;
        }
        token::source_index(token)
    }

    /// Drops the guards of a completed request, and returns its source's token.
    pub fn drop_guards_and_unwrap_token(&mut self, mut token: u64) -> u64 {
        while let Some(own) = self.free_entry(token) {
            token = own;
        }
        token
    }

    /// Drops the guard of a request that a backend has refused. Guards of outer entries are dropped by their own callers.
    pub fn drop_guard_of_refused(&mut self, token: u64) {
        self.free_entry(token);
    }

    /// Drops the guard of a token, and returns the request's original token.
    fn free_entry(&mut self, token: u64) -> Option<u64> {
        let own = self.original_token(token)?;
        let index = token::request_number(token);
        self.entries[index as usize].guard = None;
        self.free.push(index);
        Some(own)
    }

    /// Drops the guards of completed requests, and restores the tokens of their sources.
    pub fn drop_guards_of_completed(&mut self, completions: &mut [Completion]) {
        for completion in completions {
            completion.token = self.drop_guards_and_unwrap_token(completion.token);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::io::IoContext;
    use crate::lease::PlaceLeases;
    use crate::node::AttachContext;
    use crate::node::Driver;
    use crate::route::mark::{MarkReceiver, MarkedRoute};
    use crate::route::task::{LocalFuture, TaskContext, TaskNode};
    use crate::route::{FileTarget, LookupResult, MappedNode, OpHandler, Route};
    use crate::source::AttachedDisk;
    use crate::{Aio, FaultRules, Faults, Node, testing};
    use engine::Errno;
    use engine::{Op, Request};
    use std::future::poll_fn;
    use std::ops::Range;
    use std::pin::pin;
    use std::rc::Rc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::{Arc, Mutex};
    use std::task::{Context, Poll, Wake, Waker};

    const CLUSTER_BYTES: usize = 4096;
    const CLUSTER: u64 = CLUSTER_BYTES as u64;

    /// The place of a cluster.
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Place {
        At(u64),
        Zeroes,
        /// At this place, which a task reads from the mapping.
        NotRead(u64),
    }

    /// An image that maps its clusters.
    struct Image {
        below: Arc<Node>,
        map: Arc<Mapping>,
    }

    #[derive(Default)]
    struct Mapping {
        places: Mutex<Vec<Place>>,
        leases: PlaceLeases,
        /// Reads that were not mapped.
        tasks: AtomicU32,
    }

    struct ImageRoute {
        below: Route,
        target: FileTarget,
        map: Arc<Mapping>,
    }

    impl Driver for Image {
        fn attach_route(&self, _: &Node, cx: &mut AttachContext<'_>) -> Route {
            let mut below = cx.attach_route(&self.below);
            let storage = std::mem::take(&mut below.storage);
            let (target, disk) = (below.disk.clone().unwrap(), below.disk.clone());
            let map = self.map.clone();
            let node = Rc::new(ImageRoute { below, target, map });
            Route {
                read: OpHandler::Lookup(node.clone()),
                write: OpHandler::Lookup(node),
                zeroes: OpHandler::Nothing,
                discard: OpHandler::Nothing,
                flush: OpHandler::Nothing,
                storage,
                merging_helps: false,
                disk,
            }
        }
    }

    impl MappedNode for ImageRoute {
        fn lookup(&self, request: &Request) -> Option<LookupResult> {
            let cluster = usize::try_from(request.offset / CLUSTER).unwrap();
            let places = self.map.places.lock().unwrap();
            match (places[cluster], request.op) {
                (Place::At(at), _) => {
                    let offset = at * CLUSTER + request.offset % CLUSTER;
                    Some(LookupResult::At(offset, self.map.leases.take_lease()))
                }
                (Place::Zeroes, Op::Read) => Some(LookupResult::Zeroes),
                _ => None,
            }
        }

        fn target(&self) -> &FileTarget {
            &self.target
        }
    }

    impl TaskNode for ImageRoute {
        fn run(
            self: Rc<Self>,
            cx: TaskContext,
            request: Request,
        ) -> LocalFuture<Result<(), Errno>> {
            Box::pin(async move {
                self.map.tasks.fetch_add(1, Ordering::Relaxed);
                let cluster = usize::try_from(request.offset / CLUSTER).unwrap();
                let Place::NotRead(at) = self.map.places.lock().unwrap()[cluster] else {
                    return Err(Errno::IO);
                };
                cx.sleep_ns(1).await;
                let offset = at * CLUSTER + request.offset % CLUSTER;
                cx.run_on_route(&self.below, Request { offset, ..request })
                    .await
            })
        }
    }

    /// A task that begins with its request and then leaves it.
    struct LeavesIo(Route);

    impl TaskNode for LeavesIo {
        fn run(
            self: Rc<Self>,
            cx: TaskContext,
            request: Request,
        ) -> LocalFuture<Result<(), Errno>> {
            Box::pin(async move {
                let mut io = Box::pin(cx.run_on_route(&self.0, request));
                let first = poll_fn(|cx| Poll::Ready(io.as_mut().poll(cx))).await;
                assert!(first.is_pending());
                Err(Errno::CANCELED)
            })
        }
    }

    /// A node whose clusters are at these places of a file, in which each cluster is full of its number.
    fn image(places: &[Place]) -> (Arc<Node>, Arc<Mapping>) {
        let file = tempfile::NamedTempFile::new().unwrap();
        let clusters = (0..8u8).flat_map(|number| [number; CLUSTER_BYTES]);
        let below = testing::file(file.path(), &clusters.collect::<Vec<_>>(), Aio::Threads);
        let map = Arc::new(Mapping {
            places: Mutex::new(places.to_vec()),
            ..Mapping::default()
        });
        let geometry = below.geometry();
        let driver = Image {
            below,
            map: map.clone(),
        };
        let node = Node::new("image", geometry, false, true, Box::new(driver));
        (node, map)
    }

    /// A read of a cluster.
    struct Read {
        memory: &'static [u8],
    }

    impl Read {
        fn submit(io: &mut IoContext, disk: &AttachedDisk, cluster: u64) -> Read {
            let (read, memory) = ((Op::Read, cluster * CLUSTER), vec![0xee; CLUSTER_BYTES]);
            let memory = testing::submit(io, disk, read, memory, 100 + cluster);
            Read { memory }
        }

        fn byte(&self) -> u8 {
            assert!(self.memory.iter().all(|byte| *byte == self.memory[0]));
            self.memory[0]
        }
    }

    /// Waits until so many requests have completed; tokens and results, in order of the tokens.
    fn wait(io: &mut IoContext, count: usize) -> Vec<(u64, Result<(), Errno>)> {
        let done = testing::run_until_completed(io, count);
        let mut done: Vec<_> = done.iter().map(|done| (done.token, done.result)).collect();
        done.sort_unstable_by_key(|(token, _)| *token);
        done
    }

    #[derive(Default)]
    struct Wakes(AtomicU32);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Directly, through a window that begins inside, and below a filter, which is a task.
    #[test]
    fn a_lookup_finds_a_place_or_zeroes_or_declines_to_a_task() {
        let places = [
            Place::NotRead(1),
            Place::At(5),
            Place::Zeroes,
            Place::NotRead(6),
        ];
        let (image, map) = image(&places);
        let window = Node::new_window("window", &image, CLUSTER, None, false, true).unwrap();
        let faults = Faults::new(FaultRules::default());
        let filter = Node::new_filter("filter", &window, faults, false, true);
        for (node, first) in [(&image, 1), (&window, 0), (&filter, 0)] {
            let mut io = testing::io();
            let route = testing::attach(&mut io, node);
            let reads =
                [first, first + 1, first + 2].map(|cluster| Read::submit(&mut io, &route, cluster));
            let done = wait(&mut io, 3);
            assert_eq!(
                done,
                [first, first + 1, first + 2].map(|cluster| (100 + cluster, Ok(())))
            );
            assert_eq!(reads.map(|read| read.byte()), [5, 0, 6]);
            assert_eq!(
                map.tasks.swap(0, Ordering::Relaxed),
                1,
                "only the request that the lookup declines"
            );
            assert!(io.guarded.is_empty());
            io.detach(route);
        }
    }

    /// A discard frees a place that a request of another iothread is in flight to.
    #[test]
    fn settling_waits_for_mapped_requests_of_all_iothreads_and_no_later_ones() {
        let (image, map) = image(&[Place::At(3), Place::At(4)]);
        let mut iothreads = [testing::io(), testing::io()];
        let mut routes = Vec::new();
        let mut reads = Vec::new();
        for io in &mut iothreads {
            routes.push(testing::attach(io, &image));
            reads.push(Read::submit(io, &routes[routes.len() - 1], 0));
        }
        map.places.lock().unwrap()[0] = Place::Zeroes;
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(wakes.clone());
        let mut cx = Context::from_waker(&waker);
        let mut settled = pin!(map.leases.wait_for_current_leases_async());
        assert!(settled.as_mut().poll(&mut cx).is_pending());
        let [first, second] = &mut iothreads;
        assert_eq!(wait(second, 1), [(100, Ok(()))]);
        assert!(
            settled.as_mut().poll(&mut cx).is_pending(),
            "the other iothread's is in flight"
        );
        let later = Read::submit(second, &routes[1], 1);
        let mut all = pin!(map.leases.wait_for_current_leases_async());
        assert!(all.as_mut().poll(&mut cx).is_pending());
        assert_eq!(wakes.0.load(Ordering::Relaxed), 0);
        assert_eq!(wait(first, 1), [(100, Ok(()))]);
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
        assert!(settled.as_mut().poll(&mut cx).is_ready());
        assert!(all.as_mut().poll(&mut cx).is_pending());
        assert_eq!(wait(second, 1), [(101, Ok(()))]);
        assert!(all.as_mut().poll(&mut cx).is_ready());
        assert_eq!(reads.iter().map(Read::byte).collect::<Vec<_>>(), [3, 3]);
        assert_eq!(later.byte(), 4);
    }

    /// The backend still has the request.
    #[test]
    fn a_task_that_leaves_a_mapped_request_keeps_its_lease() {
        let (image, map) = image(&[Place::At(3)]);
        let mut io = testing::io();
        let below = testing::attach(&mut io, &image);
        let null = testing::null();
        let mut disk = testing::attach(&mut io, &null);
        disk.route.read = OpHandler::Task(Rc::new(LeavesIo(below.route)));
        let read = Read::submit(&mut io, &disk, 0);
        io.poll_tasks_and_submit();
        let mut settled = pin!(map.leases.wait_for_current_leases_async());
        let mut cx = Context::from_waker(Waker::noop());
        assert!(settled.as_mut().poll(&mut cx).is_pending());
        assert_eq!(wait(&mut io, 1), [(100, Err(Errno::CANCELED))]);
        assert!(settled.as_mut().poll(&mut cx).is_ready());
        assert_eq!(read.byte(), 3);
    }

    /// While one request is in flight, any number of places may be freed.
    #[test]
    fn a_hundred_thousand_generations_end_without_overflowing_the_stack() {
        let leases = PlaceLeases::default();
        let lease = leases.take_lease();
        let mut settled: Vec<_> = (0..100_000)
            .map(|_| Box::pin(leases.wait_for_current_leases_async()))
            .collect();
        let mut cx = Context::from_waker(Waker::noop());
        assert!(
            settled
                .iter_mut()
                .all(|it| it.as_mut().poll(&mut cx).is_pending())
        );
        drop(lease);
        assert!(
            settled
                .iter_mut()
                .all(|it| it.as_mut().poll(&mut cx).is_ready())
        );
    }

    struct NoMarks;

    impl MarkReceiver for NoMarks {
        fn mark_range_as_changed(&self, _: Range<u64>) {}
    }

    #[test]
    fn a_request_that_is_refused_below_two_marks_frees_each_entry_once() {
        let null = testing::null();
        let wrap = |below| MarkedRoute::mark_changes(Arc::new(NoMarks), below);
        let node = Node::with_changed_routes_for_test(
            "outer",
            &Node::with_changed_routes_for_test("inner", &null, wrap),
            wrap,
        );
        let mut io = testing::io();
        let disk = testing::attach(&mut io, &node);
        let request = |token| Request::without_data(Op::Write, 0, 0, token);
        // SAFETY: there are no segments.
        let mut submit = |token| unsafe { io.submit(&disk, request(token)) };
        let taken = (0..).take_while(|token| submit(*token).is_ok()).count();
        let mut done = Vec::new();
        io.reap_and_poll_tasks(&mut done);
        assert!(done.iter().map(|done| done.token).eq(0..taken as u64));
        assert!(io.guarded.is_empty());
    }
}
