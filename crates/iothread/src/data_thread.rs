//! An iothread, as the control plane sees it.

use std::io;
use std::sync::Arc;
use std::sync::mpsc;

use block::{IoContext, IoSettings, Node};
use engine::{AioSettings, PoolError, PoolSettings};
use sandbox::Thread;
use virtqueue::control::StartError;

use crate::affinity::{AffinityError, bind};
use crate::cpu_time::thread_cpu_time_ns;
use crate::event_loop::{
    IoThread, LoopTotals, PollSettings, Remote, SpawnError, Stopped, ThreadHandle,
};
use crate::handles::{SocketDeviceHandle, VringHandle, ask};
use crate::messages::{Message, VringSetup};
use crate::queue_runner::QueueRunner;
use crate::socket_device::SocketDevice;
use crate::submits::SubmitTotals;

/// How an iothread is made; the names are those of its options.
#[derive(Clone, Debug)]
pub struct DataThreadSettings {
    /// Its name.
    pub id: String,
    /// How long it polls before it blocks.
    pub polling: PollSettings,
    /// Events of its Linux AIO context (`aio-max-events`).
    pub aio_max_events: u32,
    /// Requests in one submission at most (`aio-max-batch`), 0: the engine's default.
    pub aio_max_batch: u32,
    /// Worker threads that stay (`thread-pool-min`).
    pub thread_pool_min: u32,
    /// Worker threads at most (`thread-pool-max`).
    pub thread_pool_max: u32,
    /// CPUs that it may run on (`cpu-affinity`), each below 1024; empty: wherever the process may.
    pub cpu_affinity: Vec<u16>,
}

impl DataThreadSettings {
    /// Defaults under a name.
    #[must_use]
    pub fn named(id: &str) -> Self {
        let (aio, pool) = (AioSettings::default(), PoolSettings::default());
        DataThreadSettings {
            id: id.to_owned(),
            polling: PollSettings::default(),
            aio_max_events: aio.max_events,
            aio_max_batch: aio.max_batch,
            thread_pool_min: pool.min_threads,
            thread_pool_max: pool.max_threads,
            cpu_affinity: Vec::new(),
        }
    }
}

/// Why an iothread could not be started.
#[derive(Debug, thiserror::Error)]
pub enum DataThreadError {
    /// No thread, or none of what it needs.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    /// Its worker threads' limits.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// What its loop needs of the kernel.
    #[error("cannot make its event loop: {0}")]
    Io(#[from] io::Error),
    /// The CPUs that it was to run on.
    #[error(transparent)]
    Affinity(#[from] AffinityError),
    /// It is gone.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// Gives away what a thread of this kind does not need, if the process is confined.
fn confine(thread: Thread) {
    if let Err(error) = sandbox::enter(thread) {
        // It must not go on with more rights than it is said to have.
        tracing::error!(%error, "a thread cannot be confined");
        std::process::abort();
    }
}

/// What an iothread has done since it was made.
#[derive(Clone, Debug)]
pub struct IothreadTotals {
    /// By its loop.
    pub iterations: Arc<LoopTotals>,
    /// By its engines.
    pub submits: Arc<SubmitTotals>,
}

/// A running iothread. Dropping it stops the thread; its queues were stopped before.
pub struct DataThread {
    id: String,
    thread_id: i32,
    totals: IothreadTotals,
    running: Option<ThreadHandle<Message>>,
    remote: Remote<Message>,
}

impl DataThread {
    /// Starts one.
    ///
    /// # Errors
    /// [`DataThreadError`].
    pub fn spawn(settings: DataThreadSettings) -> Result<Self, DataThreadError> {
        let DataThreadSettings {
            id,
            polling,
            aio_max_events,
            aio_max_batch,
            ..
        } = settings;
        let mut engine_settings = IoSettings {
            aio: AioSettings {
                max_events: aio_max_events,
                max_batch: aio_max_batch,
            },
            pool: PoolSettings {
                min_threads: settings.thread_pool_min,
                max_threads: settings.thread_pool_max,
                name: format!("worker {id}"),
                cpus: None,
                begin: || confine(Thread::Worker),
            },
        };
        let (name, cpu_affinity) = (id.clone(), settings.cpu_affinity);
        let (started, thread) = mpsc::channel();
        let running = IoThread::spawn(&id, polling, move |cx, remote| {
            // Before anything is allocated: memory comes from where it is first touched.
            let unbound = match cpu_affinity.as_slice() {
                [] => None,
                cpus => Some(bind(&name, cpus)?),
            };
            confine(Thread::Iothread);
            engine_settings.pool.cpus = unbound;
            let waker = remote.waker();
            let io = IoContext::new(engine_settings, Arc::new(move || waker.wake()))?;
            let mut runner = QueueRunner::new(remote, io);
            runner.set_unbound(unbound);
            let thread_id = rustix::thread::gettid().as_raw_nonzero().get();
            let totals = IothreadTotals {
                iterations: cx.totals(),
                submits: runner.submits(),
            };
            // Cannot fail: the thread that spawned this one waits for it.
            let _ = started.send((thread_id, totals));
            Ok::<_, DataThreadError>(runner)
        })?;
        let remote = running.remote().clone();
        // Sent when the runner was made.
        let (thread_id, totals) = thread.recv().map_err(io::Error::other)?;
        Ok(DataThread {
            id,
            thread_id,
            totals,
            running: Some(running),
            remote,
        })
    }

    /// Its name.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The kernel's number of it, as `ps -T` and `taskset` have it.
    #[must_use]
    pub fn thread_id(&self) -> i32 {
        self.thread_id
    }

    /// What it has done so far.
    #[must_use]
    pub fn totals(&self) -> &IothreadTotals {
        &self.totals
    }

    /// CPU time that it has taken so far, in nanoseconds.
    #[must_use]
    pub fn cpu_time_ns(&self) -> u64 {
        thread_cpu_time_ns(self.thread_id)
    }

    /// Changes how long it polls.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn set_polling(&self, settings: PollSettings) -> Result<(), Stopped> {
        self.remote.set_polling(settings)
    }

    /// Changes its batch limit; 0 is the engine's default.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn set_aio_max_batch(&self, max_batch: u32) -> Result<(), Stopped> {
        self.remote.send(Message::SetAioMaxBatch(max_batch))
    }

    /// Changes how many requests its Linux AIO context and its ring have in flight, each: when
    /// the next queue starts while none of them is in use.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn set_aio_max_events(&self, max_events: u32) -> Result<(), Stopped> {
        self.remote.send(Message::SetAioMaxEvents(max_events))
    }

