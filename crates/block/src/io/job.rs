//! Jobs of worker threads: a request carried out by blocking calls on its file, or another blocking function.

use std::sync::Arc;

use engine::{Completion, Errno, Op, Request};

use crate::disk_file::DiskFile;
use crate::disk_file::transfer::Segments;

/// Segments of a request that are copied without an allocation. Most requests have no more.
const INLINE_SEGMENTS: usize = 8;

const EMPTY_SEGMENT: libc::iovec = libc::iovec {
    iov_base: std::ptr::null_mut(),
    iov_len: 0,
};

/// A request for a worker thread. It keeps the file open until the worker has finished.
pub(crate) struct FileJob {
    file: Arc<DiskFile>,
    /// The request, at its offset in the file.
    request: Request,
}

// SAFETY: the pointers of a request are only used by the one worker that runs the job, and its
// submitter keeps what they point to in place until the completion arrives (`IoContext::submit`).
unsafe impl Send for FileJob {}

impl FileJob {
    /// A job for a request at its offset in the file.
    ///
    /// # Safety
    /// As for [`crate::IoContext::submit`].
    pub unsafe fn new(file: Arc<DiskFile>, request: Request) -> Self {
        FileJob { file, request }
    }

    /// Carries the request out by blocking calls, on a copy of its list of segments.
    fn carry_out(&self) -> Result<(), Errno> {
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
        let segments = match iov_count {
            0 => &[][..],
            // SAFETY: `new`'s caller promises that the list is valid and not accessed by anything else.
            count => unsafe { std::slice::from_raw_parts(iov, count as usize) },
        };
        // A copy, which the transfer consumes. The submitter's own list stays whole.
        let (mut inline, mut allocated) = ([EMPTY_SEGMENT; INLINE_SEGMENTS], Vec::new());
        let list = match inline.get_mut(..segments.len()) {
            Some(inline) => inline,
            None => {
                allocated.resize(segments.len(), EMPTY_SEGMENT);
                &mut allocated[..]
            }
        };
        list.copy_from_slice(segments);
        match op {
            // SAFETY: as above, also for the memory that the list names.
            Op::Read => file.read(offset, len, unsafe { Segments::new(list) }),
            // SAFETY: as above.
            Op::Write => file.write(offset, len, unsafe { Segments::new(list) }, fua),
            Op::Flush => file.flush_unless_disabled(),
            Op::Discard => file.discard(offset, len),
            Op::WriteZeroes { unmap } => file.write_zeroes(offset, len, unmap, fua),
        }
    }
}

/// Blocking work that is no request, for a worker thread.
pub type BlockingCall = Box<dyn FnOnce() -> Result<(), Errno> + Send>;

/// Blocking work for a disk, with the token of its completion.
pub(crate) struct DiskBlockingCall {
    pub call: BlockingCall,
    /// As [`engine::Job::disk`].
    pub disk: u64,
    pub token: u64,
}

/// A job of a worker thread.
pub(crate) enum WorkerJob {
    Request(FileJob),
    Call(DiskBlockingCall),
}

impl engine::Job for WorkerJob {
    fn token(&self) -> u64 {
        match self {
            WorkerJob::Request(job) => job.request.token,
            WorkerJob::Call(call) => call.token,
        }
    }

    fn disk(&self) -> u64 {
        match self {
            WorkerJob::Request(job) => job.file.disk_number(),
            WorkerJob::Call(call) => call.disk,
        }
    }

    fn run(self) -> Completion {
        let token = engine::Job::token(&self);
        let result = match self {
            WorkerJob::Request(job) => job.carry_out(),
            WorkerJob::Call(call) => (call.call)(),
        };
        Completion { token, result }
    }
}

impl engine::RequestJob for WorkerJob {
    type File = Arc<DiskFile>;

    unsafe fn from_request(file: Arc<DiskFile>, request: Request) -> Self {
        // SAFETY: our caller promises the same.
        WorkerJob::Request(unsafe { FileJob::new(file, request) })
    }
}
