//! The way to a running queue from other threads.

use std::sync::Arc;

use scsi::Resume;

use crate::cancel::{Cancel, Outcome};

/// What a queue is told.
pub enum ToQueue {
    /// The command in this slot may go on.
    Resume(u64),
    /// Commands are to end.
    Cancel(Arc<Cancel>),
    /// To the control queue: all of them have.
    Cancelled(Outcome),
    /// To the event queue: there are some.
    Events,
}

/// Brings messages to a queue, to be handled by the thread that runs it. One that has ended drops them.
pub trait Port: Send + Sync {
    /// Sends one, without waiting.
    fn send(&self, message: ToQueue);
}

/// As commands see it that wait.
pub(crate) struct Resumes(pub Arc<dyn Port>);

impl Resume for Resumes {
    fn resume(&self, token: u64) {
        self.0.send(ToQueue::Resume(token));
    }
}