    /// Changes how many worker threads stay, and are there at most.
    ///
    /// # Errors
    /// When the limits contradict each other (nothing changes then), or a thread cannot be started.
    pub fn set_thread_pool(&self, min: u32, max: u32) -> Result<(), DataThreadError> {
        let message = |reply| Message::SetThreadPool(min, max, reply);
        Ok(ask(&self.remote, message)??)
    }

    /// Runs it on these CPUs; on none: wherever the process may.
    ///
    /// # Errors
    /// A CPU that cannot be used. It stays where it is then.
    pub fn set_cpu_affinity(&self, cpus: &[u16]) -> Result<(), DataThreadError> {
        let message = |reply| Message::SetCpuAffinity(self.id.clone(), cpus.to_vec(), reply);
        Ok(ask(&self.remote, message)??)
    }

    /// Asks whether it lives: it answers between two iterations. Without an answer to come, it has
    /// ended.
    #[must_use]
    pub fn ping(&self) -> mpsc::Receiver<()> {
        let (reply, answer) = mpsc::channel();
        // An error drops the reply, which the answer shows.
        let _ = self.remote.send(Message::Ping(reply));
        answer
    }

    /// Starts a socket device with these disks on this iothread.
    ///
    /// # Errors
    /// [`Stopped`]: the iothread has ended.
    pub fn start_socket_device(
        &self,
        device: Box<dyn SocketDevice>,
        nodes: Vec<Arc<Node>>,
    ) -> Result<SocketDeviceHandle, Stopped> {
        let message = |reply| Message::StartSocketDevice(device, nodes, reply);
        let place = ask(&self.remote, message)?;
        Ok(SocketDeviceHandle::new(self.remote.clone(), place))
    }

    /// Starts a queue on this iothread.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start_vring(&self, setup: VringSetup) -> Result<VringHandle, StartError> {
        let message = |reply| Message::Start(Box::new(setup), reply);
        let started = ask(&self.remote, message);
        let place = started.unwrap_or(Err(StartError::Stopped))?;
        Ok(VringHandle::new(self.remote.clone(), place))
    }
}

impl Drop for DataThread {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            running.stop();
        }
    }
}
