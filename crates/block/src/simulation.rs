//! Seams for the simulator: another kernel below Linux AIO and io_uring, worker threads that are none, nodes without a file, and
//! nodes that rewrite blocks, have gates, or leave marks.

mod guarded;
mod rewriting;
mod ring;

use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

use engine::aio::ContextId;
use engine::aio::abi::{IoEvent, Iocb, RingHeader};
use engine::{
    AioKernel, Completion, Errno, Full, IoBackend, Job, PoolError, PoolSettings, RequestJob,
    UringSettings,
};
use rustix::fs::{Mode, OFlags};
use rustix::thread::CpuSet;

use crate::aio::Aio;
use crate::drivers::disk_file::alignment::Alignment;
use crate::drivers::disk_file::backing_id::BackingId;
use crate::drivers::disk_file::lock::{LockedFd, Locking};
use crate::drivers::disk_file::ring_range::UnsupportedOps;
use crate::drivers::disk_file::{BlockMode, DiskFile};
use crate::error::NodeError;
use crate::io::IoContext;
use crate::io::job::Work;
use crate::node::{Geometry, Node};
use crate::range_lock::RangeLock;
use crate::task::Wake;
use engine::Request;

pub use ring::SimulatedRing;
pub(crate) use ring::Uring;

/// Linux AIO on whatever kernel there is.
pub(crate) type LinuxAio = engine::LinuxAio<Kernel>;

/// A kernel for Linux AIO.
pub(crate) struct Kernel(Box<dyn AioKernel>);

impl Default for Kernel {
    fn default() -> Self {
        Kernel(Box::new(engine::Kernel))
    }
}

// SAFETY: what it promises is what the kernel inside does.
unsafe impl AioKernel for Kernel {
    fn setup(&mut self, max_events: u32) -> Result<ContextId, Errno> {
        self.0.setup(max_events)
    }

    unsafe fn submit(&mut self, context: ContextId, iocbs: &[*mut Iocb]) -> Result<usize, Errno> {
        // SAFETY: our caller promises the same.
        unsafe { self.0.submit(context, iocbs) }
    }

    unsafe fn transfer(&mut self, iocb: &Iocb) -> i64 {
        // SAFETY: our caller promises the same.
        unsafe { self.0.transfer(iocb) }
    }

    fn now_ns(&self) -> u64 {
        self.0.now_ns()
    }

    fn getevents(&mut self, context: ContextId, events: &mut [IoEvent]) -> Result<usize, Errno> {
        self.0.getevents(context, events)
    }

    fn destroy(&mut self, context: ContextId) {
        self.0.destroy(context);
    }

    fn ring(&self, context: ContextId) -> Option<NonNull<RingHeader>> {
        self.0.ring(context)
    }

    fn supports_fdsync(&mut self, context: ContextId) -> bool {
        self.0.supports_fdsync(context)
    }
}

/// What worker threads do to a node without a file.
pub trait SimulatedDisk: Send + Sync {
    /// Carries a request out, with offsets of the whole disk.
    ///
    /// # Errors
    /// As a disk's.
    ///
    /// # Safety
    /// The segments are valid.
    unsafe fn carry_out(&self, request: &Request) -> Result<(), Errno>;
}

/// Worker threads whose work is done when the simulator says so.
pub(crate) struct Workers {
    jobs: Vec<Work>,
    finished: Vec<Completion>,
    wake: Wake,
}

impl Workers {
    pub fn new(_: PoolSettings, wake: Wake) -> Result<Self, PoolError> {
        Ok(Workers {
            jobs: Vec::new(),
            finished: Vec::new(),
            wake,
        })
    }

    pub fn add(&mut self, work: Work) {
        self.jobs.push(work);
    }

    pub fn set_limits(&mut self, _: u32, _: u32) -> Result<(), PoolError> {
        Ok(())
    }

    pub fn set_cpus(&mut self, _: CpuSet) {}
}

impl IoBackend for Workers {
    type File = Arc<DiskFile>;

    fn room(&self) -> usize {
        usize::MAX
    }

    unsafe fn push(&mut self, file: Arc<DiskFile>, request: &Request) -> Result<(), Full> {
        // SAFETY: our caller promises the same.
        self.add(unsafe { Work::of_request(file, *request) });
        Ok(())
    }

    fn submit(&mut self) {}

    fn reap(&mut self, out: &mut Vec<Completion>) {
        out.append(&mut self.finished);
    }

    fn has_completions(&self) -> bool {
        !self.finished.is_empty()
    }
}

/// The kernel that was given: Linux AIO is made once.
pub(crate) fn the_only(kernel: &mut Option<Kernel>) -> Kernel {
    let given = kernel.take();
    assert!(
        given.is_some(),
        "Linux AIO is made a second time, or without a kernel"
    );
    given.unwrap_or_default()
}

/// The ring that was given, as above.
pub(crate) fn make_ring(
    given: &mut Option<Box<dyn SimulatedRing>>,
    settings: UringSettings,
) -> Result<Uring, Errno> {
    Uring::on(given.take().ok_or(Errno::NOSYS)?, settings)
}

impl IoContext {
    /// The ring is this one.
    pub fn simulate_ring(&mut self, ring: Box<dyn SimulatedRing>) {
        self.simulated_ring = Some(ring);
    }

    /// Linux AIO is made on this kernel.
    pub fn simulate(&mut self, kernel: Box<dyn AioKernel>) {
        self.kernel = Some(Kernel(kernel));
    }

    /// How many jobs the workers have.
    #[must_use]
    pub fn jobs(&self) -> usize {
        self.workers.jobs.len()
    }

    /// A worker does the job with this number, or fails.
    pub fn run_job(&mut self, index: usize, fails: Option<Errno>) {
        let work = self.workers.jobs.remove(index);
        let completion = match fails {
            Some(errno) => Completion {
                token: work.token(),
                result: Err(errno),
            },
            None => work.run(),
        };
        self.workers.finished.push(completion);
        (self.workers.wake)();
    }
}

impl Node {
    /// A disk of this form without a file, which wants segments to be aligned to `memory_alignment` bytes, and is reached so.
    ///
    /// # Errors
    /// None of those that there are but for a lack of descriptors.
    pub fn simulated(
        geometry: Geometry,
        memory_alignment: u32,
        aio: Aio,
        disk: Arc<dyn SimulatedDisk>,
    ) -> Result<Arc<Node>, NodeError> {
        let path = Path::new("/dev/null");
        let fd = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(
            |error| NodeError::Io {
                path: path.to_owned(),
                what: "open",
                error: error.into(),
            },
        )?;
        let file = DiskFile {
            fd: LockedFd::acquire(fd, path, Locking::Off, false)?,
            direct: Some(Alignment {
                memory: memory_alignment,
                offset: geometry.logical_block_size,
            }),
            device_block: None,
            id: BackingId::new(),
            aio,
            unsupported: UnsupportedOps::default(),
            aio_max_batch: 0,
            no_flush: false,
            block_mode: BlockMode::default(),
            ranges: RangeLock::default(),
            simulated: Some(disk),
        };
        Ok(Node::of(
            "simulated",
            geometry,
            false,
            true,
            Box::new(Arc::new(file)),
        ))
    }
}
