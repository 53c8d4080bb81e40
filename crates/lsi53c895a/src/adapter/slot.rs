//! One task of the chip's: the command, and what was promised about it.

use crate::chip::{Attribute as Tag, TaskId};
use libc::iovec;
use scsi::{Attribute, Sense, Task, Waker};

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// There is none.
    Free,
    /// Its data is being collected.
    Received,
    /// It waits for others before it.
    Waiting,
    /// It is carried out, or waits for its unit.
    Running,
    /// A request of it is with an engine, or on its way there.
    Submitted,
    /// As before, and the chip has aborted it.
    Aborted,
    /// It is over, but for its status.
    Finished,
}

/// What the initiator has for its data.
#[derive(Clone, Copy)]
pub struct Buffers {
    iov: *mut iovec,
    count: u32,
    len: u64,
}

// SAFETY: an address that the chip keeps for the task; it moves between threads only with the chip.
unsafe impl Send for Buffers {}

impl Buffers {
    pub const NONE: Buffers = Buffers {
        iov: std::ptr::null_mut(),
        count: 0,
        len: 0,
    };

    /// The list stays as long as the task, as the chip promises.
    pub fn new(segments: &mut [iovec], len: u64) -> Self {
        Buffers {
            count: u32::try_from(segments.len()).unwrap_or(0),
            iov: segments.as_mut_ptr(),
            len,
        }
    }
}

/// A place for a task, used again and again.
pub struct Slot {
    pub task: Task,
    pub id: TaskId,
    pub stage: Stage,
    /// Its unit's place among the disks; `None`: there is no unit of this number.
    pub disk: Option<usize>,
    pub attribute: Attribute,
    /// It has data for the initiator.
    pub reads: bool,
    /// It ends so, whatever it was.
    pub refused: Option<Sense>,
    pub buffers: Buffers,
    /// The generation of the memory that it uses.
    pub epoch: Option<u32>,
}

impl Slot {
    pub fn new(waker: Waker) -> Self {
        Slot {
            task: Task::new(waker),
            id: TaskId {
                index: 0,
                generation: 0,
            },
            stage: Stage::Free,
            disk: None,
            attribute: Attribute::Simple,
            reads: false,
            refused: None,
            buffers: Buffers::NONE,
            epoch: None,
        }
    }

    /// A command comes.
    pub fn begin(&mut self, id: TaskId, disk: Option<usize>, tag: Tag) {
        debug_assert!(matches!(self.stage, Stage::Free | Stage::Received));
        self.id = id;
        self.stage = Stage::Received;
        self.disk = disk;
        self.attribute = match tag {
            Tag::Untagged | Tag::Simple => Attribute::Simple,
            Tag::Head => Attribute::HeadOfQueue,
            Tag::Ordered => Attribute::Ordered,
        };
        self.reads = false;
        self.refused = None;
    }

    /// Carries the command out.
    pub fn go(&mut self) -> scsi::Step {
        self.stage = Stage::Running;
        let Buffers { iov, count, len } = self.buffers;
        // SAFETY: what the chip has collected stays where it is until the task has ended, with the list (the chip), and
        // with the mappings (the generation that the slot has entered).
        unsafe { self.task.run(iov, count, len) }
    }
}
