//! What goes to a worker thread: a request, or something else that may wait.

use std::sync::Arc;

use engine::{Completion, Errno};

use crate::node::{Backing, FdBacking, Node};
use crate::request::{Op, Request};
use crate::transfer::Segments;

/// Most requests have no more.
const FEW_SEGMENTS: usize = 8;

const NOTHING: libc::iovec = libc::iovec {
    iov_base: std::ptr::null_mut(),
    iov_len: 0,
};

/// Owns what it needs: the backing stays open until the worker is done with it.
pub(crate) struct Job {
    backing: Arc<Backing>,
    request: Request,
}

// SAFETY: the pointers of a request are only used by the one worker that runs the job, and its
// submitter keeps what they point to in place until the completion arrives (`Engines::submit`).
unsafe impl Send for Job {}

impl Job {
    /// # Safety
    /// As for [`crate::Engines::submit`].
    pub unsafe fn new(node: &Node, request: Request) -> Self {
        let offset = request.offset + node.base();
        let op = match request.op {
            Op::WriteZeroes { unmap } => Op::WriteZeroes {
                unmap: unmap && node.unmap(),
            },
            op => op,
        };
        Job {
            backing: node.backing.clone(),
            request: Request {
                op,
                offset,
                ..request
            },
        }
    }

    /// What it is done to; `None` for a null disk. (Who has a filter asks what is below it.)
    pub fn backing(&self) -> Option<&FdBacking> {
        match &*self.backing {
            Backing::Fd(backing) => Some(backing),
            Backing::Null(_) | Backing::Filter(_) => None,
        }
    }

    /// Whether the request has to be on stable storage when it is done.
    pub fn must_be_stable(&self) -> bool {
        self.request.fua && self.backing().is_some_and(|backing| !backing.no_flush)
    }

    fn transfer(&self) -> Result<(), Errno> {
        let Some(backing) = self.backing() else {
            return Ok(());
        };
        #[cfg(feature = "simulation")]
        if let Some(disk) = &backing.simulated {
            // SAFETY: `new`'s caller vouches for the segments.
            return unsafe { disk.carry_out(&self.request) };
        }
        let Request {
            op,
            fua,
            offset,
            len,
            iov,
            iov_count,
            ..
        } = self.request;
        let given = match iov_count {
            0 => &[][..],
            // SAFETY: `new`'s caller vouches for the list, which nobody else touches meanwhile.
            count => unsafe { std::slice::from_raw_parts(iov, count as usize) },
        };
        // A copy, which is used up. The submitter's own says after an error what is left: all of it.
        let (mut few, mut many) = ([NOTHING; FEW_SEGMENTS], Vec::new());
        let list = match few.get_mut(..given.len()) {
            Some(few) => few,
            None => {
                many.resize(given.len(), NOTHING);
                &mut many[..]
            }
        };
        list.copy_from_slice(given);
        match op {
            Op::Read | Op::Write => cut(list, len),
            Op::Flush | Op::Discard | Op::WriteZeroes { .. } => {}
        }
        match op {
            // SAFETY: and for the memory that it names.
            Op::Read => backing.read(offset, len, unsafe { Segments::new(list) }),
            // SAFETY: as above.
            Op::Write => backing.write(offset, len, unsafe { Segments::new(list) }, fua),
            Op::Flush => backing.flush(),
            Op::Discard => backing.discard(offset, len),
            Op::WriteZeroes { unmap } => backing.write_zeroes(offset, len, unmap, fua),
        }
    }
}

/// Segments of so many bytes: of a part of a request.
fn cut(list: &mut [libc::iovec], len: u64) {
    let mut left = usize::try_from(len).unwrap_or(usize::MAX);
    for segment in list {
        segment.iov_len = segment.iov_len.min(left);
        left -= segment.iov_len;
    }
}

impl Job {
    pub fn token(&self) -> u64 {
        self.request.token
    }
}

/// Something that is to be done on a thread that may wait.
pub type Call = Box<dyn FnOnce() -> Result<(), Errno> + Send>;

/// What a worker does.
pub(crate) enum Work {
    Request(Job),
    /// A part of one; if it succeeds, this is said.
    Part(Job, Result<(), Errno>),
    Call(Call, u64),
}

impl engine::Job for Work {
    fn token(&self) -> u64 {
        match self {
            Work::Request(job) | Work::Part(job, _) => job.token(),
            Work::Call(_, token) => *token,
        }
    }

    fn run(self) -> Completion {
        let token = engine::Job::token(&self);
        let result = match self {
            Work::Request(job) => job.transfer(),
            Work::Part(job, ending) => job.transfer().and(ending),
            Work::Call(call, _) => call(),
        };
        Completion { token, result }
    }
}
