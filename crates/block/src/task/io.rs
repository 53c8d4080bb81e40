//! I/O that tasks wait for.
//!
//! Each has a place in a table from when it is asked for until its result is taken. The backends know it by a token with
//! that place in the lower half, and [`TASK_SOURCE`] in the upper one, which no queue has.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use engine::uring::RangeIo;
use engine::{Completion, Errno};

use super::executor::Shared;
use crate::job::Work;
use crate::request::Request;
use crate::route::Target;

/// Upper half of the tokens of tasks' I/O: no place of a queue.
pub(super) const TASK_SOURCE: u64 = (u32::MAX as u64) << 32;

/// What a task asks of the backends.
pub(crate) enum Outgoing {
    /// A request to a file, by whatever carries that.
    Request(Target, Request),
    /// A range of a file that the ring works on.
    Range(RangeIo),
    /// What may block.
    Work(Work),
}

enum State {
    Free,
    /// It is out; whom to wake.
    Out(Option<Waker>),
    Done(Result<(), Errno>),
    /// It is out, and nobody waits for it any more.
    Abandoned,
}

struct Entry {
    state: State,
    task: u32,
}

/// The I/O of an iothread's tasks.
#[derive(Default)]
pub(super) struct IoTable {
    entries: Vec<Entry>,
    free: Vec<u32>,
    /// So many are out.
    out: usize,
    /// What was not handed to a backend yet, in order.
    pub outbox: VecDeque<Outgoing>,
}

impl IoTable {
    fn begin(&mut self, task: u32) -> u32 {
        self.out += 1;
        let entry = Entry {
            state: State::Out(None),
            task,
        };
        if let Some(place) = self.free.pop() {
            self.entries[place as usize] = entry;
            return place;
        }
        self.entries.push(entry);
        u32::try_from(self.entries.len() - 1).unwrap_or_else(|_| unreachable!("memory ends before"))
    }

    fn release(&mut self, place: u32) {
        self.entries[place as usize].state = State::Free;
        self.free.push(place);
    }

    /// Whether a backend may have something of a task.
    pub fn any_out(&self) -> bool {
        self.out > 0
    }

    /// A backend has answered: the task, and whom to wake of it. `None`: it is nothing of a task's.
    pub fn complete(&mut self, completion: Completion) -> Option<(u32, Option<Waker>)> {
        let Completion { token, result } = completion;
        let place = u32::try_from(token.checked_sub(TASK_SOURCE)?).ok()?;
        let entry = self.entries.get_mut(place as usize)?;
        self.out -= 1;
        let task = entry.task;
        let waker = match std::mem::replace(&mut entry.state, State::Done(result)) {
            State::Out(waker) => waker,
            State::Abandoned => {
                self.release(place);
                None
            }
            State::Free | State::Done(_) => {
                debug_assert!(false, "a completion of nothing");
                None
            }
        };
        Some((task, waker))
    }
}

/// One of them, to be awaited.
pub(super) struct IoFuture {
    shared: Rc<Shared>,
    place: u32,
}

impl IoFuture {
    /// Asks for it, in the name of the task that runs. `outgoing` makes what is asked for, with this token.
    pub fn new(shared: &Rc<Shared>, outgoing: impl FnOnce(u64) -> Outgoing) -> Self {
        let task = shared.current.get();
        let mut io = shared.io.borrow_mut();
        let place = io.begin(task);
        io.outbox
            .push_back(outgoing(TASK_SOURCE | u64::from(place)));
        drop(io);
        add(&shared.out_of_task, task);
        IoFuture {
            shared: shared.clone(),
            place,
        }
    }
}

fn add(out_of_task: &RefCell<Vec<u32>>, task: u32) {
    let mut out = out_of_task.borrow_mut();
    let index = task as usize;
    if out.len() <= index {
        out.resize(index + 1, 0);
    }
    out[index] += 1;
}

impl Future for IoFuture {
    type Output = Result<(), Errno>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut io = self.shared.io.borrow_mut();
        match &mut io.entries[self.place as usize].state {
            State::Done(result) => Poll::Ready(*result),
            State::Out(waker) => {
                match waker {
                    Some(waker) => waker.clone_from(cx.waker()),
                    None => *waker = Some(cx.waker().clone()),
                }
                Poll::Pending
            }
            State::Free | State::Abandoned => unreachable!("released by `drop` only"),
        }
    }
}

impl Drop for IoFuture {
    fn drop(&mut self) {
        let mut io = self.shared.io.borrow_mut();
        let entry = &mut io.entries[self.place as usize];
        match entry.state {
            State::Out(_) => entry.state = State::Abandoned,
            State::Done(_) => io.release(self.place),
            State::Free | State::Abandoned => unreachable!("released here only"),
        }
    }
}
