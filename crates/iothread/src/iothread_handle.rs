//! Handle of a running iothread, for the control plane: starts it, changes its settings, starts queues and socket devices on it.

use std::io;
use std::sync::Arc;
use std::sync::mpsc;

use block::{BackendSettings, IoContext, Node};
use engine::{AioSettings, PoolError, PoolSettings};
use sandbox::ThreadKind;
use virtqueue::queue_setup::StartError;

use crate::affinity::{AffinityError, bind_thread};
use crate::cpu_time::thread_cpu_time_ns;
use crate::event_loop::{
    EventLoop, EventLoopThread, LoopTotals, PollSettings, Remote, SpawnError, StoppedError,
};
use crate::handles::{SocketDeviceHandle, VringHandle, send_and_wait};
use crate::messages::{Message, VringSetup};
use crate::queue_runner::QueuesRunner;
use crate::socket_device::SocketDevice;
use crate::submit_totals::SubmitTotals;

/// Settings of an iothread, named like its options.
#[derive(Clone, Debug)]
pub struct IothreadSettings {
    /// Its name.
    pub id: String,
    /// How long it polls before it blocks.
    pub polling: PollSettings,
    /// Events of its Linux AIO context (`aio-max-events`).
    pub aio_max_events: u32,
    /// Requests in one submission at most (`aio-max-batch`), 0: the engine's default.
    pub aio_max_batch: u32,
    /// Worker threads that are kept when idle (`thread-pool-min`).
    pub thread_pool_min: u32,
    /// Worker threads at most (`thread-pool-max`).
    pub thread_pool_max: u32,
    /// CPUs that it may run on (`cpu-affinity`), each below 1024; empty: wherever the process may.
    pub cpu_affinity: Vec<u16>,
}

