//! The control plane's side: iothreads and started queues as handles.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use block::{EngineSettings, Engines, Node};
use engine::{AioSettings, DEFAULT_FIRST_BATCH, DefaultBatch, PoolError, PoolSettings};
use event_loop::{IoThread, LoopTotals, PollSettings, Remote, Running, SpawnError, Stopped};
use virtqueue::GuestMemory;

use crate::affinity::{AffinityError, bind};
use crate::controller::{Controller, ControllerError};
use crate::cpu_time::thread_cpu_time_ns;
use crate::message::Message;
use crate::plane::StoragePlane;
use crate::scsi::ScsiDisk;
use crate::submits::SubmitTotals;
use crate::vring::{StartError, VringSetup};

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
    /// Test knob: off, completions of Linux AIO are read with io_getevents(2).
    pub x_completion_ring: bool,
    /// Test knob: the loop looks at all handlers for those that are ready, and at all queues when it
    /// polls.
    pub x_scan_handlers: bool,
    /// Test knob: what `aio_max_batch` 0 means, a limit that adapts or a fixed one; `None`: the
    /// engine's default.
    pub x_adaptive_batch: Option<bool>,
    /// Test knob: most requests in a call to the kernel while nothing is in flight; 0: no other limit than
    /// else; `None`: the engine's default.
    pub x_first_batch: Option<u32>,
    /// Test knob: requests taken from one queue per iteration, rounded up to turns of 64; `None`: one
    /// turn.
    pub x_admit_budget: Option<u32>,
    /// Guests are signalled after the submit phase: the wrong order, which measurements compare the
    /// right one with. Never a default.
    pub x_late_notify: bool,
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
            x_completion_ring: aio.completion_ring,
            x_scan_handlers: false,
            x_adaptive_batch: None,
            x_first_batch: None,
            x_admit_budget: None,
            x_late_notify: false,
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
    running: Option<Running<Message>>,
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
            x_late_notify,
            ..
        } = settings;
        let mut engine_settings = EngineSettings {
            aio: AioSettings {
                max_events: aio_max_events,
                max_batch: aio_max_batch,
                default_batch: match settings.x_adaptive_batch {
                    None => DefaultBatch::default(),
                    Some(true) => DefaultBatch::Adaptive,
                    Some(false) => DefaultBatch::Fixed,
                },
                first_batch: settings.x_first_batch.unwrap_or(DEFAULT_FIRST_BATCH),
                completion_ring: settings.x_completion_ring,
            },
            pool: PoolSettings {
                min_threads: settings.thread_pool_min,
                max_threads: settings.thread_pool_max,
                name: format!("worker {id}"),
                cpus: None,
            },
        };
        let (name, cpu_affinity) = (id.clone(), settings.cpu_affinity);
        let (tell, told) = mpsc::channel();
        let running = IoThread::spawn(&id, polling, move |cx, remote| {
            // Before anything is allocated: memory comes from where it is first touched.
            let unbound = match cpu_affinity.as_slice() {
                [] => None,
                cpus => Some(bind(&name, cpus)?),
            };
            engine_settings.pool.cpus = unbound;
            let waker = remote.waker();
            let engines = Engines::new(engine_settings, Arc::new(move || waker.wake()))?;
            if settings.x_scan_handlers {
                cx.scan_handlers();
            }
            let mut plane = StoragePlane::new(cx, remote, engines);
            plane.set_unbound(unbound);
            plane.set_late_notify(x_late_notify);
            if let Some(budget) = settings.x_admit_budget {
                plane.set_admit_budget(budget);
            }
            let thread_id = rustix::thread::gettid().as_raw_nonzero().get();
            let totals = IothreadTotals {
                iterations: cx.totals(),
                submits: plane.submits(),
            };
            // Cannot fail: who made this thread waits for it.
            let _ = tell.send((thread_id, totals));
            Ok::<_, DataThreadError>(plane)
        })?;
        let remote = running.remote().clone();
        // Said when the plane was made.
        let (thread_id, totals) = told.recv().map_err(io::Error::other)?;
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
        let (reply, answer) = mpsc::channel();
        self.remote.send(Message::SetThreadPool(min, max, reply))?;
        Ok(answer.recv().map_err(|_| Stopped)??)
    }

    /// Runs it on these CPUs; on none: wherever the process may.
    ///
    /// # Errors
    /// A CPU that cannot be used. It stays where it is then.
    pub fn set_cpu_affinity(&self, cpus: &[u16]) -> Result<(), DataThreadError> {
        let (reply, answer) = mpsc::channel();
        let message = Message::SetCpuAffinity(self.id.clone(), cpus.to_vec(), reply);
        self.remote.send(message)?;
        Ok(answer.recv().map_err(|_| Stopped)??)
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

    /// Starts a controller with these disks on this iothread.
    ///
    /// # Errors
    /// [`ControllerError`].
    pub fn start_controller(
        &self,
        controller: Box<dyn Controller>,
        nodes: Vec<Arc<Node>>,
    ) -> Result<ControllerHandle, ControllerError> {
        let (reply, answer) = mpsc::channel();
        let message = Message::StartController(controller, nodes, reply);
        self.remote.send(message)?;
        let place = answer.recv().map_err(|_| Stopped)??;
        Ok(ControllerHandle {
            remote: self.remote.clone(),
            place: Mutex::new(Some(place)),
            ending: Mutex::default(),
        })
    }

    /// Starts a queue on this iothread.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start_vring(&self, setup: VringSetup) -> Result<VringHandle, StartError> {
        let (reply, answer) = mpsc::channel();
        self.remote.send(Message::Start(Box::new(setup), reply))?;
        let place = answer.recv().map_err(|_| Stopped)??;
        Ok(VringHandle {
            remote: self.remote.clone(),
            place: Some(place),
        })
    }
}

