//! WorkerJob for a thread that may wait: a request, or something else.

use std::sync::Arc;

use engine::{Completion, Errno, Op, Request};

use crate::disk_file::DiskFile;
use crate::disk_file::transfer::Segments;

/// Most requests have no more.
const FEW_SEGMENTS: usize = 8;

const NOTHING: libc::iovec = libc::iovec {
    iov_base: std::ptr::null_mut(),
    iov_len: 0,
};

/// Owns what it needs: the file stays open until the worker is done with it.
pub(crate) struct FileJob {
    file: Arc<DiskFile>,
    /// At its offset in the file.
    request: Request,
}

// SAFETY: the pointers of a request are only used by the one worker that runs the job, and its
// submitter keeps what they point to in place until the completion arrives (`IoContext::submit`).
unsafe impl Send for FileJob {}

impl FileJob {
    /// Of a request at its offset in the file.
    ///
    /// # Safety
    /// As for [`crate::IoContext::submit`].
    pub unsafe fn new(file: Arc<DiskFile>, request: Request) -> Self {
        FileJob { file, request }
    }

    fn transfer(&self) -> Result<(), Errno> {
        let file = &*self.file;
        #[cfg(feature = "simulation")]
        if let Some(disk) = &file.simulated {
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
            // SAFETY: `new`'s caller vouches for the list, which nothing else touches meanwhile.
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
            // SAFETY: and for the memory that it names.
            Op::Read => file.read(offset, len, unsafe { Segments::new(list) }),
            // SAFETY: as above.
            Op::Write => file.write(offset, len, unsafe { Segments::new(list) }, fua),
            Op::Flush => file.flush(),
            Op::Discard => file.discard(offset, len),
            Op::WriteZeroes { unmap } => file.write_zeroes(offset, len, unmap, fua),
        }
    }
}

/// Something that is to be done on a thread that may wait.
pub type Call = Box<dyn FnOnce() -> Result<(), Errno> + Send>;

/// What a worker does.
pub(crate) enum WorkerJob {
    Request(FileJob),
    Call(Call, u64),
}

impl engine::Job for WorkerJob {
    fn token(&self) -> u64 {
        match self {
            WorkerJob::Request(job) => job.request.token,
            WorkerJob::Call(_, token) => *token,
        }
    }

    fn run(self) -> Completion {
        let token = engine::Job::token(&self);
        let result = match self {
            WorkerJob::Request(job) => job.transfer(),
            WorkerJob::Call(call, _) => call(),
        };
        Completion { token, result }
    }
}

impl engine::RequestJob for WorkerJob {
    type File = Arc<DiskFile>;

    unsafe fn of_request(file: Arc<DiskFile>, request: Request) -> Self {
        // SAFETY: our caller promises the same.
        WorkerJob::Request(unsafe { FileJob::new(file, request) })
    }
}
