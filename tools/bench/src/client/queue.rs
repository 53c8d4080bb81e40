//! A queue as the loop of a client thread sees it: heads go out and come back.

use std::os::fd::BorrowedFd;

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
