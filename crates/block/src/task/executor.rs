//! The tasks of an iothread.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use engine::{Completion, Errno};

use super::buffers::Buffers;
use super::context::TaskContext;
use super::io::{IoTable, Outgoing};
use super::timers::Timers;
use super::woken::Woken;
use super::{LocalFuture, TaskNode, Wake};
use crate::drivers::null_co::now_ns;
use engine::Request;

/// Tasks of one iothread at most: what is over it stays in the guests' rings.
const MAX_TASKS: u32 = 4096;

/// Tasks that are polled in one phase at most, so that other queues have their turn.
const POLL_BUDGET: usize = 256;

/// No task runs.
const NONE: u32 = u32::MAX;

/// What tasks and their executor share.
pub(super) struct Shared {
    /// The task that is polled.
    pub current: Cell<u32>,
    pub io: RefCell<IoTable>,
    pub timers: RefCell<Timers>,
    pub buffers: RefCell<Buffers>,
    /// Places of sources that want to end.
    pub stopping: RefCell<Vec<u32>>,
    /// By place of the source: its tasks with smaller numbers wait at no gate.
    pub past_gates: RefCell<BTreeMap<u32, u64>>,
}

enum State {
    Free,
    /// It waits for memory.
    Reserving(LocalFuture<Result<(), Errno>>),
    Running(LocalFuture<Result<(), Errno>>),
    /// Its function has returned; some of its I/O is still out.
    Ended(Result<(), Errno>),
}

struct Task {
    state: State,
    waker: Waker,
    /// Of its request.
    token: u64,
    /// The place of its source.
    source: u32,
}

/// Runs the tasks of one iothread.
pub(crate) struct Executor {
    tasks: Vec<Task>,
    free: Vec<u32>,
    running: usize,
    /// Tasks that were spawned so far: the number of the next one.
    spawned: u64,
    shared: Rc<Shared>,
    woken: Arc<Woken>,
    /// Where the next phase begins to look for woken tasks.
    next: usize,
    /// Requests whose tasks have completed, for the next reap.
    completed: Vec<Completion>,
    /// Scratch: tasks to be polled, or to be looked at.
    batch: Vec<u32>,
}

impl Executor {
    /// `wake` makes the loop look, from any thread.
    pub fn new(wake: Wake) -> Self {
        Executor {
            tasks: Vec::new(),
            free: Vec::new(),
            running: 0,
            spawned: 0,
            shared: Rc::new(Shared {
                current: Cell::new(NONE),
                io: RefCell::default(),
                timers: RefCell::default(),
                buffers: RefCell::default(),
                stopping: RefCell::default(),
                past_gates: RefCell::default(),
            }),
            woken: Woken::new(MAX_TASKS, wake),
            next: 0,
            completed: Vec::new(),
            batch: Vec::new(),
        }
    }

    /// How many more tasks are taken.
    pub fn room(&self) -> usize {
        MAX_TASKS as usize - self.running
    }

