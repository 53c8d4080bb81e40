//! Tests of the executor.

use super::super::buffers::MAX_BYTES;
use super::super::io_future::IoFuture;
use super::*;
use crate::route::Carrier;
use crate::testing;
use crate::token;
use std::cell::Cell;
use std::future::poll_fn;
use std::sync::Arc;

use engine::Op;

/// A node whose requests do what a function says, and need memory for I/O of their own.
struct TestNode<F> {
    run: F,
    needed_bytes: usize,
}

impl<F: Fn(TaskContext) -> LocalFuture<Result<(), Errno>>> TaskNode for TestNode<F> {
    fn needed_buffer_bytes(&self, _: &Request) -> usize {
        self.needed_bytes
    }

    fn run(self: Rc<Self>, cx: TaskContext, _: Request) -> LocalFuture<Result<(), Errno>> {
        (self.run)(cx)
    }
}

fn request(source: u32, slot: u32) -> Request {
    Request::without_data(Op::Flush, 0, 0, token::new(source, slot))
}

struct Rig {
    tasks: Executor,
}

impl Rig {
    fn new() -> Self {
        let tasks = Executor::new(Arc::new(|| ()));
        Rig { tasks }
    }

    /// Spawns a task of slot `slot` of a source.
    fn spawn<Fut: Future<Output = Result<(), Errno>> + 'static>(
        &mut self,
        (source, slot): (u32, u32),
        run: impl Fn(TaskContext) -> Fut + 'static,
    ) {
        self.spawn_with_buffers((source, slot), 0, run);
    }

    fn spawn_with_buffers<Fut: Future<Output = Result<(), Errno>> + 'static>(
        &mut self,
        (source, slot): (u32, u32),
        needed_bytes: usize,
        run: impl Fn(TaskContext) -> Fut + 'static,
    ) {
        let run = move |cx| -> LocalFuture<Result<(), Errno>> { Box::pin(run(cx)) };
        let node = Rc::new(TestNode { run, needed_bytes });
        self.tasks
            .spawn(node, request(source, slot), token::new(source, slot));
    }

    /// Slots whose requests have completed after one phase.
    fn completed(&mut self) -> Vec<u64> {
        self.tasks.poll_due_and_woken();
        let mut out = Vec::new();
        self.tasks.take_completed(&mut out);
        out.iter()
            .map(|done| done.token & u64::from(u32::MAX))
            .collect()
    }
}

/// Asks for something of a worker.
fn begin_io(cx: &TaskContext) -> IoFuture {
    let file = tempfile::NamedTempFile::new().unwrap();
    let target = testing::target(file.path(), Carrier::Workers);
    let outgoing = |request| BackendRequest::Worker(target.file, request);
    // SAFETY: there are no segments.
    unsafe { IoFuture::queue_request(&cx.shared, request(0, 0), None, outgoing) }
}

fn token_of(outgoing: &BackendRequest) -> u64 {
    match outgoing {
        BackendRequest::Worker(_, request) => request.token,
        _ => panic!("for a worker"),
    }
}

fn done(token: u64) -> Vec<Completion> {
    vec![Completion {
        token,
        result: Ok(()),
    }]
}

#[test]
fn a_task_is_not_polled_when_it_is_taken() {
    let mut rig = Rig::new();
    let polled = Rc::new(Cell::new(false));
    let seen = polled.clone();
    rig.spawn((1, 5), move |_| {
        let seen = seen.clone();
        async move {
            seen.set(true);
            Err(Errno::IO)
        }
    });
    assert!(!polled.get() && rig.tasks.has_runnable_or_completed());
    assert_eq!(rig.completed(), [5]);
    assert!(polled.get() && !rig.tasks.has_runnable_or_completed());
    assert!(rig.tasks.has_none_running_or_completed());
}

/// The places of tasks are taken in any order; what they ask the disk for keeps that of the guest.
#[test]
fn tasks_are_polled_in_the_order_of_their_requests() {
    let mut rig = Rig::new();
    for _ in 0..2 {
        for slot in 0..5 {
            rig.spawn((1, slot), |_| async { Ok(()) });
        }
        assert_eq!(rig.completed(), [0, 1, 2, 3, 4]);
    }
}

/// Memory that a request names must not be in use after its completion, whatever its function has dropped.
#[test]
fn a_task_that_drops_its_io_completes_when_that_has() {
    let mut rig = Rig::new();
    rig.spawn((1, 5), |cx| async move {
        drop(begin_io(&cx));
        Ok(())
    });
    assert_eq!(rig.completed(), [0; 0]);
    let out = rig.tasks.pop_outgoing().unwrap();
    let mut completions = done(token_of(&out));
    completions.extend(done(9));
    rig.tasks.dispatch_io_completions(&mut completions);
    assert_eq!(completions, done(9), "that of another is left");
    assert_eq!(rig.completed(), [5]);
    assert!(rig.tasks.has_none_running_or_completed());
}

