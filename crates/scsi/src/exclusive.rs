//! Mutual exclusion of read-modify-write commands of a unit.
//!
//! COMPARE AND WRITE and ORWRITE are atomic among themselves, and so are changes of persistent reservations. A task that has
//! to wait blocks no thread: its adapter is called when it is its turn.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// Resumes waiting tasks.
pub trait Resume: Send + Sync {
    /// Resumes the task of this token: `Task::resumed` is to be called on the thread that has it. This is
    /// called from the thread on which another task ends.
    fn resume(&self, token: u64);
}

/// A handle to resume a task.
#[derive(Clone)]
pub struct Waker {
    /// The adapter.
    pub resume: Arc<dyn Resume>,
    /// The adapter's number for the task.
    pub token: u64,
}

/// Operations that one task executes at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exclusion {
    /// COMPARE AND WRITE, ORWRITE.
    Blocks,
    /// PERSISTENT RESERVE OUT.
    Reservations,
}

/// The lines of a unit.
#[derive(Default)]
pub(crate) struct Exclusions {
    blocks: TaskMutex,
    reservations: TaskMutex,
}

impl Exclusions {
    fn line_of(&self, exclusion: Exclusion) -> &TaskMutex {
        match exclusion {
            Exclusion::Blocks => &self.blocks,
            Exclusion::Reservations => &self.reservations,
        }
    }

    /// Enqueues a task. True: it is its turn at once; otherwise the waker is called when it is.
    pub fn enter(&self, exclusion: Exclusion, waker: &Waker) -> (Ticket, bool) {
        let (number, ours) = self.line_of(exclusion).enter(waker);
        (Ticket { exclusion, number }, ours)
    }

    /// Whether it is the task's turn.
    pub fn is_turn_of(&self, ticket: Ticket) -> bool {
        self.line_of(ticket.exclusion).is_turn_of(ticket.number)
    }

    /// Ends a task's turn, and resumes the next task; or removes a task that waits.
    pub fn leave(&self, ticket: Ticket) {
        self.line_of(ticket.exclusion).leave(ticket.number);
    }
}

#[derive(Default)]
struct Inner {
    next: u64,
    holder: Option<u64>,
    waiting: VecDeque<(u64, Waker)>,
}

/// A mutex of tasks: the one that has its turn, and those that wait.
#[derive(Default)]
struct TaskMutex(Mutex<Inner>);

/// A task's position in the queue of an exclusion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    exclusion: Exclusion,
    number: u64,
}

impl TaskMutex {
    /// Takes the turn if it is free, else enqueues the task. Returns its number, and whether it has the turn.
    fn enter(&self, waker: &Waker) -> (u64, bool) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        inner.next += 1;
        let ticket = inner.next;
        let ours = inner.holder.is_none();
        if ours {
            inner.holder = Some(ticket);
        } else {
            inner.waiting.push_back((ticket, waker.clone()));
        }
        (ticket, ours)
    }

    /// Whether the task with this number has the turn.
    fn is_turn_of(&self, ticket: u64) -> bool {
        let inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        inner.holder == Some(ticket)
    }

    /// Passes the turn to the next task, or removes one that waits.
    fn leave(&self, ticket: u64) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.holder != Some(ticket) {
            inner.waiting.retain(|(waiting, _)| *waiting != ticket);
            return;
        }
        let next = inner.waiting.pop_front();
        inner.holder = next.as_ref().map(|(ticket, _)| *ticket);
        drop(inner);
        if let Some((_, waker)) = next {
            waker.resume.resume(waker.token);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Woken(Mutex<Vec<u64>>);

    impl Resume for Woken {
        fn resume(&self, token: u64) {
            self.0.lock().unwrap().push(token);
        }
    }

    #[test]
    fn waiting_tasks_are_resumed_in_order_except_those_that_left() {
        let woken = Arc::new(Woken::default());
        let waker = |token| Waker {
            resume: woken.clone(),
            token,
        };
        let exclusive = TaskMutex::default();
        let (first, ours) = exclusive.enter(&waker(1));
        assert!(ours);
        let tickets: Vec<u64> = (2..5)
            .map(|token| {
                let (ticket, ours) = exclusive.enter(&waker(token));
                assert!(!ours);
                ticket
            })
            .collect();
        exclusive.leave(tickets[1]);
        exclusive.leave(first);
        assert_eq!(*woken.0.lock().unwrap(), [2]);
        assert!(exclusive.is_turn_of(tickets[0]) && !exclusive.is_turn_of(tickets[2]));
        exclusive.leave(tickets[0]);
        assert_eq!(*woken.0.lock().unwrap(), [2, 4]);
        exclusive.leave(tickets[2]);
        assert!(exclusive.enter(&waker(5)).1, "no task is left");
    }
}
