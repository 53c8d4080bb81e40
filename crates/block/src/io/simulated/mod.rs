//! Backends of the simulator: Linux AIO and io_uring on another kernel, and worker threads that run when the simulator says.

mod ring;

use std::ptr::NonNull;
use std::sync::Arc;

use engine::aio::ContextId;
use engine::aio::abi::{IoEvent, Iocb, RingHeader};
use engine::{
    AioKernel, Completion, Errno, Full, IoBackend, Job, PoolError, PoolSettings, Request,
    RequestJob, UringSettings,
};
use rustix::thread::CpuSet;

use super::IoContext;
use super::job::WorkerJob;
use crate::disk_file::DiskFile;
use crate::route::task::Wake;

pub use ring::SimulatedRing;
pub(crate) use ring::Uring;

/// Linux AIO on the simulator's kernel.
pub(crate) type LinuxAio = engine::LinuxAio<SimulatedKernel>;

/// A kernel for Linux AIO.
pub(crate) struct SimulatedKernel(Box<dyn AioKernel>);

impl Default for SimulatedKernel {
    fn default() -> Self {
        SimulatedKernel(Box::new(engine::Kernel))
    }
}

// SAFETY: what it promises is what the kernel inside does.
unsafe impl AioKernel for SimulatedKernel {
    fn setup(&mut self, max_events: u32) -> Result<ContextId, Errno> {
        self.0.setup(max_events)
    }

    unsafe fn submit(&mut self, context: ContextId, iocbs: &[*mut Iocb]) -> Result<usize, Errno> {
        // SAFETY: our caller promises the same.
        unsafe { self.0.submit(context, iocbs) }
    }

    unsafe fn pread_or_pwrite(&mut self, iocb: &Iocb) -> i64 {
        // SAFETY: our caller promises the same.
        unsafe { self.0.pread_or_pwrite(iocb) }
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

/// Worker threads that run a job when the simulator says so.
pub(crate) struct Workers {
    jobs: Vec<WorkerJob>,
    finished: Vec<Completion>,
    wake: Wake,
}

impl Workers {
    /// No threads: `wake` is called when the simulator has run a job.
    pub fn start(_: PoolSettings, wake: Wake) -> Result<Self, PoolError> {
        Ok(Workers {
            jobs: Vec::new(),
            finished: Vec::new(),
            wake,
        })
    }

    pub fn add_job(&mut self, work: WorkerJob) {
        self.jobs.push(work);
    }

    pub fn set_limits(&mut self, _: u32, _: u32) -> Result<(), PoolError> {
        Ok(())
    }

    pub fn set_new_thread_cpus(&mut self, _: CpuSet) {}

    #[cfg(test)]
    pub fn in_flight_count(&self) -> usize {
        self.jobs.len() + self.finished.len()
    }
}

impl IoBackend for Workers {
    type File = Arc<DiskFile>;

    fn room(&self) -> usize {
        usize::MAX
    }

    unsafe fn start_or_queue(
        &mut self,
        file: Arc<DiskFile>,
        request: &Request,
    ) -> Result<(), Full> {
        // SAFETY: our caller promises the same.
        self.add_job(unsafe { WorkerJob::from_request(file, *request) });
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

/// The kernel that the simulator has set: Linux AIO is made once.
pub(crate) fn take_simulated_kernel(kernel: &mut Option<SimulatedKernel>) -> SimulatedKernel {
    let given = kernel.take();
    assert!(
        given.is_some(),
        "Linux AIO is made a second time, or without a kernel"
    );
    given.unwrap_or_default()
}

/// A ring on what the simulator has set, which is made once as well.
pub(crate) fn make_engine_on_simulated_ring(
    given: &mut Option<Box<dyn SimulatedRing>>,
    settings: UringSettings,
) -> Result<Uring, Errno> {
    Uring::with_ring(given.take().ok_or(Errno::NOSYS)?, settings)
}

impl IoContext {
    /// Sets the ring.
    pub fn set_simulated_ring(&mut self, ring: Box<dyn SimulatedRing>) {
        self.simulated_ring = Some(ring);
    }

    /// Sets the kernel of Linux AIO.
    pub fn set_simulated_aio_kernel(&mut self, kernel: Box<dyn AioKernel>) {
        self.kernel = Some(SimulatedKernel(kernel));
    }

    /// Number of jobs that wait for a worker.
    #[must_use]
    pub fn waiting_job_count(&self) -> usize {
        self.workers.jobs.len()
    }

    /// Runs the job with this index, or lets it fail.
    pub fn run_or_fail_job(&mut self, index: usize, fails: Option<Errno>) {
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