    /// Whether no task runs, and none has completed since the last reap.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.running == 0 && self.completed.is_empty()
    }

    /// Takes a request of the source at this place, whose token completes when the task does. There is room. It is polled
    /// in the next [`run`](Self::run).
    pub fn spawn(&mut self, node: Rc<dyn TaskNode>, request: Request, source: u32) {
        debug_assert!(self.room() > 0, "the source has asked for room");
        let token = request.token;
        let buffer_bytes = node.buffer_bytes(&request);
        let task = self.free.pop().unwrap_or_else(|| {
            let index = u32::try_from(self.tasks.len()).unwrap_or(NONE);
            self.tasks.push(Task {
                state: State::Free,
                waker: self.woken.waker(index),
                token,
                source,
            });
            index
        });
        let cx = TaskContext {
            shared: self.shared.clone(),
            source,
            number: self.spawned,
        };
        self.spawned += 1;
        self.shared.current.set(task);
        let future = node.run(cx, request);
        self.shared.current.set(NONE);
        let slot = &mut self.tasks[task as usize];
        (slot.token, slot.source) = (token, source);
        self.running += 1;
        let mut buffers = self.shared.buffers.borrow_mut();
        if buffers.reserve(task, buffer_bytes) {
            slot.state = State::Running(future);
            self.woken.set(task);
        } else {
            slot.state = State::Reserving(future);
        }
    }

    /// Whether a task is to be polled, or one has completed.
    pub fn has_work(&self) -> bool {
        let is_due = || self.next_deadline_ns().is_some_and(|due| due <= now_ns());
        !self.completed.is_empty() || self.running > 0 && (self.woken.any() || is_due())
    }

    /// When the next task is woken by the clock.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        self.shared.timers.borrow().next_deadline_ns()
    }

    /// Polls tasks that were woken.
    pub fn run(&mut self) {
        if self.running == 0 {
            return;
        }
        self.wake_due();
        let mut batch = std::mem::take(&mut self.batch);
        self.next = self.woken.take(self.next, POLL_BUDGET, &mut batch);
        for task in batch.drain(..) {
            self.poll(task);
        }
        self.batch = batch;
    }

    fn wake_due(&mut self) {
        let shared = &self.shared;
        if self.next_deadline_ns().is_none() {
            return;
        }
        let now_ns = now_ns();
        loop {
            let due = shared.timers.borrow_mut().take_due(now_ns);
            let Some(waker) = due else {
                return;
            };
            waker.wake();
        }
    }

    fn poll(&mut self, task: u32) {
        // One that has ended meanwhile may be woken by what it has waited for.
        let Some(Task {
            state: state @ State::Running(_),
            waker,
            ..
        }) = self.tasks.get_mut(task as usize)
        else {
            return;
        };
        let State::Running(future) = state else {
            return;
        };
        self.shared.current.set(task);
        if let Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(waker)) {
            // Drops the future, which abandons I/O that it did not await.
            *state = State::Ended(result);
            self.end_if_quiet(task);
        }
        self.shared.current.set(NONE);
    }

    /// Completes a task that has ended, if none of its I/O is out.
    fn end_if_quiet(&mut self, task: u32) {
        if self.shared.io.borrow().out_of(task) > 0 {
            return;
        }
        let slot = &mut self.tasks[task as usize];
        let State::Ended(result) = slot.state else {
            return;
        };
        slot.state = State::Free;
        self.shared.io.borrow_mut().leave_marks(task);
        self.completed.push(Completion {
            token: slot.token,
            result,
        });
        self.free.push(task);
        self.running -= 1;
        self.give_back_buffers(task);
    }

    /// The memory of a task goes to those that wait for it.
    fn give_back_buffers(&mut self, task: u32) {
        let mut buffers = self.shared.buffers.borrow_mut();
        buffers.give_back(task);
        while let Some(next) = buffers.next_served() {
            let state = &mut self.tasks[next as usize].state;
            if let State::Reserving(future) = std::mem::replace(state, State::Free) {
                *state = State::Running(future);
                self.woken.set(next);
            }
        }
    }

    /// Takes the completions of tasks' I/O out of what backends have completed, and wakes those tasks.
    pub fn take_io(&mut self, completions: &mut Vec<Completion>) {
        if !self.shared.io.borrow().any_out() {
            return;
        }
        let mut tasks = std::mem::take(&mut self.batch);
        completions.retain(|completion| {
            let ours = self.shared.io.borrow_mut().complete(*completion);
            let Some((task, waker)) = ours else {
                return true;
            };
            if let Some(waker) = waker {
                waker.wake();
            }
            tasks.push(task);
            false
        });
        for task in tasks.drain(..) {
            self.end_if_quiet(task);
        }
        self.batch = tasks;
    }

    /// Takes requests whose tasks have completed.
    pub fn reap(&mut self, out: &mut Vec<Completion>) {
        out.append(&mut self.completed);
    }

    /// The next that tasks ask of the backends, in order.
    pub fn next_outgoing(&mut self) -> Option<Outgoing> {
        self.shared.io.borrow_mut().outbox.pop_front()
    }

    /// How much is asked of backends.
    pub fn outgoing(&self) -> usize {
        self.shared.io.borrow().outbox.len()
    }

    /// The backend had no room for it: it is asked again after all others.
    pub fn put_back(&mut self, outgoing: Outgoing) {
        self.shared.io.borrow_mut().outbox.push_back(outgoing);
    }

    /// The source at this place wants to end: its tasks wait for nothing that may take for ever, until
    /// [`source_ended`](Self::source_ended).
    pub fn stop_source(&mut self, place: u32) {
        self.shared.stopping.borrow_mut().push(place);
        self.wake_tasks_of(place);
    }

    /// The tasks that the source at this place has now wait at no gate.
    pub fn open_gates(&mut self, place: u32) {
        let mut past_gates = self.shared.past_gates.borrow_mut();
        past_gates.insert(place, self.spawned);
        drop(past_gates);
        self.wake_tasks_of(place);
    }

    fn wake_tasks_of(&self, place: u32) {
        for (index, task) in (0u32..).zip(&self.tasks) {
            if task.source == place && matches!(task.state, State::Running(_)) {
                self.woken.set(index);
            }
        }
    }

    /// The source at this place has ended.
    pub fn source_ended(&mut self, place: u32) {
        self.shared
            .stopping
            .borrow_mut()
            .retain(|other| *other != place);
        self.shared.past_gates.borrow_mut().remove(&place);
    }
}

