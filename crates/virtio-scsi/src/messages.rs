//! Messages between the queues of a device, which may run on different threads, and the [`TmfSharedByQueues`] that a task management
//! function sends to them.
//!
//! A task management function may concern commands of any queue. The control queue sends a [`TmfSharedByQueues`] to all of them, and each
//! keeps it as long as one of these commands is with it: what the kernel has begun cannot be called back, and what lies in the ring
//! must be taken off it before it is known not to be meant. When the last queue drops it, the control queue gets the outcome.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use scsi::Resume;

use crate::address::Address;
use crate::wire::Response;

/// A message to a queue.
pub enum QueueMessage {
    /// Resume the command in this slot.
    Resume(u64),
    /// To a request queue: end commands, or only look for them.
    CancelOrFind(Arc<TmfSharedByQueues>),
    /// To the control queue: all commands of a function have ended.
    TmfEnded(TmfOutcome),
    /// To the event queue: there are events to report.
    Events,
}

/// Delivers messages to a queue, on the thread that runs it. A queue that has ended drops them.
pub trait MessagePort: Send + Sync {
    /// Sends a message without waiting.
    fn send(&self, message: QueueMessage);
}

/// Resumes waiting commands of a queue by a message to it.
pub(crate) struct ResumeByMessage(pub Arc<dyn MessagePort>);

impl Resume for ResumeByMessage {
    fn schedule_resume(&self, token: u64) {
        self.0.send(QueueMessage::Resume(token));
    }
}

/// The commands that a task management function concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TmfScope {
    /// The command of this unit with this tag.
    Task(Address, u64),
    /// All of this unit.
    Unit(Address),
    /// All of all units of this target.
    Target(u8),
}

impl TmfScope {
    /// Whether a command is concerned.
    pub fn matches(self, address: Address, tag: u64) -> bool {
        match self {
            TmfScope::Task(of, with) => of == address && with == tag,
            TmfScope::Unit(of) => of == address,
            TmfScope::Target(target) => target == address.target,
        }
    }
}

/// The outcome of a task management function, for the control queue.
pub struct TmfOutcome {
    /// The control queue's number for the function.
    pub(crate) function: u64,
    /// Whether a command was found.
    pub(crate) found: bool,
}

/// A task management function in progress, shared by the queues that have commands to end.
pub struct TmfSharedByQueues {
    pub(crate) scope: TmfScope,
    /// The response to the commands; `None`: they are only searched for.
    pub(crate) command_response: Option<Response>,
    found: AtomicBool,
    function: u64,
    control_port: Arc<dyn MessagePort>,
}

impl TmfSharedByQueues {
    /// A function that ends, or looks for, the commands in `scope`, and whose outcome goes to the control queue through `control_port`.
    pub(crate) fn new(
        scope: TmfScope,
        command_response: Option<Response>,
        function: u64,
        control_port: Arc<dyn MessagePort>,
    ) -> Arc<Self> {
        Arc::new(TmfSharedByQueues {
            scope,
            command_response,
            found: AtomicBool::new(false),
            function,
            control_port,
        })
    }

    /// Notes that a command of the scope was found.
    pub(crate) fn mark_found(&self) {
        self.found.store(true, Ordering::Relaxed);
    }
}

impl Drop for TmfSharedByQueues {
    fn drop(&mut self) {
        self.control_port.send(QueueMessage::TmfEnded(TmfOutcome {
            function: self.function,
            found: *self.found.get_mut(),
        }));
    }
}
