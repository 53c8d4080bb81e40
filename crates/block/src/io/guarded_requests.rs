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

    /// The token that the source has given to a request, which guards may have replaced.
    pub fn source_token(&self, mut token: u64) -> u64 {
        while let Some(own) = self.original_token(token) {
            token = own;
        }
        token
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
    use crate::route::task::{LocalFuture, TaskContext, TaskNode};
    use crate::route::{FileTarget, LookupResult, MappedNode, OpHandler, Route};
    use crate::source::AttachedDisk;
    use crate::{Aio, Node, testing};
    use engine::Errno;
    use engine::{Op, Request};
    use std::future::poll_fn;
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

    fn add_lookup(map: Arc<Mapping>, below: Route) -> Route {
        let target = below.disk.clone().unwrap();
        let lookup = Rc::new(ImageRoute {
            below: below.clone(),
            target,
            map,
        });
        Route {
            read: OpHandler::Lookup(lookup.clone()),
            write: OpHandler::Lookup(lookup),
            merging_helps: false,
            ..below
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
        let lookup = map.clone();
        let node = Node::with_changed_routes_for_test("image", &below, move |below| {
            add_lookup(lookup.clone(), below)
        });
        (node, map)
    }

    /// Submits a read of a cluster with token 100 and its number.
    fn read(io: &mut IoContext, disk: &AttachedDisk, cluster: u64) -> &'static [u8] {
        let memory = vec![0xee; CLUSTER_BYTES];
        let read = (Op::Read, cluster * CLUSTER);
        testing::submit(io, disk, read, memory, 100 + cluster)
    }

    fn is_full_of(memory: &[u8], byte: u8) -> bool {
        memory.iter().all(|found| *found == byte)
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
        let window = testing::window(&image, CLUSTER);
        let filter = testing::filter(&window, []);
        for (node, first) in [(&image, 1), (&window, 0), (&filter, 0)] {
            let (mut io, route) = testing::attached(node);
            let clusters = [first, first + 1, first + 2];
            let reads = clusters.map(|cluster| read(&mut io, &route, cluster));
            let done = wait(&mut io, 3);
            assert_eq!(done, clusters.map(|cluster| (100 + cluster, Ok(()))));
            for (read, byte) in reads.iter().zip([5, 0, 6]) {
                assert!(is_full_of(read, byte), "{byte}");
            }
            let tasks = map.tasks.swap(0, Ordering::Relaxed);
            assert_eq!(tasks, 1, "only the request that the lookup declines");
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
            reads.push(read(io, &routes[routes.len() - 1], 0));
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
        let later = read(second, &routes[1], 1);
        let mut all = pin!(map.leases.wait_for_current_leases_async());
        assert!(all.as_mut().poll(&mut cx).is_pending());
        assert_eq!(wakes.0.load(Ordering::Relaxed), 0);
        assert_eq!(wait(first, 1), [(100, Ok(()))]);
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
        assert!(settled.as_mut().poll(&mut cx).is_ready());
        assert!(all.as_mut().poll(&mut cx).is_pending());
        assert_eq!(wait(second, 1), [(101, Ok(()))]);
        assert!(all.as_mut().poll(&mut cx).is_ready());
        assert!(reads.iter().all(|read| is_full_of(read, 3)));
        assert!(is_full_of(later, 4));
    }

    /// The backend still has the request.
    #[test]
    fn a_task_that_leaves_a_mapped_request_keeps_its_lease() {
        let (image, map) = image(&[Place::At(3)]);
        let (mut io, below) = testing::attached(&image);
        let null = testing::null();
        let mut disk = testing::attach(&mut io, &null);
        disk.route.read = OpHandler::Task(Rc::new(LeavesIo(below.route)));
        let read = read(&mut io, &disk, 0);
        io.poll_tasks_and_submit();
        let mut settled = pin!(map.leases.wait_for_current_leases_async());
        let mut cx = Context::from_waker(Waker::noop());
        assert!(settled.as_mut().poll(&mut cx).is_pending());
        assert_eq!(wait(&mut io, 1), [(100, Err(Errno::CANCELED))]);
        assert!(settled.as_mut().poll(&mut cx).is_ready());
        assert!(is_full_of(read, 3));
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
        let mut count_ready = || {
            let polls = settled.iter_mut().map(|it| it.as_mut().poll(&mut cx));
            polls.filter(Poll::is_ready).count()
        };
        assert_eq!(count_ready(), 0);
        drop(lease);
        assert_eq!(count_ready(), 100_000);
    }

    #[test]
    fn a_request_that_is_refused_below_two_marks_frees_each_entry_once() {
        let null = testing::null();
        let window = testing::window(&null, 4096);
        for node in [&null, &window] {
            node.bitmaps().let_new_routes_record(true);
        }
        let (mut io, disk) = testing::attached(&window);
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
