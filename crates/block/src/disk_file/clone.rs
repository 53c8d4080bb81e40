//! Cloning of a part of a file (`FICLONERANGE`): another file shares its extents, as `cp --reflink` does, and no data is copied.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::Errno;
use rustix::io::retry_on_intr;
use rustix::time::{ClockId, clock_gettime};

use crate::disk_file::DiskFile;
use crate::disk_file::transfer::last_errno;

/// A range of a file that is to share its extents with a range of another one.
#[derive(Clone)]
pub(crate) struct CloneRange {
    pub source: Arc<DiskFile>,
    pub source_offset: u64,
    pub target: Arc<DiskFile>,
    pub target_offset: u64,
    /// Bytes, not 0: the kernel would take that for all the rest of the source.
    pub len: u64,
    /// The processor time of the call is added to it, in nanoseconds: without its wait for earlier requests to both files.
    pub work_ns: Arc<AtomicU64>,
}

impl CloneRange {
    /// Clones the range. The kernel writes what its cache has of both files there before, and drops what it has of the target: so this
    /// suits direct I/O as well.
    ///
    /// # Errors
    /// Those of `ioctl_ficlonerange(2)`: file systems without the operation, two file systems, blocks in part. Nothing, a part or
    /// all of the range may have been cloned.
    pub fn run(&self) -> Result<(), Errno> {
        let _range = self
            .target
            .lock_blocks_if_partial(self.target_offset, self.len)?;
        let began_ns = thread_cpu_ns();
        let cloned = retry_on_intr(|| self.call_kernel());
        let work_ns = thread_cpu_ns().saturating_sub(began_ns);
        self.work_ns.fetch_add(work_ns, Ordering::Relaxed);
        cloned
    }

    fn call_kernel(&self) -> Result<(), Errno> {
        let range = libc::file_clone_range {
            src_fd: self.source.raw_fd().into(),
            src_offset: self.source_offset,
            src_length: self.len,
            dest_offset: self.target_offset,
        };
        // SAFETY: the request reads this structure only.
        let result =
            unsafe { libc::ioctl(self.target.raw_fd(), libc::FICLONERANGE, &raw const range) };
        match result {
            0 => Ok(()),
            _ => Err(last_errno()),
        }
    }
}

/// The processor time of this thread.
fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}
