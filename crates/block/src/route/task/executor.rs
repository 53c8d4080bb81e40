//! The executor: it runs the tasks of an iothread.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use engine::{Completion, Errno};

use super::buffers::TaskBuffers;
use super::context::TaskContext;
use super::io::{BackendRequest, IoTable};
use super::timers::Timers;
use super::woken::WokenTasks;
use super::{LocalFuture, TaskNode, Wake};
use crate::clock::now_ns;
use engine::Request;

/// Most tasks of one iothread. Requests beyond it stay in the guests' rings.
const MAX_TASKS: u32 = 4096;

/// Most tasks that are polled in one phase, so that other queues get their turn.
const POLL_BUDGET: usize = 256;

/// In place of a task: no task runs.
const NONE: u32 = u32::MAX;

/// State that tasks and their executor share.
pub(super) struct Shared {
    /// The task that is polled.
    pub current: Cell<u32>,
    pub io: RefCell<IoTable>,
    pub timers: RefCell<Timers>,
    pub buffers: RefCell<TaskBuffers>,
    /// Places of sources that are about to end.
    pub stopping: RefCell<Vec<u32>>,
    /// By place of a source: its tasks with smaller numbers bypass their gates.
    pub past_gates: RefCell<BTreeMap<u32, u64>>,
}

enum State {
    Free,
    /// The task waits for memory.
    Reserving(LocalFuture<Result<(), Errno>>),
    Running(LocalFuture<Result<(), Errno>>),
    /// Its function has returned; some of its I/O is still in flight.
    Ended(Result<(), Errno>),
}

struct Task {
    state: State,
    waker: Waker,
    /// The token of its request.
    token: u64,
    /// The place of its source.
    source: u32,
}

/// Runs the tasks of one iothread.
pub(crate) struct Executor {
    tasks: Vec<Task>,
    free: Vec<u32>,
    running: usize,
    /// Number of tasks spawned so far, which is the number of the next one.
    spawned: u64,
    shared: Rc<Shared>,
    woken: Arc<WokenTasks>,
    /// The word of `woken` with which the next phase begins.
    next: usize,
    /// Requests whose tasks have completed, for the next reap.
    completed: Vec<Completion>,
    /// Scratch: tasks to be polled, or tasks with completed I/O.
    batch: Vec<u32>,
}

impl Executor {
    /// `wake` wakes the loop, from any thread.
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
            woken: WokenTasks::new(MAX_TASKS, wake),
            next: 0,
            completed: Vec::new(),
            batch: Vec::new(),
        }
    }

    /// How many more tasks can be spawned.
    pub fn room(&self) -> usize {
        MAX_TASKS as usize - self.running
    }

    /// Whether no task runs, and none has completed since the last reap.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.running == 0 && self.completed.is_empty()
    }

    /// Spawns a task for a request of the source at this place. There is room. The request completes when the task does. The
    /// next [`run`](Self::run) polls it.
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
            self.woken.add(task);
        } else {
            slot.state = State::Reserving(future);
        }
    }

    /// Whether a task has to be polled, or one has completed.
    pub fn has_work(&self) -> bool {
        let is_due = || self.next_deadline_ns().is_some_and(|due| due <= now_ns());
        !self.completed.is_empty() || self.running > 0 && (self.woken.may_have_any() || is_due())
    }

    /// The time at which the clock wakes the next task.
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
        self.next = self.woken.take_batch(self.next, POLL_BUDGET, &mut batch);
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
        // A task that has ended may still be woken, by something that it has waited for.
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
            self.complete_if_idle(task);
        }
        self.shared.current.set(NONE);
    }

    /// Completes a task that has ended, if none of its I/O is in flight.
    fn complete_if_idle(&mut self, task: u32) {
        if self.shared.io.borrow().in_flight_of(task) > 0 {
            return;
        }
        let slot = &mut self.tasks[task as usize];
        let State::Ended(result) = slot.state else {
            return;
        };
        slot.state = State::Free;
        self.shared.io.borrow_mut().set_marks(task);
        self.completed.push(Completion {
            token: slot.token,
            result,
        });
        self.free.push(task);
        self.running -= 1;
        self.release_buffers(task);
    }

    /// Frees the memory of a task, and starts tasks that wait for memory.
    fn release_buffers(&mut self, task: u32) {
        let mut buffers = self.shared.buffers.borrow_mut();
        buffers.release(task);
        while let Some(next) = buffers.next_ready() {
            let state = &mut self.tasks[next as usize].state;
            if let State::Reserving(future) = std::mem::replace(state, State::Free) {
                *state = State::Running(future);
                self.woken.add(next);
            }
        }
    }

    /// Removes the completions of tasks' I/O from `completions`, and wakes those tasks.
    pub fn take_io(&mut self, completions: &mut Vec<Completion>) {
        if !self.shared.io.borrow().any_in_flight() {
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
            self.complete_if_idle(task);
        }
        self.batch = tasks;
    }

    /// Takes requests whose tasks have completed.
    pub fn reap(&mut self, out: &mut Vec<Completion>) {
        out.append(&mut self.completed);
    }

    /// The next request of a task to a backend, in order.
    pub fn next_outgoing(&mut self) -> Option<BackendRequest> {
        self.shared.io.borrow_mut().outbox.pop_front()
    }

    /// Number of requests in the outbox.
    pub fn outgoing(&self) -> usize {
        self.shared.io.borrow().outbox.len()
    }

    /// Returns a request to the end of the outbox, since the backend had no room.
    pub fn put_back(&mut self, outgoing: BackendRequest) {
        self.shared.io.borrow_mut().outbox.push_back(outgoing);
    }

    /// Prepares for the end of the source at this place: its tasks wait for nothing that may take for ever, until
    /// [`source_ended`](Self::source_ended).
    pub fn stop_source(&mut self, place: u32) {
        self.shared.stopping.borrow_mut().push(place);
        self.wake_tasks_of(place);
    }

    /// Lets the current tasks of the source at this place bypass their gates.
    pub fn open_gates(&mut self, place: u32) {
        let mut past_gates = self.shared.past_gates.borrow_mut();
        past_gates.insert(place, self.spawned);
        drop(past_gates);
        self.wake_tasks_of(place);
    }

    fn wake_tasks_of(&self, place: u32) {
        for (index, task) in (0u32..).zip(&self.tasks) {
            if task.source == place && matches!(task.state, State::Running(_)) {
                self.woken.add(index);
            }
        }
    }

    /// Notes that the source at this place has ended.
    pub fn source_ended(&mut self, place: u32) {
        self.shared
            .stopping
            .borrow_mut()
            .retain(|other| *other != place);
        self.shared.past_gates.borrow_mut().remove(&place);
    }
}

#[cfg(test)]
mod tests;
