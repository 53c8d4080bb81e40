//! A poller without a kernel: what is left is the cost of the loop and its slab alone.

use std::cell::RefCell;
use std::io;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use iothread::event_loop::poller::{Event, MAX_EVENTS_PER_WAIT};
use iothread::event_loop::{Interest, Poller, Readiness};

/// What it tells at its next waits.
#[derive(Default)]
pub(crate) struct Ready {
    /// Cookies, the last one first.
    pub cookies: Vec<u64>,
    /// Whatever is added is ready at once, as a readable descriptor is under `epoll(7)`.
    pub from_the_start: bool,
}

/// The poller; clones share what is ready.
#[derive(Clone, Default)]
pub(crate) struct NoKernel(pub Rc<RefCell<Ready>>);

impl Poller for NoKernel {
    fn add(&mut self, _: BorrowedFd<'_>, _: Interest, cookie: u64) -> io::Result<()> {
        let mut ready = self.0.borrow_mut();
        if ready.from_the_start {
            ready.cookies.push(cookie);
        }
        Ok(())
    }

    fn modify(&mut self, _: BorrowedFd<'_>, _: Interest, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn delete(&mut self, _: BorrowedFd<'_>) -> io::Result<()> {
        Ok(())
    }

    fn wait(&mut self, events: &mut Vec<Event>, _: Option<u64>) -> io::Result<()> {
        events.clear();
        let cookies = &mut self.0.borrow_mut().cookies;
        let kept = cookies.len().saturating_sub(MAX_EVENTS_PER_WAIT);
        events.extend(cookies.drain(kept..).map(|cookie| Event {
            cookie,
            readiness: Readiness {
                readable: true,
                ..Readiness::default()
            },
        }));
        Ok(())
    }

    /// Time stands still, and looking at it costs nothing.
    fn now_ns(&self) -> u64 {
        0
    }
}
