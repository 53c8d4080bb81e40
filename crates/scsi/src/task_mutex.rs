//! Mutexes of a unit for tasks that read and then write (COMPARE AND WRITE, ORWRITE) or change persistent reservations, and the
//! [`Waker`] by which a waiting task is resumed. A task that has to wait blocks no thread: its waker is called when it has the
//! mutex.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// Resumes waiting tasks.
pub trait Resume: Send + Sync {
    /// Resumes the task of this token: `Task::on_resumed` is to be called on the thread that has it. This is
    /// called from the thread on which another task ends.
    fn schedule_resume(&self, token: u64);
}

/// A handle to resume a task.
#[derive(Clone)]
pub struct Waker {
    /// The adapter.
    pub resume: Arc<dyn Resume>,
    /// The adapter's number for the task.
    pub token: u64,
}

/// The mutexes of a unit, by the commands that lock them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MutexKind {
    /// COMPARE AND WRITE, ORWRITE.
    Blocks,
    /// PERSISTENT RESERVE OUT.
    Reservations,
}

/// All mutexes of a unit.
#[derive(Default)]
pub(crate) struct TaskMutexes {
    blocks: TaskMutex,
    reservations: TaskMutex,
}

impl TaskMutexes {
    fn mutex_of_kind(&self, kind: MutexKind) -> &TaskMutex {
        match kind {
            MutexKind::Blocks => &self.blocks,
            MutexKind::Reservations => &self.reservations,
        }
    }

    /// Locks a mutex for a task, or enqueues the task. True: it has the mutex; otherwise the waker is called when it has.
    pub fn lock_or_enqueue(&self, kind: MutexKind, waker: &Waker) -> (MutexTicket, bool) {
        let (number, locked) = self.mutex_of_kind(kind).lock_or_enqueue(waker);
        (MutexTicket { kind, number }, locked)
    }

    /// Whether the task has the mutex.
    pub fn is_held_by(&self, ticket: MutexTicket) -> bool {
        self.mutex_of_kind(ticket.kind).is_held_by(ticket.number)
    }

    /// Passes the mutex of a task to the next one, which is resumed; or removes a task that waits.
    pub fn unlock_or_dequeue(&self, ticket: MutexTicket) {
        self.mutex_of_kind(ticket.kind)
            .unlock_or_dequeue(ticket.number);
    }
}

/// The task that has the mutex, and those that wait, by their numbers.
#[derive(Default)]
struct TaskMutexState {
    last_number: u64,
    holder: Option<u64>,
    waiting: VecDeque<(u64, Waker)>,
}

/// A mutex that tasks lock, in the order in which they came.
#[derive(Default)]
struct TaskMutex(Mutex<TaskMutexState>);

/// A task's number at a mutex, which it has or waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MutexTicket {
    kind: MutexKind,
    number: u64,
}

impl TaskMutex {
    /// Locks the mutex if it is free, else enqueues the task. Returns its number, and whether it has the mutex.
    fn lock_or_enqueue(&self, waker: &Waker) -> (u64, bool) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        inner.last_number += 1;
        let ticket = inner.last_number;
        let locked = inner.holder.is_none();
        if locked {
            inner.holder = Some(ticket);
        } else {
            inner.waiting.push_back((ticket, waker.clone()));
        }
        (ticket, locked)
    }

    /// Whether the task with this number has the mutex.
    fn is_held_by(&self, ticket: u64) -> bool {
        let inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        inner.holder == Some(ticket)
    }

    /// Passes the mutex to the next task, or removes one that waits.
    fn unlock_or_dequeue(&self, ticket: u64) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.holder != Some(ticket) {
            inner.waiting.retain(|(waiting, _)| *waiting != ticket);
            return;
        }
        let next = inner.waiting.pop_front();
        inner.holder = next.as_ref().map(|(ticket, _)| *ticket);
        drop(inner);
        if let Some((_, waker)) = next {
            waker.resume.schedule_resume(waker.token);
        }
    }
}
