//! Settings of an I/O context, and their changes while it runs: batch and event limits, worker threads and their CPUs.

use engine::{AioSettings, PoolError, PoolSettings};
use rustix::thread::CpuSet;

use super::{IoContext, LazyEngine};

/// Settings of the backends of one iothread.
#[derive(Clone, Debug, Default)]
pub struct BackendSettings {
    /// Linux AIO; its limits apply to the ring as well.
    pub aio: AioSettings,
    /// The worker threads. The kernel's own workers for the ring are at most as many.
    pub pool: PoolSettings,
}

impl IoContext {
    /// Changes the batch limit; 0 is the default.
    pub fn set_max_batch(&mut self, max_batch: u32) {
        self.aio_settings.max_batch = max_batch;
        self.ring_settings.max_batch = max_batch;
        if let Some(aio) = self.aio.get_mut() {
            aio.set_max_batch(max_batch);
        }
        if let Some(ring) = self.ring.get_mut() {
            ring.set_max_batch(max_batch);
        }
    }

    /// Changes the most requests that Linux AIO and the ring each have in flight. An engine that exists keeps its limit
    /// until it [is recreated](Self::end_outdated_engines_if_unused).
    pub fn set_new_engine_max_events(&mut self, max_events: u32) {
        self.settings_changed |= self.aio_settings.max_events != max_events;
        self.aio_settings.max_events = max_events;
        self.ring_settings.max_events = max_events;
    }

    /// Ends Linux AIO and the ring if their settings have changed and no disk uses them: the next disk that
    /// [is attached](Self::attach) makes them anew. True: the watched descriptors are closed.
    pub fn end_outdated_engines_if_unused(&mut self) -> bool {
        if !self.settings_changed
            || self.files.count() > 0
            || !self.network.forget_sockets_if_unused()
        {
            return false;
        }
        self.settings_changed = false;
        self.ended_engines = self.submit_counts();
        self.aio = LazyEngine::Unmade;
        self.ring = LazyEngine::Unmade;
        true
    }

    /// Changes the least and the most worker threads. The kernel's own workers for the ring are at most as many. Excess
    /// threads end with their job.
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

    /// Sets the CPUs of worker threads that are started from now on.
    pub fn set_new_worker_cpus(&mut self, cpus: CpuSet) {
        self.workers.set_new_thread_cpus(cpus);
    }
}