impl IothreadSettings {
    /// Default settings of an iothread with this name.
    #[must_use]
    pub fn with_id(id: &str) -> Self {
        let (aio, pool) = (AioSettings::default(), PoolSettings::default());
        IothreadSettings {
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

/// Error at the start of an iothread, or of a command to it.
#[derive(Debug, thiserror::Error)]
pub enum IothreadError {
    /// Its thread or its poller could not be created.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    /// The limits of its worker threads are invalid.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// Its event loop could not be created.
    #[error("cannot make its event loop: {0}")]
    Io(#[from] io::Error),
    /// It cannot run on its CPUs.
    #[error(transparent)]
    Affinity(#[from] AffinityError),
    /// It has stopped.
    #[error(transparent)]
    Stopped(#[from] StoppedError),
}

/// Enters the seccomp filter of a thread of this kind, if the sandbox is on; aborts the process if that fails.
fn enter_sandbox_or_abort(thread: ThreadKind) {
    if let Err(error) = sandbox::confine_thread_if_process_is(thread) {
        // It must not continue with more privileges than configured.
        tracing::error!(%error, "a thread cannot be confined");
        std::process::abort();
    }
}

/// Counters of an iothread.
#[derive(Clone, Debug)]
pub struct IothreadTotals {
    /// Of its event loop.
    pub event_loop: Arc<LoopTotals>,
    /// Of its engines.
    pub submits: Arc<SubmitTotals>,
}

/// The control plane's handle of a running iothread. Dropping it stops the thread; its queues were stopped before.
pub struct IothreadHandle {
    id: String,
    thread_id: i32,
    totals: IothreadTotals,
    running: Option<EventLoopThread<Message>>,
    remote: Remote<Message>,
}

impl IothreadHandle {
    /// Starts an iothread.
    ///
    /// # Errors
    /// [`IothreadError`].
    pub fn spawn(settings: IothreadSettings) -> Result<Self, IothreadError> {
        let IothreadSettings {
            id,
            polling,
            aio_max_events,
            aio_max_batch,
            ..
        } = settings;
        let mut engine_settings = BackendSettings {
            aio: AioSettings {
                max_events: aio_max_events,
                max_batch: aio_max_batch,
            },
            pool: PoolSettings {
                min_threads: settings.thread_pool_min,
                max_threads: settings.thread_pool_max,
                name: format!("worker {id}"),
                cpus: None,
                begin: || enter_sandbox_or_abort(ThreadKind::Worker),
            },
        };
        let (name, cpu_affinity) = (id.clone(), settings.cpu_affinity);
        let (started, thread) = mpsc::channel();
        let running = EventLoop::spawn(&id, polling, move |cx, remote| {
            // Before anything is allocated: memory comes from where it is first touched.
            let unbound = match cpu_affinity.as_slice() {
                [] => None,
                cpus => Some(bind_thread(&name, cpus)?),
            };
            enter_sandbox_or_abort(ThreadKind::Iothread);
            engine_settings.pool.cpus = unbound;
            let waker = remote.waker();
            let io = IoContext::new(engine_settings, Arc::new(move || waker.wake()))?;
            let mut runner = QueuesRunner::new(remote, io);
            runner.record_affinity_before_binding(unbound);
            let thread_id = rustix::thread::gettid().as_raw_nonzero().get();
            let totals = IothreadTotals {
                event_loop: cx.totals(),
                submits: runner.submit_totals(),
            };
            // Cannot fail: the thread that spawned this one waits for it.
            let _ = started.send((thread_id, totals));
            Ok::<_, IothreadError>(runner)
        })?;
        let remote = running.remote().clone();
        // Sent when the runner was made.
        let (thread_id, totals) = thread.recv().map_err(io::Error::other)?;
        Ok(IothreadHandle {
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

    /// Its thread ID, as `ps -T` and `taskset` show it.
    #[must_use]
    pub fn thread_id(&self) -> i32 {
        self.thread_id
    }

    /// Its counters.
    #[must_use]
    pub fn totals(&self) -> &IothreadTotals {
        &self.totals
    }

    /// Its CPU time so far, in nanoseconds.
    #[must_use]
    pub fn cpu_time_ns(&self) -> u64 {
        thread_cpu_time_ns(self.thread_id)
    }

    /// Changes its polling settings.
    ///
    /// # Errors
    /// [`StoppedError`].
    pub fn set_polling(&self, settings: PollSettings) -> Result<(), StoppedError> {
        self.remote.set_polling(settings)
    }

    /// Changes its batch limit; 0 is the engine's default.
    ///
    /// # Errors
    /// [`StoppedError`].
    pub fn set_aio_max_batch(&self, max_batch: u32) -> Result<(), StoppedError> {
        self.remote.send(Message::SetAioMaxBatch(max_batch))
    }

    /// Changes the number of requests that its Linux AIO context and its ring may have in flight, each. Takes effect when the
    /// next queue starts while neither is in use.
    ///
    /// # Errors
    /// [`StoppedError`].
    pub fn set_aio_max_events(&self, max_events: u32) -> Result<(), StoppedError> {
        self.remote.send(Message::SetAioMaxEvents(max_events))
    }

    /// Changes the limits of its worker threads.
    ///
    /// # Errors
    /// When the limits contradict each other (nothing changes then), or a thread cannot be started.
    pub fn set_thread_pool(&self, min: u32, max: u32) -> Result<(), IothreadError> {
        let message = |reply| Message::SetThreadPool(min, max, reply);
        Ok(send_and_wait(&self.remote, message)??)
    }

    /// Binds it to these CPUs; none: to all that the process may use.
    ///
    /// # Errors
    /// A CPU that cannot be used. The affinity does not change then.
    pub fn set_cpu_affinity(&self, cpus: &[u16]) -> Result<(), IothreadError> {
        let message = |reply| Message::SetCpuAffinity(self.id.clone(), cpus.to_vec(), reply);
        Ok(send_and_wait(&self.remote, message)??)
    }

    /// Sends a ping, which is answered between two iterations. The sender is dropped if the iothread has ended.
    #[must_use]
    pub fn send_ping(&self) -> mpsc::Receiver<()> {
        let (reply, answer) = mpsc::channel();
        // An error drops the reply, which the answer shows.
        let _ = self.remote.send(Message::Ping(reply));
        answer
    }

    /// Starts a socket device with these disks on this iothread.
    ///
    /// # Errors
    /// [`StoppedError`]: the iothread has ended.
    pub fn start_socket_device(
        &self,
        device: Box<dyn SocketDevice>,
        nodes: Vec<Arc<Node>>,
    ) -> Result<SocketDeviceHandle, StoppedError> {
        let message = |reply| Message::StartSocketDevice(device, nodes, reply);
        let source_index = send_and_wait(&self.remote, message)?;
        Ok(SocketDeviceHandle::new(self.remote.clone(), source_index))
    }

    /// Starts a queue on this iothread.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start_vring(&self, setup: VringSetup) -> Result<VringHandle, StartError> {
        let message = |reply| Message::Start(Box::new(setup), reply);
        let started = send_and_wait(&self.remote, message);
        let source_index = started.unwrap_or(Err(StartError::Stopped))?;
        Ok(VringHandle::new(self.remote.clone(), source_index))
    }
}

impl Drop for IothreadHandle {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            running.stop();
        }
    }
}
