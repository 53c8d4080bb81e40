//! Task management functions on their way through the queues.
//!
//! The commands that one is about may be in any queue, on any thread. Each queue gets a [`Cancel`] and keeps it as
//! long as one of these commands is with it: what the kernel has begun cannot be called back, and what lies in the ring must
//! be taken off it before it is known not to be meant. When nobody keeps it any more, the control queue hears of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::address::Address;
use crate::port::{Port, ToQueue};
use crate::wire::Response;

/// Which commands are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Of this unit, with this tag.
    Task(Address, u64),
    /// Of this unit.
    Unit(Address),
    /// Of all units of this target.
    Target(u8),
}

impl Scope {
    /// Whether a command is meant.
    pub fn has(self, address: Address, tag: u64) -> bool {
        match self {
            Scope::Task(of, with) => of == address && with == tag,
            Scope::Unit(of) => of == address,
            Scope::Target(target) => target == address.target,
        }
    }
}

/// What the control queue hears in the end.
pub struct Outcome {
    /// Its own number for the function.
    pub(crate) function: u64,
    /// A command was found.
    pub(crate) found: bool,
}

/// A function that is about commands.
pub struct Cancel {
    pub(crate) scope: Scope,
    /// What the commands are answered; `None`: they are only looked for.
    pub(crate) answer: Option<Response>,
    found: AtomicBool,
    function: u64,
    control: Arc<dyn Port>,
}

impl Cancel {
    pub(crate) fn new(
        scope: Scope,
        answer: Option<Response>,
        function: u64,
        control: Arc<dyn Port>,
    ) -> Arc<Self> {
        Arc::new(Cancel {
            scope,
            answer,
            found: AtomicBool::new(false),
            function,
            control,
        })
    }

    pub(crate) fn finds(&self) {
        self.found.store(true, Ordering::Relaxed);
    }
}

impl Drop for Cancel {
    fn drop(&mut self) {
        self.control.send(ToQueue::Cancelled(Outcome {
            function: self.function,
            found: *self.found.get_mut(),
        }));
    }
}