/// Thousands of requests wait, for a throttle group, say.
#[test]
fn tasks_of_one_source_that_never_end_leave_room_to_another() {
    let mut rig = Rig::new();
    for slot in 0..20_000 {
        rig.spawn((1, slot), |_| std::future::pending());
    }
    rig.spawn((2, 7), |_| std::future::ready(Ok(())));
    let mut done = Vec::new();
    // As many as it takes to poll all once.
    for _ in 0..=20_000 / POLL_BUDGET {
        done.extend(rig.completed());
    }
    assert_eq!(done, [7]);
}

#[test]
fn tasks_wait_in_order_for_memory_until_the_io_of_its_owner_has_ended() {
    let mut rig = Rig::new();
    let half = MAX_BYTES / 2;
    for (slot, bytes) in [(1, half), (2, half), (3, MAX_BYTES + 1), (4, 1), (5, 0)] {
        rig.spawn_with_buffers((0, slot), bytes, |cx| async move {
            drop(begin_io(&cx));
            Ok(())
        });
    }
    let outgoing = |rig: &mut Rig| {
        assert_eq!(rig.completed(), [0; 0], "its I/O is out");
        let tokens = std::iter::from_fn(|| rig.tasks.pop_outgoing().map(|out| token_of(&out)));
        tokens.collect::<Vec<_>>()
    };
    let [first, second, fifth] = outgoing(&mut rig)[..] else {
        panic!("those that there is memory for, and the one that needs none");
    };
    rig.tasks.end_unbounded_waits(0);
    rig.tasks.dispatch_io_completions(&mut done(first));
    assert_eq!(rig.completed(), [1]);
    assert_eq!(
        rig.tasks.pop_outgoing().map(|out| token_of(&out)),
        None,
        "nor does the fourth overtake"
    );
    rig.tasks.dispatch_io_completions(&mut done(second));
    assert_eq!(rig.completed(), [2]);
    let [third] = outgoing(&mut rig)[..] else {
        panic!("it needs more than there is, and goes alone");
    };
    rig.tasks.dispatch_io_completions(&mut done(third));
    assert_eq!(rig.completed(), [3]);
    let [fourth] = outgoing(&mut rig)[..] else {
        panic!("the last of them");
    };
    rig.tasks.dispatch_io_completions(&mut done(fifth));
    rig.tasks.dispatch_io_completions(&mut done(fourth));
    let mut last = rig.completed();
    last.sort_unstable();
    assert_eq!(last, [4, 5]);
}

/// A delay of an hour, unless the task's source stops.
async fn delay(cx: TaskContext) -> Result<(), Errno> {
    cx.wait_unless_stopping(cx.sleep_ns(3_600_000_000_000))
        .await;
    Ok(())
}

/// Nor is a deadline left behind: the loop would not sleep any more, since without tasks nothing takes a timer off that is due.
#[test]
fn a_source_that_stops_ends_its_delays_and_no_others() {
    let mut rig = Rig::new();
    rig.spawn((7, 7), delay);
    assert_eq!(rig.completed(), [0; 0]);
    assert!(rig.tasks.next_deadline_ns().is_some());
    rig.spawn((8, 8), |_| std::future::pending());
    rig.tasks.end_unbounded_waits(7);
    assert_eq!(rig.completed(), [7]);
    assert_eq!(rig.tasks.next_deadline_ns(), None);
    rig.spawn((7, 9), delay);
    assert_eq!(rig.completed(), [9], "nor is a new one delayed");
    rig.tasks.forget_ended_source(7);
    for source in [7, 8] {
        rig.spawn((source, 10), delay);
    }
    assert_eq!(rig.completed(), [0; 0], "the next source with that index");
    rig.tasks.end_unbounded_waits(8);
    assert_eq!(rig.completed(), [10]);
    assert!(rig.tasks.next_deadline_ns().is_some(), "that of the other");
}

#[test]
fn a_flood_of_tasks_is_polled_in_portions_and_each_has_its_turn() {
    let mut rig = Rig::new();
    for slot in 0..1000 {
        rig.spawn((0, slot), |_| {
            poll_fn(|cx| {
                cx.waker().wake_by_ref();
                Poll::Pending
            })
        });
    }
    rig.spawn((0, 1000), |_| async { Ok(()) });
    let phases = (0..).find(|_| rig.completed() == [1000]).unwrap();
    assert!((3..=8).contains(&phases), "{phases}");
}

#[test]
fn what_backends_refuse_is_asked_again_in_the_same_order() {
    let mut rig = Rig::new();
    rig.spawn((1, 1), |cx| async move {
        let [one, two] = [(); 2].map(|()| begin_io(&cx));
        one.await.and(two.await)
    });
    rig.tasks.poll_due_and_woken();
    let refused = [(); 2].map(|()| rig.tasks.pop_outgoing().unwrap());
    let tokens = refused.each_ref().map(token_of);
    for outgoing in refused {
        rig.tasks.push_back_outgoing(outgoing);
    }
    let again = [(); 2].map(|()| token_of(&rig.tasks.pop_outgoing().unwrap()));
    assert_eq!(again, tokens);
    // In the other order.
    rig.tasks.dispatch_io_completions(&mut done(tokens[1]));
    assert_eq!(rig.completed(), [0; 0]);
    rig.tasks.dispatch_io_completions(&mut done(tokens[0]));
    assert_eq!(rig.completed(), [1]);
}
