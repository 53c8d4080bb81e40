//! What a task wants done that may take its time: not by the thread that has the task.

use std::sync::{Arc, Mutex, PoisonError};

use block::{Allocation, Node};
use engine::Errno;

use crate::keeper::Keeper;
use crate::steps::{Extent, Steps};
use crate::task::{Task, Work};

/// Something for a thread that may wait.
#[derive(Debug)]
pub struct Chore(pub(crate) What);

#[derive(Debug)]
pub(crate) enum What {
    /// Reservations are to be kept.
    Keep(Arc<dyn Keeper>, String),
    /// Which of these bytes have space?
    Look(Look),
}

/// A question, and where the answer goes.
#[derive(Clone, Debug)]
pub(crate) struct Look {
    pub extent: Extent,
    /// So many pieces are enough.
    pub most: usize,
    pub found: Arc<Mutex<Vec<Allocation>>>,
}

impl Chore {
    /// Does it, for a unit that shows this node.
    ///
    /// # Errors
    /// For [`Task::completed`](crate::Task::completed), as what it says if all went well.
    pub fn run(self, node: &Node) -> Result<(), Errno> {
        self.run_with(|offset, len, most| node.allocations(offset, len, most))
    }

    /// The same with somebody else who knows what [`Node::allocations`] says.
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    pub fn run_with(
        self,
        allocations: impl FnOnce(u64, u64, usize) -> Result<Vec<Allocation>, Errno>,
    ) -> Result<(), Errno> {
        match self.0 {
            What::Keep(keeper, text) => keeper.keep(&text),
            What::Look(look) => {
                let found = allocations(look.extent.offset, look.extent.len, look.most)?;
                *look.found.lock().unwrap_or_else(PoisonError::into_inner) = found;
                Ok(())
            }
        }
    }
}

impl Task {
    /// What is to be done for [`Step::Chore`](crate::Step::Chore).
    #[must_use]
    pub fn chore(&self) -> Option<Chore> {
        match (&self.work, &self.unit) {
            (Work::Steps(Steps::Reserve(steps)), Some(unit)) => steps.chore(unit),
            (Work::Steps(Steps::LbaStatus(steps)), _) => Some(steps.chore()),
            _ => None,
        }
    }
}