impl Drop for DataThread {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            running.stop();
        }
    }
}

/// A controller on its iothread. Dropping it stops it, waiting for what is in flight.
pub struct ControllerHandle {
    remote: Remote<Message>,
    /// `None` once it was told to stop.
    place: Mutex<Option<u32>>,
    /// Says that it has.
    ending: Mutex<Option<mpsc::Receiver<u32>>>,
}

impl ControllerHandle {
    /// Hands requests over to the engines, or does not.
    pub fn enable(&self, enabled: bool) {
        self.send(|place| Message::Enable(place, enabled));
    }

    /// Returns once all requests are done that were handed over so far.
    pub fn settle(&self) {
        let (reply, answer) = mpsc::channel();
        self.send(|place| Message::Settle(place, reply));
        // Only fails when the iothread is gone, and the controller with it.
        let _ = answer.recv();
    }

    /// Goes on with another opening of the disk that has its name; returns once it does. It was disabled before, and
    /// has settled.
    pub fn set_node(&self, node: Arc<Node>) {
        let (reply, answer) = mpsc::channel();
        self.send(|place| Message::SetNode(place, node, reply));
        // As above.
        let _ = answer.recv();
    }

    /// Stops it if no front-end is connected and nothing is in flight; false if not.
    #[must_use]
    pub fn stop_if_idle(&self) -> bool {
        let mut running = lock(&self.place);
        let Some(place) = *running else {
            return true;
        };
        let (reply, answer) = mpsc::channel();
        // Only fails when the iothread is gone, and the controller with it.
        let _ = self.remote.send(Message::StopIfIdle(place, reply));
        let idle = answer.recv().unwrap_or(true);
        if idle {
            *running = None;
        }
        idle
    }

    /// Sends the front-end away and takes no other.
    pub fn begin_stop(&self) {
        if let Some(place) = lock(&self.place).take() {
            let (reply, answer) = mpsc::channel();
            // As above.
            let _ = self.remote.send(Message::Stop(place, reply));
            *lock(&self.ending) = Some(answer);
        }
    }

