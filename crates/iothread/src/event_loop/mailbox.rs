//! Control messages: how the control plane reaches a loop.
//!
//! A lock and a vector, since nothing on a request's way comes through here: the loop takes the
//! lock only after the wake flag said that there is mail.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::event_loop::poll_predictor::PollSettings;
use crate::event_loop::wake::Wake;

/// What can be in the mailbox: the runner's messages, and those for the loop itself.
pub(crate) enum Mail<M> {
    Message(M),
    Polling(PollSettings),
    Stop,
}

struct Inbox<M> {
    mail: Vec<Mail<M>>,
    closed: bool,
}

pub(crate) struct Mailbox<M> {
    inbox: Mutex<Inbox<M>>,
    wake: Arc<Wake>,
}

/// The loop has ended; the message was not delivered.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the iothread has stopped")]
pub struct Stopped;

/// A loop as other threads see it.
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

    fn lock(&self) -> MutexGuard<'_, Inbox<M>> {
        // Nothing panics while holding the lock; a poisoned one is as good as any.
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn take(&self) -> Vec<Mail<M>> {
        std::mem::take(&mut self.lock().mail)
    }

    /// Refuses further mail and drops what is there, so that whoever waits for an answer hears.
    pub(crate) fn close(&self) {
        let mut inbox = self.lock();
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
    /// [`Stopped`] when the loop has ended.
    pub fn send(&self, message: M) -> Result<(), Stopped> {
        self.deliver(Mail::Message(message))
    }

    /// Changes how long the loop polls.
    ///
    /// # Errors
    /// [`Stopped`] when the loop has ended.
    pub fn set_polling(&self, settings: PollSettings) -> Result<(), Stopped> {
        self.deliver(Mail::Polling(settings))
    }

    /// Ends the loop after the current iteration.
    ///
    /// # Errors
    /// [`Stopped`] when it has ended before.
    pub fn stop(&self) -> Result<(), Stopped> {
        self.deliver(Mail::Stop)
    }

    /// Something that makes the loop run an iteration, for engines that finish work on threads.
    #[must_use]
    pub fn waker(&self) -> Arc<Wake> {
        self.mailbox.wake.clone()
    }

    fn deliver(&self, mail: Mail<M>) -> Result<(), Stopped> {
        let mut inbox = self.mailbox.lock();
        if inbox.closed {
            return Err(Stopped);
        }
        inbox.mail.push(mail);
        drop(inbox);
        self.mailbox.wake.wake();
        Ok(())
    }
}
