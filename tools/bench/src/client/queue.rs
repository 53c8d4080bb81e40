//! A queue as the loop of a client thread sees it: heads go out and come back.

use std::os::fd::BorrowedFd;

use super::doorbells::Doorbells;
use super::ring::DriverRing;
use crate::error::Result;

/// The driver's side of a queue, with the means to call the server and to be called.
pub trait Queue {
    /// Signalled when the server calls.
    fn call_fd(&self) -> BorrowedFd<'_>;

    /// Sends `head`, at the next [`Queue::publish`] at the latest.
    ///
    /// # Errors
    /// When the server cannot be reached, as for all others.
    fn push(&mut self, head: u16) -> Result<()>;

    /// Lets the server see what was pushed.
    ///
    /// # Errors
    /// See [`Queue::push`].
    fn publish(&mut self) -> Result<()>;

    /// How many have completed that [`Queue::pop`] has not returned yet; never 0 when there are some.
    fn completed(&self) -> u16;

    /// The head of the next completed one; there is one.
    fn pop(&mut self) -> u32;

    /// Asks for no calls. To be repeated after each batch.
    fn suppress_calls(&mut self);

    /// Asks for a call at the next completion. True when there is one already: then do not wait.
    fn request_call(&mut self) -> bool;

    /// The server has called.
    ///
    /// # Errors
    /// See [`Queue::push`].
    fn called(&mut self) -> Result<()>;
}

/// A virtqueue, with its eventfds.
pub struct Virtqueue<'m> {
    ring: DriverRing<'m>,
    doorbells: &'m Doorbells,
}

impl<'m> Virtqueue<'m> {
    /// Both of the same queue.
    #[must_use]
    pub fn new(ring: DriverRing<'m>, doorbells: &'m Doorbells) -> Self {
        Virtqueue { ring, doorbells }
    }
}

impl Queue for Virtqueue<'_> {
    fn call_fd(&self) -> BorrowedFd<'_> {
        self.doorbells.call_fd()
    }

    #[inline]
    fn push(&mut self, head: u16) -> Result<()> {
        self.ring.push(head);
        Ok(())
    }

    #[inline]
    fn publish(&mut self) -> Result<()> {
        if self.ring.publish() {
            self.doorbells.kick();
        }
        Ok(())
    }

    #[inline]
    fn completed(&self) -> u16 {
        self.ring.completed()
    }

    #[inline]
    fn pop(&mut self) -> u32 {
        self.ring.pop()
    }

    #[inline]
    fn suppress_calls(&mut self) {
        self.ring.suppress_calls();
    }

    #[inline]
    fn request_call(&mut self) -> bool {
        self.ring.request_call()
    }

    fn called(&mut self) -> Result<()> {
        self.ring.suppress_calls();
        Ok(())
    }
}
