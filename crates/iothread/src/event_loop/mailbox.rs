//! Mailbox of a loop, for messages from the control plane.
//!
//! A lock and a vector, since no request passes through here: the loop takes the lock only after the wake flag was set.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::event_loop::poll_predictor::PollSettings;
use crate::event_loop::wake::Wake;

/// A message to the runner, or to the loop itself.
pub(crate) enum Mail<M> {
    /// A message to the runner.
    Message(M),
    /// New polling settings.
    Polling(PollSettings),
    /// End after the current iteration.
    Stop,
}

/// Messages that the loop has not read, until it is closed.
struct Inbox<M> {
    mail: Vec<Mail<M>>,
    closed: bool,
}

/// The mailbox of one loop, shared by the loop and all senders.
pub(crate) struct Mailbox<M> {
    inbox: Mutex<Inbox<M>>,
    wake: Arc<Wake>,
}

/// Error of a message that was not delivered: the loop has ended.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the iothread has stopped")]
pub struct StoppedError;

/// Sender of messages to a loop.
pub struct Remote<M> {
    mailbox: Arc<Mailbox<M>>,
}

impl<M> Clone for Remote<M> {
    fn clone(&self) -> Self {
        Remote {
            mailbox: self.mailbox.clone(),
        }
    }
}

impl<M> Mailbox<M> {
    pub(crate) fn new(wake: Arc<Wake>) -> Self {
        Mailbox {
            inbox: Mutex::new(Inbox {
                mail: Vec::new(),
                closed: false,
            }),
            wake,
        }
    }

    fn lock_inbox(&self) -> MutexGuard<'_, Inbox<M>> {
        // No code panics while it holds the lock, so poisoning means nothing.
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes all messages, in their order.
    pub(crate) fn take_all(&self) -> Vec<Mail<M>> {
        std::mem::take(&mut self.lock_inbox().mail)
    }

    /// Refuses further messages and drops those in it, with the senders that other threads wait on.
    pub(crate) fn close_and_drop_mail(&self) {
        let mut inbox = self.lock_inbox();
        inbox.closed = true;
        let mail = std::mem::take(&mut inbox.mail);
        drop(inbox);
        drop(mail);
    }
}

impl<M: Send> Remote<M> {
    pub(crate) fn new(mailbox: Arc<Mailbox<M>>) -> Self {
        Remote { mailbox }
    }

    /// Delivers a message; the loop reads it between two iterations, in order of sending.
    ///
    /// # Errors
    /// [`StoppedError`] when the loop has ended.
    pub fn send(&self, message: M) -> Result<(), StoppedError> {
        self.push_and_wake(Mail::Message(message))
    }

    /// Changes the loop's polling settings.
    ///
    /// # Errors
    /// [`StoppedError`] when the loop has ended.
    pub fn set_polling(&self, settings: PollSettings) -> Result<(), StoppedError> {
        self.push_and_wake(Mail::Polling(settings))
    }

    /// Ends the loop after the current iteration.
    ///
    /// # Errors
    /// [`StoppedError`] when it has ended before.
    pub fn stop(&self) -> Result<(), StoppedError> {
        self.push_and_wake(Mail::Stop)
    }

    /// Wakes the loop for an iteration, for engines that finish work on threads.
    #[must_use]
    pub fn waker(&self) -> Arc<Wake> {
        self.mailbox.wake.clone()
    }

    /// Adds a message to the mailbox and wakes the loop.
    fn push_and_wake(&self, mail: Mail<M>) -> Result<(), StoppedError> {
        let mut inbox = self.mailbox.lock_inbox();
        if inbox.closed {
            return Err(StoppedError);
        }
        inbox.mail.push(mail);
        drop(inbox);
        self.mailbox.wake.wake();
        Ok(())
    }
}