#[cfg(test)]
mod tests {
    use super::super::buffers::MAX_BYTES;
    use super::super::io::IoFuture;
    use super::*;
    use crate::io::token;
    use crate::route::Carrier;
    use crate::testing;
    use std::future::poll_fn;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU32, Ordering};

    use engine::Op;

    /// A node whose requests do what a function says.
    struct Does<F>(F);

    impl<F: Fn(TaskContext, Request) -> LocalFuture<Result<(), Errno>>> TaskNode for Does<F> {
        fn run(
            self: Rc<Self>,
            cx: TaskContext,
            request: Request,
        ) -> LocalFuture<Result<(), Errno>> {
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
            self.tasks.run();
            let mut out = Vec::new();
            self.tasks.reap(&mut out);
            out.iter()
                .map(|done| done.token & u64::from(u32::MAX))
                .collect()
        }
    }

    /// Asks for something of a worker.
    fn begin_io(cx: &TaskContext) -> IoFuture {
        let file = tempfile::NamedTempFile::new().unwrap();
        let target = testing::target(file.path(), Carrier::Workers);
        let outgoing = |request| Outgoing::Worker(target.file, request);
        // SAFETY: there are no segments.
        unsafe { IoFuture::new(&cx.shared, request(0, 0), None, outgoing) }
    }

    fn token_of(outgoing: &Outgoing) -> u64 {
        match outgoing {
            Outgoing::Worker(_, request) => request.token,
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
        assert!(!polled.get() && rig.tasks.has_work() && !rig.tasks.is_empty());
        rig.tasks.run();
        assert!(polled.get() && !rig.tasks.is_empty(), "not reaped yet");
        let mut out = Vec::new();
        rig.tasks.reap(&mut out);
        let failed = Completion {
            token: token::new(1, 5),
            result: Err(Errno::IO),
        };
        assert_eq!(out, [failed]);
        assert!(rig.tasks.is_empty() && !rig.tasks.has_work());
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
        let out = rig.tasks.next_outgoing().unwrap();
        let mut completions = done(token_of(&out));
        completions.extend(done(9));
        rig.tasks.take_io(&mut completions);
        assert_eq!(completions, done(9), "that of another is left");
        assert_eq!(rig.completed(), [5]);
        assert_eq!(rig.tasks.room(), MAX_TASKS as usize);
    }

    /// A node whose requests need memory for I/O of their own.
    struct Needs<F>(usize, F);

    impl<F: Fn(TaskContext, Request) -> LocalFuture<Result<(), Errno>>> TaskNode for Needs<F> {
        fn buffer_bytes(&self, _: &Request) -> usize {
            self.0
        }

        fn run(
            self: Rc<Self>,
            cx: TaskContext,
            request: Request,
        ) -> LocalFuture<Result<(), Errno>> {
            (self.1)(cx, request)
        }
    }

    #[test]
    fn tasks_wait_in_order_for_memory_that_is_given_back_when_io_has_ended() {
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
            let tokens = std::iter::from_fn(|| rig.tasks.next_outgoing().map(|out| token_of(&out)));
            tokens.collect::<Vec<_>>()
        };
        let [first, second, fifth] = outgoing(&mut rig)[..] else {
            panic!("those that there is memory for, and the one that needs none");
        };
        rig.tasks.stop_source(0);
        rig.tasks.take_io(&mut done(first));
        assert_eq!(rig.completed(), [1]);
        assert_eq!(
            rig.tasks.next_outgoing().map(|out| token_of(&out)),
            None,
            "nor does the fourth overtake"
        );
        rig.tasks.take_io(&mut done(second));
        assert_eq!(rig.completed(), [2]);
        let [third] = outgoing(&mut rig)[..] else {
            panic!("it needs more than there is, and goes alone");
        };
        rig.tasks.take_io(&mut done(third));
        assert_eq!(rig.completed(), [3]);
        let [fourth] = outgoing(&mut rig)[..] else {
            panic!("the last of them");
        };
        rig.tasks.take_io(&mut done(fifth));
        rig.tasks.take_io(&mut done(fourth));
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
        assert!(!rig.tasks.has_work(), "a task that waits costs nothing");
        let before = rig.wakes.load(Ordering::Relaxed);
        std::thread::spawn(move || {
            let mut flag = shared.lock().unwrap();
            flag.0 = true;
            flag.1.take().unwrap().wake();
        })
        .join()
        .unwrap();
        assert_eq!(rig.wakes.load(Ordering::Relaxed), before + 1);
        assert!(rig.tasks.has_work());
        assert_eq!(rig.completed(), [1]);
    }

    #[test]
    fn a_source_that_stops_ends_its_delays_and_no_others() {
        let mut rig = Rig::new();
        for source in [7, 8] {
            rig.spawn(source, source, |cx, _| {
                Box::pin(async move {
                    cx.unless_stopping(cx.sleep_ns(3_600_000_000_000)).await;
                    Ok(())
                })
            });
        }
        assert_eq!(rig.completed(), [0; 0]);
        assert!(rig.tasks.next_deadline_ns().is_some());
        rig.tasks.stop_source(7);
        assert_eq!(rig.completed(), [7]);
        rig.spawn(7, 9, |cx, _| {
            Box::pin(async move {
                cx.unless_stopping(std::future::pending()).await;
                Ok(())
            })
        });
        assert_eq!(rig.completed(), [9], "nor is a new one delayed");
        rig.tasks.source_ended(7);
        rig.spawn(7, 10, |cx, _| {
            Box::pin(async move {
                cx.unless_stopping(std::future::pending()).await;
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
                cx.unless_stopping(cx.sleep_ns(3_600_000_000_000)).await;
                Ok(())
            })
        });
        assert_eq!(rig.completed(), [0; 0]);
        rig.tasks.stop_source(7);
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
        rig.tasks.run();
        let refused = [(); 2].map(|()| rig.tasks.next_outgoing().unwrap());
        let tokens = refused.each_ref().map(token_of);
        for outgoing in refused {
            rig.tasks.put_back(outgoing);
        }
        let again = [(); 2].map(|()| token_of(&rig.tasks.next_outgoing().unwrap()));
        assert_eq!(again, tokens);
        // In the other order.
        rig.tasks.take_io(&mut done(tokens[1]));
        assert_eq!(rig.completed(), [0; 0]);
        rig.tasks.take_io(&mut done(tokens[0]));
        assert_eq!(rig.completed(), [1]);
    }
}
