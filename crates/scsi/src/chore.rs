//! Blocking work of a task, which another thread than the task's carries out.

use block::DiskCall;

use crate::steps::Steps;
use crate::task::{Task, Work};

impl Task {
    /// What is to be done for [`Step::Chore`](crate::Step::Chore).
    #[must_use]
    pub fn chore(&self) -> Option<DiskCall> {
        match (&self.work, &self.unit) {
            (Work::Steps(Steps::Reserve(steps)), Some(unit)) => steps.chore(unit),
            (Work::Steps(Steps::LbaStatus(steps)), _) => Some(steps.chore()),
            _ => None,
        }
    }
}
