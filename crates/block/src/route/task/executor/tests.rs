//! Tests of the executor.

use super::super::buffers::MAX_BYTES;
use super::super::io_future::IoFuture;
use super::*;
use crate::route::Carrier;
use crate::testing;
use crate::token;
use std::cell::Cell;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use engine::Op;

/// A node whose requests do what a function says.
struct Does<F>(F);

impl<F: Fn(TaskContext, Request) -> LocalFuture<Result<(), Errno>>> TaskNode for Does<F> {
    fn run(self: Rc<Self>, cx: TaskContext, request: Request) -> LocalFuture<Result<(), Errno>> {
        (self.0)(cx, request)
    }
}

fn request(source: u32, slot: u32) -> Request {
    Request::without_data(Op::Flush, 0, 0, token::new(source, slot))
}

struct Rig {
    tasks: Executor,
    wakes: Arc<AtomicU32>,
}

impl Rig {
    fn new() -> Self {
        let wakes = Arc::new(AtomicU32::new(0));
        let counted = wakes.clone();
        let wake = move || {
            counted.fetch_add(1, Ordering::Relaxed);
        };
        Rig {
            tasks: Executor::new(Arc::new(wake)),
            wakes,
        }
    }

    fn spawn<F>(&mut self, source: u32, slot: u32, run: F)
    where
        F: Fn(TaskContext, Request) -> LocalFuture<Result<(), Errno>> + 'static,
    {
        self.tasks
            .spawn(Rc::new(Does(run)), request(source, slot), source);
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
    rig.spawn(1, 5, move |_, _| {
        let seen = seen.clone();
        Box::pin(async move {
            seen.set(true);
            Err(Errno::IO)
        })
    });
    assert!(
        !polled.get()
            && rig.tasks.has_runnable_or_completed()
            && !rig.tasks.has_none_running_or_completed()
    );
    rig.tasks.poll_due_and_woken();
    assert!(
        polled.get() && !rig.tasks.has_none_running_or_completed(),
        "not reaped yet"
    );
    let mut out = Vec::new();
    rig.tasks.take_completed(&mut out);
    let failed = Completion {
        token: token::new(1, 5),
        result: Err(Errno::IO),
    };
    assert_eq!(out, [failed]);
    assert!(rig.tasks.has_none_running_or_completed() && !rig.tasks.has_runnable_or_completed());
}

/// Memory that a request names must not be in use after its completion, whatever its function has dropped.
#[test]
fn a_task_that_drops_its_io_completes_when_that_has() {
    let mut rig = Rig::new();
    rig.spawn(1, 5, |cx, _| {
        Box::pin(async move {
            let io = begin_io(&cx);
            drop(io);
            Ok(())
        })
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
        rig.spawn(1, slot, |_, _| Box::pin(std::future::pending()));
    }
    rig.spawn(2, 7, |_, _| Box::pin(std::future::ready(Ok(()))));
    let mut done = Vec::new();
    // As many as it takes to poll all once.
    for _ in 0..=20_000 / POLL_BUDGET {
        done.extend(rig.completed());
    }
    assert_eq!(done, [7]);
}

/// A node whose requests need memory for I/O of their own.
struct Needs<F>(usize, F);

impl<F: Fn(TaskContext, Request) -> LocalFuture<Result<(), Errno>>> TaskNode for Needs<F> {
    fn needed_buffer_bytes(&self, _: &Request) -> usize {
        self.0
    }

    fn run(self: Rc<Self>, cx: TaskContext, request: Request) -> LocalFuture<Result<(), Errno>> {
        (self.1)(cx, request)
    }
}

#[test]
fn tasks_wait_in_order_for_memory_until_the_io_of_its_owner_has_ended() {
    let mut rig = Rig::new();
    let half = MAX_BYTES / 2;
    let mut spawn = |slot, bytes| {
        let run = |cx: TaskContext, _| -> LocalFuture<Result<(), Errno>> {
            Box::pin(async move {
                drop(begin_io(&cx));
                Ok(())
            })
        };
        rig.tasks
            .spawn(Rc::new(Needs(bytes, run)), request(0, slot), 0);
    };
    for (slot, bytes) in [(1, half), (2, half), (3, MAX_BYTES + 1), (4, 1), (5, 0)] {
        spawn(slot, bytes);
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

#[test]
fn a_wake_from_another_thread_wakes_the_loop_and_the_task() {
    let mut rig = Rig::new();
    let shared: Arc<Mutex<(bool, Option<Waker>)>> = Arc::default();
    let flag = shared.clone();
    rig.spawn(0, 1, move |_, _| {
        let flag = flag.clone();
        Box::pin(poll_fn(move |cx| {
            let mut flag = flag.lock().unwrap();
            if flag.0 {
                return Poll::Ready(Ok(()));
            }
            flag.1 = Some(cx.waker().clone());
            Poll::Pending
        }))
    });
    assert_eq!(rig.completed(), [0; 0]);
    assert!(
        !rig.tasks.has_runnable_or_completed(),
        "a task that waits costs nothing"
    );
    let before = rig.wakes.load(Ordering::Relaxed);
    std::thread::spawn(move || {
        let mut flag = shared.lock().unwrap();
        flag.0 = true;
        flag.1.take().unwrap().wake();
    })
    .join()
    .unwrap();
    assert_eq!(rig.wakes.load(Ordering::Relaxed), before + 1);
    assert!(rig.tasks.has_runnable_or_completed());
    assert_eq!(rig.completed(), [1]);
}

#[test]
fn a_source_that_stops_ends_its_delays_and_no_others() {
    let mut rig = Rig::new();
    for source in [7, 8] {
        rig.spawn(source, source, |cx, _| {
            Box::pin(async move {
                cx.wait_unless_stopping(cx.sleep_ns(3_600_000_000_000))
                    .await;
                Ok(())
            })
        });
    }
    assert_eq!(rig.completed(), [0; 0]);
    assert!(rig.tasks.next_deadline_ns().is_some());
    rig.tasks.end_unbounded_waits(7);
    assert_eq!(rig.completed(), [7]);
    rig.spawn(7, 9, |cx, _| {
        Box::pin(async move {
            cx.wait_unless_stopping(std::future::pending()).await;
            Ok(())
        })
    });
    assert_eq!(rig.completed(), [9], "nor is a new one delayed");
    rig.tasks.forget_ended_source(7);
    rig.spawn(7, 10, |cx, _| {
        Box::pin(async move {
            cx.wait_unless_stopping(std::future::pending()).await;
            Ok(())
        })
    });
    assert_eq!(rig.completed(), [0; 0], "the next user of the place");
}

/// The loop would not sleep any more: without tasks nothing takes a timer off that is due.
#[test]
fn a_delay_that_was_cut_short_leaves_no_deadline_behind() {
    let mut rig = Rig::new();
    rig.spawn(7, 1, |cx, _| {
        Box::pin(async move {
            cx.wait_unless_stopping(cx.sleep_ns(3_600_000_000_000))
                .await;
            Ok(())
        })
    });
    assert_eq!(rig.completed(), [0; 0]);
    rig.tasks.end_unbounded_waits(7);
    assert_eq!(rig.completed(), [1]);
    assert_eq!(rig.tasks.next_deadline_ns(), None);
    rig.spawn(8, 2, |_, _| Box::pin(std::future::pending()));
    assert_eq!(rig.completed(), [0; 0]);
    assert_eq!(rig.tasks.next_deadline_ns(), None, "nor for later tasks");
}

#[test]
fn a_flood_of_tasks_is_polled_in_portions_and_each_has_its_turn() {
    let mut rig = Rig::new();
    let forever = |_, _| -> LocalFuture<Result<(), Errno>> {
        Box::pin(poll_fn(|cx| {
            cx.waker().wake_by_ref();
            Poll::Pending
        }))
    };
    for slot in 0..1000 {
        rig.spawn(0, slot, forever);
    }
    rig.spawn(0, 1000, |_, _| Box::pin(async { Ok(()) }));
    let phases = (0..).find(|_| rig.completed() == [1000]).unwrap();
    assert!((3..=8).contains(&phases), "{phases}");
}

#[test]
fn what_backends_refuse_is_asked_again_in_the_same_order() {
    let mut rig = Rig::new();
    rig.spawn(1, 1, |cx, _| {
        Box::pin(async move {
            let [one, two] = [(); 2].map(|()| begin_io(&cx));
            one.await.and(two.await)
        })
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
