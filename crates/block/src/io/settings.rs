//! Settings of an I/O context, when it is made and while it runs.

use engine::{AioSettings, PoolError, PoolSettings};
use rustix::thread::CpuSet;

use super::{IoContext, LazyEngine};

/// How the backends of one iothread are made.
#[derive(Clone, Debug, Default)]
pub struct IoSettings {
    /// Linux AIO; its limits are the ring's as well.
    pub aio: AioSettings,
    /// The worker threads; the kernel's own for the ring are at most as many.
    pub pool: PoolSettings,
}

impl IoContext {
    /// Changes the batch limit; 0 is the default.
    pub fn set_aio_max_batch(&mut self, max_batch: u32) {
        self.aio_settings.max_batch = max_batch;
        self.ring_settings.max_batch = max_batch;
        if let Some(aio) = self.aio.get_mut() {
            aio.set_max_batch(max_batch);
        }
        if let Some(ring) = self.ring.get_mut() {
            ring.set_max_batch(max_batch);
        }
    }

    /// Changes how many requests Linux AIO and the ring have in flight, each. One that is there
    /// keeps its number until it [is made anew](Self::renew).
    pub fn set_aio_max_events(&mut self, max_events: u32) {
        self.outdated |= self.aio_settings.max_events != max_events;
        self.aio_settings.max_events = max_events;
        self.ring_settings.max_events = max_events;
    }

    /// Ends Linux AIO and the ring if they are to be made anew, and no disk uses them: the next one that
    /// [is attached](Self::attach) makes them. True: the descriptors that were watched are of no
    /// use any more.
    pub fn renew(&mut self) -> bool {
        if !self.outdated || !self.files.is_empty() {
            return false;
        }
        self.outdated = false;
        self.ended = self.submits();
        self.aio = LazyEngine::Unmade;
        self.ring = LazyEngine::Unmade;
        true
    }

    /// Changes how many worker threads stay, and are there at most; of the kernel's own for the ring
    /// there are at most as many. Threads that are too many end with their job.
    ///
    /// # Errors
    /// When the limits contradict each other (nothing changes then), or a thread cannot be started.
    pub fn set_worker_limits(&mut self, min: u32, max: u32) -> Result<(), PoolError> {
        let set = self.workers.set_limits(min, max);
        if !matches!(set, Ok(()) | Err(PoolError::Start { .. })) {
            return set;
        }
        self.ring_settings.max_workers = max;
        if let Some(ring) = self.ring.get_mut() {
            ring.set_max_workers(max);
        }
        set
    }

    /// Where worker threads may run that are started from now on.
    pub fn set_worker_cpus(&mut self, cpus: CpuSet) {
        self.workers.set_cpus(cpus);
    }
}