    /// The same, and waits for what is in flight.
    pub fn stop(&self) {
        self.begin_stop();
        if let Some(ending) = lock(&self.ending).take() {
            let _ = ending.recv();
        }
    }

    fn send(&self, message: impl FnOnce(u32) -> Message) {
        if let Some(place) = *lock(&self.place) {
            // As above.
            let _ = self.remote.send(message(place));
        }
    }
}

impl Drop for ControllerHandle {
    fn drop(&mut self) {
        self.stop();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A started queue. Dropping it stops the queue, waiting for what is in flight.
pub struct VringHandle {
    remote: Remote<Message>,
    /// `None` once stopped.
    place: Option<u32>,
}

impl VringHandle {
    /// Takes requests, or does not.
    pub fn enable(&self, enabled: bool) {
        self.send(|place| Message::Enable(place, enabled));
    }

    /// The guest's memory is mapped anew; returns once the queue uses the new map for all that it
    /// takes from now on. The old one is kept as long as requests in flight need it.
    pub fn set_memory(&self, memory: Arc<GuestMemory>) {
        let (reply, answer) = mpsc::channel();
        self.send(|place| Message::SetMemory(place, memory, reply));
        // Only fails when the iothread is gone, and the queue with it.
        let _ = answer.recv();
    }

    /// Returns once all is done that the queue had taken so far. It takes more meanwhile.
    pub fn settle(&self) {
        let (reply, answer) = mpsc::channel();
        self.send(|place| Message::Settle(place, reply));
        // Only fails when the iothread is gone, and the queue with it.
        let _ = answer.recv();
    }

    /// Goes on with another opening of its disk; returns once it does. The queue was disabled before, and
    /// has settled.
    pub fn set_node(&self, node: Arc<Node>) {
        let (reply, answer) = mpsc::channel();
        self.send(|place| Message::SetNode(place, node, reply));
        // Only fails when the iothread is gone, and the queue with it.
        let _ = answer.recv();
    }

    /// Goes on with other disks of its controller; returns once it does. The queue was disabled before, and
    /// has settled.
    pub fn set_disks(&self, disks: Vec<ScsiDisk>) {
        let (reply, answer) = mpsc::channel();
        self.send(|place| Message::SetDisks(place, disks, reply));
        // Only fails when the iothread is gone, and the queue with it.
        let _ = answer.recv();
    }

    /// Signals the guest there.
    pub fn set_call(&self, call: Option<OwnedFd>) {
        self.send(|place| Message::SetCall(place, call));
    }

    /// Tells of a broken queue there.
    pub fn set_err(&self, err: Option<OwnedFd>) {
        self.send(|place| Message::SetErr(place, err));
    }

    /// Listens for kicks there.
    ///
    /// # Errors
    /// [`StartError::Kick`] when the descriptor cannot be watched; the old one still is then.
    pub fn set_kick(&self, kick: Option<OwnedFd>) -> Result<(), StartError> {
        let (reply, answer) = mpsc::channel();
        self.send(|place| Message::SetKick(place, kick, reply));
        answer.recv().map_err(|_| Stopped)?
    }

    /// Takes no more requests, waits for those in flight and says where the queue stands, as
    /// `GET_VRING_BASE` wants it; `None` when the iothread is gone.
    #[must_use]
    pub fn stop(mut self) -> Option<u32> {
        self.stop_now()
    }

    fn stop_now(&mut self) -> Option<u32> {
        let place = self.place.take()?;
        let (reply, answer) = mpsc::channel();
        self.remote.send(Message::Stop(place, reply)).ok()?;
        answer.recv().ok()
    }

    fn send(&self, message: impl FnOnce(u32) -> Message) {
        if let Some(place) = self.place {
            // An iothread that is gone has taken the queue with it.
            let _ = self.remote.send(message(place));
        }
    }
}

impl Drop for VringHandle {
    fn drop(&mut self) {
        self.stop_now();
    }
}
