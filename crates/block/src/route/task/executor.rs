//! The executor of an iothread: spawns, polls and completes its async tasks, and hands out their requests to backends.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use engine::{Completion, Errno};

use super::context::TaskContext;
use super::io::{BackendRequest, SharedResource};
use super::shared::{ExecutorShared, NO_TASK};
use super::woken_blocks::WokenBlocks;
use super::{LocalFuture, TaskNode, Wake};
use crate::clock::now_ns;
use crate::token;
use engine::Request;

/// Most tasks that are polled in one phase, so that other queues get their turn.
const POLL_BUDGET: usize = 256;

/// How far an async task has come.
enum TaskState {
    Free,
    /// The task waits for memory.
    Reserving(LocalFuture<Result<(), Errno>>),
    Running(LocalFuture<Result<(), Errno>>),
    /// Its function has returned; some of its I/O is still in flight.
    Ended(Result<(), Errno>),
}

/// A place for an async task in the executor's table.
struct TaskSlot {
    state: TaskState,
    waker: Waker,
    /// The token of its request.
    token: u64,
    /// The token of its source's request.
    source_token: u64,
    /// How many tasks were spawned before it.
    spawn_number: u64,
}

/// Runs the async tasks of one iothread.
pub(crate) struct Executor {
    tasks: Vec<TaskSlot>,
    free_tasks: Vec<u32>,
    running: usize,
    /// Number of tasks spawned so far, which is the number of the next one.
    spawned_count: u64,
    shared: Rc<ExecutorShared>,
    woken: WokenBlocks,
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
            free_tasks: Vec::new(),
            running: 0,
            spawned_count: 0,
            shared: Rc::new(ExecutorShared::new()),
            woken: WokenBlocks::new(wake),
            completed: Vec::new(),
            batch: Vec::new(),
        }
    }

    /// Whether no task runs, and none has completed since the last reap.
    #[inline]
    pub fn has_none_running_or_completed(&self) -> bool {
        self.running == 0 && self.completed.is_empty()
    }

    /// Spawns a task for a request. `source_token` is that of the source's request that it is, or is a part of. There is no limit of
    /// tasks but the number of requests that sources have in flight, so none takes the room of another. The request completes when
    /// the task does. The next [`poll_due_and_woken`](Self::poll_due_and_woken) polls it.
    pub fn spawn(&mut self, node: Rc<dyn TaskNode>, request: Request, source_token: u64) {
        let token = request.token;
        let needed_buffer_bytes = node.needed_buffer_bytes(&request);
        let task = self.free_tasks.pop().unwrap_or_else(|| {
            let index = u32::try_from(self.tasks.len()).unwrap_or(NO_TASK);
            self.tasks.push(TaskSlot {
                state: TaskState::Free,
                waker: self.woken.waker(index),
                token,
                source_token,
                spawn_number: 0,
            });
            index
        });
        let cx = TaskContext {
            shared: self.shared.clone(),
            source_token,
        };
        self.shared.current.set(task);
        let future = node.run(cx, request);
        self.shared.current.set(NO_TASK);
        let slot = &mut self.tasks[task as usize];
        (slot.token, slot.source_token) = (token, source_token);
        slot.spawn_number = self.spawned_count;
        self.spawned_count += 1;
        self.running += 1;
        let mut buffers = self.shared.buffers.borrow_mut();
        if buffers.reserve_or_queue(task, needed_buffer_bytes) {
            slot.state = TaskState::Running(future);
            self.woken.insert_without_waking_loop(task);
        } else {
            slot.state = TaskState::Reserving(future);
        }
    }

    /// Whether a task has to be polled, or one has completed.
    pub fn has_runnable_or_completed(&self) -> bool {
        let is_due = || self.next_deadline_ns().is_some_and(|due| due <= now_ns());
        !self.completed.is_empty() || self.running > 0 && (self.woken.may_have_any() || is_due())
    }

    /// The time at which the clock wakes the next task.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        self.shared.timers.borrow().next_deadline_ns()
    }

    /// Polls tasks that were woken, at most [`POLL_BUDGET`]; of these, earlier requests first: their I/O reaches the disk in the order
    /// in which the guest asked for it, as it would without a filter. Which of more tasks come first does not depend on their
    /// requests, so that new ones have their turn beside old ones that are woken again and again.
    pub fn poll_due_and_woken(&mut self) {
        if self.running == 0 {
            return;
        }
        self.wake_due_tasks();
        let mut batch = std::mem::take(&mut self.batch);
        self.woken.take_batch(POLL_BUDGET, &mut batch);
        batch.sort_unstable_by_key(|task| self.tasks[*task as usize].spawn_number);
        for task in batch.drain(..) {
            self.poll_task(task);
        }
        self.batch = batch;
    }

    /// Wakes the tasks that wait for the clock and whose time has come.
    fn wake_due_tasks(&mut self) {
        let shared = &self.shared;
        if self.next_deadline_ns().is_none() {
            return;
        }
        let now_ns = now_ns();
        loop {
            let due = shared.timers.borrow_mut().take_next_due(now_ns);
            let Some(waker) = due else {
                return;
            };
            waker.wake();
        }
    }

    /// Polls one task, if it still runs, and completes it if its function has returned.
    fn poll_task(&mut self, task: u32) {
        // A task that has ended may still be woken, by something that it has waited for.
        let Some(TaskSlot {
            state: state @ TaskState::Running(_),
            waker,
            ..
        }) = self.tasks.get_mut(task as usize)
        else {
            return;
        };
        let TaskState::Running(future) = state else {
            return;
        };
        self.shared.current.set(task);
        if let Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(waker)) {
            // Drops the future, which abandons I/O that it did not await.
            *state = TaskState::Ended(result);
            self.complete_if_io_done(task);
        }
        self.shared.current.set(NO_TASK);
    }

    /// Completes a task that has ended, if none of its I/O is in flight.
    fn complete_if_io_done(&mut self, task: u32) {
        if self.shared.io.borrow().in_flight_count_of_task(task) > 0 {
            return;
        }
        let slot = &mut self.tasks[task as usize];
        let TaskState::Ended(result) = slot.state else {
            return;
        };
        slot.state = TaskState::Free;
        self.shared.io.borrow_mut().report_task_marks(task);
        self.completed.push(Completion {
            token: slot.token,
            result,
        });
        self.free_tasks.push(task);
        self.running -= 1;
        self.free_buffers_and_start_waiting(task);
    }

    /// Frees the memory of a task, and starts tasks that wait for memory.
    fn free_buffers_and_start_waiting(&mut self, task: u32) {
        let mut buffers = self.shared.buffers.borrow_mut();
        buffers.release(task);
        while let Some(next) = buffers.reserve_for_next_waiting() {
            let state = &mut self.tasks[next as usize].state;
            if let TaskState::Reserving(future) = std::mem::replace(state, TaskState::Free) {
                *state = TaskState::Running(future);
                self.woken.insert_without_waking_loop(next);
            }
        }
    }

    /// Removes the completions of tasks' I/O from `completions`, and wakes those tasks.
    pub fn dispatch_io_completions(&mut self, completions: &mut Vec<Completion>) {
        if !self.shared.io.borrow().has_in_flight() {
            return;
        }
        let mut tasks = std::mem::take(&mut self.batch);
        completions.retain(|completion| {
            let completed = self
                .shared
                .io
                .borrow_mut()
                .record_io_completion_and_take_waker(*completion);
            let Some((task, waker)) = completed else {
                return true;
            };
            if let Some(waker) = waker {
                waker.wake();
            }
            tasks.push(task);
            false
        });
        for task in tasks.drain(..) {
            self.complete_if_io_done(task);
        }
        self.batch = tasks;
    }

    /// Appends the completions of requests whose tasks have completed to `out`.
    pub fn take_completed(&mut self, out: &mut Vec<Completion>) {
        out.append(&mut self.completed);
    }

    /// The next request of a task to a backend, in order.
    pub fn pop_outgoing(&mut self) -> Option<BackendRequest> {
        self.shared.io.borrow_mut().outbox.pop_front()
    }

    /// How much of a resource the tasks' requests of a file occupy.
    pub fn occupied_count(&self, resource: SharedResource, file_index: usize) -> usize {
        let io = self.shared.io.borrow();
        io.occupied_count(resource, file_index)
    }

    /// Counts that a request of a task, which a backend has taken, occupies a resource.
    pub fn count_occupied(&mut self, resource: SharedResource, file_index: usize, token: u64) {
        let mut io = self.shared.io.borrow_mut();
        io.count_occupied(resource, file_index, token);
    }

    /// Number of requests in the outbox.
    pub fn outgoing_count(&self) -> usize {
        self.shared.io.borrow().outbox.len()
    }

    /// Returns a request to the end of the outbox, since the backend had no room.
    pub fn push_back_outgoing(&mut self, outgoing: BackendRequest) {
        self.shared.io.borrow_mut().outbox.push_back(outgoing);
    }

    /// Prepares for the end of the source with this index: its tasks wait for nothing that may take for ever, until
    /// [`forget_ended_source`](Self::forget_ended_source).
    pub fn end_unbounded_waits(&mut self, source_index: u32) {
        self.shared.stopping.borrow_mut().push(source_index);
        self.wake_tasks_by_source_token(|token| token::source_index(token) == source_index);
    }

    /// Lets these requests of the source with this index, and no others, bypass their gates.
    pub fn let_requests_bypass_gates(&mut self, source_index: u32, request_numbers: BTreeSet<u32>) {
        let mut bypassing = self.shared.bypassing.borrow_mut();
        let before = bypassing.remove(&source_index).unwrap_or_default();
        let is_new = |number| request_numbers.contains(&number) && !before.contains(&number);
        self.wake_tasks_by_source_token(|token| {
            token::source_index(token) == source_index && is_new(token::request_number(token))
        });
        if !request_numbers.is_empty() {
            bypassing.insert(source_index, request_numbers);
        }
    }

    /// Wakes running tasks by the token of their source's request, so that they see that they no longer have to wait.
    fn wake_tasks_by_source_token(&self, is_meant: impl Fn(u64) -> bool) {
        for (index, task) in (0u32..).zip(&self.tasks) {
            if matches!(task.state, TaskState::Running(_)) && is_meant(task.source_token) {
                self.woken.insert_without_waking_loop(index);
            }
        }
    }

    /// Notes that the source with this index has ended.
    pub fn forget_ended_source(&mut self, source_index: u32) {
        self.shared
            .stopping
            .borrow_mut()
            .retain(|other| *other != source_index);
        self.shared.bypassing.borrow_mut().remove(&source_index);
    }
}

#[cfg(test)]
mod tests;
