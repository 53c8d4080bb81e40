//! State that the async tasks of an iothread share with their executor.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use super::buffers::TaskBuffers;
use super::io::IoTable;
use super::timers::TaskTimers;

/// In place of a task's index: no task runs.
pub(super) const NO_TASK: u32 = u32::MAX;

/// State that async tasks and their executor share.
pub(super) struct ExecutorShared {
    /// The task that is polled.
    pub current: Cell<u32>,
    pub io: RefCell<IoTable>,
    pub timers: RefCell<TaskTimers>,
    pub buffers: RefCell<TaskBuffers>,
    /// Indices of sources that are about to end.
    pub stopping: RefCell<Vec<u32>>,
    /// By source index: the numbers of the requests that bypass their gates.
    pub bypassing: RefCell<BTreeMap<u32, BTreeSet<u32>>>,
}

impl ExecutorShared {
    /// Without tasks.
    pub fn new() -> Self {
        ExecutorShared {
            current: Cell::new(NO_TASK),
            io: RefCell::default(),
            timers: RefCell::default(),
            buffers: RefCell::default(),
            stopping: RefCell::default(),
            bypassing: RefCell::default(),
        }
    }
}
