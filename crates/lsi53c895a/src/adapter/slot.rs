//! The adapter's slot for a task of the chip: its SCSI task (crate `scsi`), its data buffers and its stage.

use crate::chip::{TagAttribute, TaskSlotId};
use libc::iovec;
use scsi::{Sense, Task, Waker};

/// The stage of the task in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskStage {
    /// There is no task.
    Free,
    /// Its data is being collected.
    Received,
    /// It waits for others before it.
    Waiting,
    /// It is executed, or waits for its unit.
    Running,
    /// A request of it is queued or in flight.
    Submitted,
    /// The same, and the chip has aborted it.
    Aborted,
    /// It has finished, but its status was not sent.
    Finished,
}

/// The initiator's buffers.
#[derive(Clone, Copy)]
pub struct InitiatorBuffers {
    iov: *mut iovec,
    count: u32,
    len: u64,
}

// SAFETY: the list belongs to the chip's task, and moves between threads only with the chip.
unsafe impl Send for InitiatorBuffers {}

impl InitiatorBuffers {
    pub const NONE: InitiatorBuffers = InitiatorBuffers {
        iov: std::ptr::null_mut(),
        count: 0,
        len: 0,
    };

    /// InitiatorBuffers of a task. The chip keeps the list as long as the task.
    pub fn from_segments(segments: &mut [iovec], len: u64) -> Self {
        InitiatorBuffers {
            count: u32::try_from(segments.len()).unwrap_or(0),
            iov: segments.as_mut_ptr(),
            len,
        }
    }
}

/// A reusable slot for a task.
pub struct AdapterTaskSlot {
    pub task: Task,
    pub id: TaskSlotId,
    pub stage: TaskStage,
    /// The index of its disk; `None`: there is no unit of this number.
    pub disk: Option<usize>,
    pub attribute: scsi::TaskAttribute,
    /// It must end with this sense data.
    pub refusal_sense: Option<Sense>,
    pub buffers: InitiatorBuffers,
    /// The generation of the memory that it uses.
    pub memory_generation: Option<u32>,
}

impl AdapterTaskSlot {
    /// A slot without a task. The waker resumes its tasks.
    pub fn new(waker: Waker) -> Self {
        AdapterTaskSlot {
            task: Task::new(waker),
            id: TaskSlotId {
                index: 0,
                generation: 0,
            },
            stage: TaskStage::Free,
            disk: None,
            attribute: scsi::TaskAttribute::Simple,
            refusal_sense: None,
            buffers: InitiatorBuffers::NONE,
            memory_generation: None,
        }
    }

    /// Begins a new command.
    pub fn begin_command(&mut self, id: TaskSlotId, disk: Option<usize>, attribute: TagAttribute) {
        debug_assert!(matches!(self.stage, TaskStage::Free | TaskStage::Received));
        self.id = id;
        self.stage = TaskStage::Received;
        self.disk = disk;
        self.attribute = match attribute {
            TagAttribute::Untagged | TagAttribute::Simple => scsi::TaskAttribute::Simple,
            TagAttribute::Head => scsi::TaskAttribute::HeadOfQueue,
            TagAttribute::Ordered => scsi::TaskAttribute::Ordered,
        };
        self.refusal_sense = None;
    }

    /// Executes the command.
    pub fn run_received_command(&mut self) -> scsi::AdapterStep {
        self.stage = TaskStage::Running;
        let InitiatorBuffers { iov, count, len } = self.buffers;
        // SAFETY: until the task has ended, the chip keeps the list, and the generation of memory that the slot has
        // entered keeps the mappings.
        unsafe { self.task.run(iov, count, len) }
    }
}
