//! One started virtqueue: its ring, what it belongs to, the descriptors around it.

mod scsi;
mod waiting;

use std::fmt::Display;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::Sender;

use counters::Clock;
use event_loop::{HandlerId, Idle, Pace, PollSettings, Remote, Turn};
use virtio_blk::{Admission, Finished, QueueName, QueueStats, Stamp};
use virtqueue::{
    Chain, GuestMemory, InflightRegion, QueueLog, RingError, RingFeatures, RingLayout,
};

use block::{Engines, Node, Route};

use crate::descriptors::{Descriptors, duplicate};
use crate::lists::EMPTY_LOOKS;
use crate::message::Message;
use crate::reports::QueueReports;
use crate::scsi::{AttachedDisk, Scsi, ScsiDisk};
use crate::served::{Blk, Served, Serves};
use crate::waiting::Joined;

use waiting::Waiting;

/// Requests taken from one queue per iteration, at most. It bounds how long the other queues of
/// the iothread wait for their turn, and the guest for its completions.
pub(crate) const ADMIT_BUDGET: usize = 64;

/// What a queue is started with.
pub struct VringSetup {
    /// What messages and tracers call it.
    pub name: QueueName,
    /// The device that it is a queue of.
    pub serves: Serves,
    /// The guest's memory.
    pub memory: Arc<GuestMemory>,
    /// Where its rings are.
    pub layout: RingLayout,
    /// What the driver chose.
    pub features: RingFeatures,
    /// Where it stands, as `SET_VRING_BASE` says.
    pub base: u32,
    /// Where it records what it takes, and what was in flight when another process had it; `None`: nowhere.
    pub inflight: Option<InflightRegion>,
    /// Where it logs what it writes to the guest's memory; `None`: nowhere.
    pub log: Option<QueueLog>,
    /// Readable when the guest has added something; `None`: it will not say.
    pub kick: Option<OwnedFd>,
    /// To signal the guest with, an eventfd that is set not to block; `None`: the guest polls.
    pub call: Option<OwnedFd>,
    /// To tell that the queue is broken, an eventfd that is set not to block.
    pub err: Option<OwnedFd>,
    /// Whether requests are taken from the start.
    pub enabled: bool,
    /// Whether the guest's memory is pinned and made known to the iothread's ring.
    pub fixed_buffers: bool,
    /// What it does is counted there. No other running queue has it.
    pub stats: Arc<QueueStats>,
    /// Who hears of failed requests and of a broken queue, beside the log.
    pub reports: Option<QueueReports>,
}

/// Why a queue could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Its rings are not where they can be used.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// Its kick descriptor cannot be watched.
    #[error("its kick descriptor cannot be watched: {0} (an eventfd is expected)")]
    Kick(io::Error),
    /// Its iothread is gone.
    #[error(transparent)]
    Stopped(#[from] event_loop::Stopped),
}

/// An older generation that has requests in flight, and what they use.
struct Retired {
    /// What was taken before, and is of no older generation yet, belongs to it.
    end: Stamp,
    in_flight: u32,
    memory: Arc<GuestMemory>,
    /// If the queue goes on with another one.
    route: Option<Route>,
}

/// What is left to be done when a queue was published.
pub(crate) enum Published {
    /// Nothing.
    Settled,
    /// The queue may be stopping.
    Unsettled {
        /// It has something to hand over that found no room.
        deferred: bool,
    },
}

/// A started queue. Two cache lines apart from any other's: a processor fetches them in pairs.
#[repr(align(128))]
pub(crate) struct Vring {
    ring: virtqueue::Queue,
    served: Served,
    memory: Arc<GuestMemory>,
    /// The generation of requests that use it began here; a new `memory` begins another.
    generation: Stamp,
    /// From old to young.
    retired: Vec<Retired>,
    /// Its memory is known to the iothread's ring, each generation for itself.
    fixed_buffers: bool,
    reports: Option<QueueReports>,
    /// Who waits until no older generation has requests in flight.
    settling: Option<Sender<()>>,
    pub kick: Option<HandlerId>,
    call: Option<OwnedFd>,
    err: Option<OwnedFd>,
    pub enabled: bool,
    pub broken: bool,
    /// Who waits for the queue to have drained, and hears where it stands then.
    pub stopping: Option<Sender<u32>>,
    /// In the plane's list of queues to admit from; the guest's kicks are suppressed.
    pub active: bool,
    /// In the plane's list of queues that wait for room in an engine.
    pub stalled: bool,
    /// In the plane's list of queues with entries to publish.
    pub unpublished: bool,
    /// Publishing ends more than one request of a disk that was finished alone: what was finished together does not count yet,
    /// the queue stops, or it is a controller's.
    pub unsettled: bool,
    /// How often in a row nothing was found in it while it was active.
    pub empty_looks: u16,
    /// How long it keeps the loop waiting.
    pace: Pace,
    clock: Clock,
    /// The same as `served` has, one look away.
    stats: QueueStats,
    /// Requests that the disk has failed, and that wait.
    waiting: Waiting,
    /// Other threads reach it, as one of its export's.
    pub joined: Option<Joined>,
}

impl Vring {
    /// A queue that is not in any list yet. `token` is its place among the plane's, which `remote` leads to.
    /// `attach` makes the way to a disk.
    pub fn new(
        setup: VringSetup,
        token: u32,
        remote: &Remote<Message>,
        mut attach: impl FnMut(&Node) -> Route,
    ) -> Result<(Self, Option<OwnedFd>), RingError> {
        let VringSetup {
            name,
            serves,
            memory,
            layout,
            features,
            base,
            inflight,
            log,
            kick,
            call,
            err,
            enabled,
            fixed_buffers,
            stats,
            reports,
        } = setup;
        let (size, counted) = (layout.size, QueueStats::clone(&stats));
        let mut ring = match inflight {
            None => virtqueue::Queue::new(&memory, layout, features, base)?,
            Some(region) => {
                virtqueue::Queue::with_recorder(&memory, layout, features, base, region)?
            }
        };
        if log.is_some() {
            ring.set_log(log, &memory);
        }
        let served = match serves {
            Serves::Blk { device, node } => Served::Blk(Blk {
                queue: virtio_blk::Queue::new(name, device, size, token, &stats),
                route: attach(&node),
                clock: Clock::new(),
            }),
            Serves::Scsi(mut setup) => {
                let remote = remote.clone();
                let attached = |disk: ScsiDisk| AttachedDisk {
                    route: attach(&disk.node),
                    disk,
                };
                let disks = std::mem::take(&mut setup.disks);
                let disks = disks.into_iter().map(attached).collect();
                let scsi = Scsi::new(setup, disks, name, size, token, stats, remote);
                Served::Scsi(Box::new(scsi))
            }
        };
        let vring = Vring {
            ring,
            served,
            memory,
            generation: Stamp::default(),
            retired: Vec::new(),
            fixed_buffers,
            reports,
            settling: None,
            kick: None,
            call,
            err,
            enabled,
            broken: false,
            stopping: None,
            active: false,
            stalled: false,
            unpublished: false,
            unsettled: false,
            empty_looks: 0,
            pace: Pace::default(),
            clock: Clock::new(),
            stats: counted,
            waiting: Waiting::default(),
            joined: None,
        };
        vring.served.stats().size().set(size.into());
        Ok((vring, kick))
    }

    /// The ways of its requests to disks, when it ends.
    pub fn into_routes(self) -> Vec<Route> {
        self.served.into_routes()
    }

    /// Whether requests may be taken from it.
    pub fn runs(&self) -> bool {
        !self.broken
            && if self.stopping.is_none() {
                self.enabled
            } else {
                self.finishes()
            }
    }

    /// What was in flight when the queue was started is carried out before it stops: whoever uses the rings next may not
    /// know of the record. Front-ends disable a queue before they stop it, so that does not count; but of one that is left
    /// disabled the record is.
    #[cold]
    pub(super) fn finishes(&self) -> bool {
        let is_for_requests = match &self.served {
            Served::Blk(_) => true,
            Served::Scsi(scsi) => scsi.is_for_requests(),
        };
        let stays = self.waiting.stays() && !self.enabled;
        is_for_requests && !stays && self.ring.has_recovered()
    }

    /// It takes nothing new any more. `reply` hears where it stands once it has drained.
    pub fn begin_stop(&mut self, reply: Sender<u32>) {
        self.stopping = Some(reply);
        self.ring.finish();
        if !self.finishes() {
            self.end_admissions();
        }
    }

    pub fn in_flight(&self) -> u32 {
        self.served.in_flight()
    }

    #[inline]
    pub fn has_available(&self) -> bool {
        self.ring.has_available()
    }

    pub fn disable_kicks(&mut self) {
        self.ring.disable_kicks();
    }

    pub fn enable_kicks(&mut self) -> bool {
        self.ring.enable_kicks()
    }

    pub fn base(&self) -> u32 {
        self.ring.base()
    }

    /// Asks for kicks. False, and still not kicked, when there is something already.
    pub fn rests(&mut self) -> bool {
        let found = self.enable_kicks();
        if found {
            self.disable_kicks();
        }
        !found
    }

    /// Nothing was found in it once more. True when that is the case for so long that it has to kick
    /// again, and it was asked to.
    #[inline]
    pub fn aged(&mut self) -> bool {
        self.empty_looks = self.empty_looks.wrapping_add(1);
        self.empty_looks >= EMPTY_LOOKS && self.ages()
    }

    #[cold]
    fn ages(&mut self) -> bool {
        self.empty_looks = 0;
        self.kick.is_some() && self.rests()
    }

    /// Until when it is worth polling for its next request or completion.
    pub fn poll_until(&mut self, settings: &PollSettings, now_ns: u64) -> u64 {
        let in_flight = self.in_flight();
        let turn = match in_flight {
            0 => Turn::Guest,
            in_flight => Turn::Disk { in_flight },
        };
        let progress = self.progress(in_flight);
        self.pace.poll_until(settings, now_ns, progress, turn)
    }

    /// The idle time after [`Vring::poll_until`] has ended.
    pub fn learn(&mut self, settings: &PollSettings, idle: Idle) {
        let progress = self.progress(self.in_flight());
        self.pace.learn(settings, idle, progress);
    }

    /// Changes with every request that is taken and every completion.
    fn progress(&self, in_flight: u32) -> u64 {
        u64::from(self.next_avail()) << 32 | u64::from(in_flight)
    }

    pub fn next_avail(&self) -> u16 {
        self.ring.next_avail()
    }

    /// Phase 4 of one queue, of up to [`ADMIT_BUDGET`] requests. `None`: the guest broke it, and was told.
    #[inline]
    pub fn admit(&mut self, chain: &mut Chain, engines: &mut Engines) -> Option<Admission> {
        // An active queue is empty in every other iteration: one load.
        if !self.ring.has_available() {
            return Some(Admission::Drained);
        }
        self.admit_available(chain, engines)
    }

    fn admit_available(&mut self, chain: &mut Chain, engines: &mut Engines) -> Option<Admission> {
        // The kind of the device and the clock matter once per batch: one comparison.
        if let Served::Blk(Blk { queue, clock, .. }) = &mut self.served
            && let Some(now) = clock.counter()
        {
            queue.begin_batch(now);
        } else {
            self.begin_by_kernels_clock();
        }
        let Served::Blk(blk) = &mut self.served else {
            return self.admit_scsi(chain, engines);
        };
        match blk.admit(&mut self.ring, &self.memory, chain, engines) {
            Ok(admission) => Some(admission),
            Err(error) => {
                self.break_down(&error);
                None
            }
        }
    }

    /// As an admission begins where the processor does not tell the time. A controller asks for it itself.
    #[cold]
    #[inline(never)]
    fn begin_by_kernels_clock(&mut self) {
        if let Served::Blk(Blk { queue, clock, .. }) = &mut self.served {
            queue.begin_batch(clock.now());
        }
    }

    /// Whether the last admission answered something by itself.
    #[inline]
    pub fn take_answered(&mut self) -> bool {
        self.served.take_answered()
    }

    /// Phase 2 of one block request, `now` in ticks.
    #[inline(always)]
    pub fn complete(
        &mut self,
        slot: u32,
        result: Result<(), engine::Errno>,
        engines: &mut Engines,
        now: u64,
    ) {
        if self.is_controllers() {
            self.complete_scsi(slot, result, &[], engines, now);
            return;
        }
        match result {
            Ok(()) => self.answer(slot, Ok(()), engines, now),
            Err(errno) => self.complete_failed(slot, errno, engines, now),
        }
    }

    /// Whether it is a controller's.
    #[inline(always)]
    pub fn is_controllers(&self) -> bool {
        matches!(self.served, Served::Scsi(_))
    }

    /// The same for the only one of the phase, now.
    #[inline(always)]
    pub fn complete_alone(
        &mut self,
        slot: u32,
        result: Result<(), engine::Errno>,
        engines: &mut Engines,
    ) {
        // One comparison for the kind of the device and for the clock.
        if result.is_ok()
            && let Served::Blk(Blk { clock, .. }) = &self.served
            && let Some(now) = clock.counter()
        {
            self.answer_alone(slot, engines, now);
        } else {
            self.complete_other(slot, result, engines);
        }
    }

    /// Out of line, so that what is usual has the registers.
    #[inline(never)]
    fn complete_other(
        &mut self,
        slot: u32,
        result: Result<(), engine::Errno>,
        engines: &mut Engines,
    ) {
        let now = self.clock.now();
        self.unsettled = true;
        self.complete(slot, result, engines, now);
    }

    /// Out of line, so that what succeeds is answered by code that knows it.
    #[cold]
    #[inline(never)]
    fn complete_failed(
        &mut self,
        slot: u32,
        errno: engine::Errno,
        engines: &mut Engines,
        now: u64,
    ) {
        // Else it waits.
        if let Some(result) = self.failed(slot, errno) {
            self.answer(slot, result, engines, now);
        }
    }

    /// A disk's block request is over: the guest's requests are answered.
    #[inline(always)]
    fn answer(
        &mut self,
        slot: u32,
        result: Result<(), engine::Errno>,
        engines: &mut Engines,
        now: u64,
    ) {
        let Served::Blk(Blk { queue, .. }) = &mut self.served else {
            return;
        };
        let Finished { requests, taken } = queue.complete(&mut self.ring, slot, result, now);
        if taken < self.generation {
            self.release(taken, requests, engines);
        }
    }

    /// The same for one that has succeeded and is alone in its phase: it counts at once.
    #[inline(always)]
    fn answer_alone(&mut self, slot: u32, engines: &mut Engines, now: u64) {
        let Served::Blk(Blk { queue, .. }) = &mut self.served else {
            return;
        };
        let Finished { requests, taken } = queue.complete_alone(&mut self.ring, slot, now);
        if taken < self.generation {
            self.release(taken, requests, engines);
        }
    }

    /// Phase 3 of one queue: one index, at most one signal. `signals` is called before that.
    #[inline(always)]
    pub fn publish(&mut self, signals: impl FnOnce()) -> Published {
        let wanted = self.ring.publish();
        if tracepoints::notify::enabled() {
            self.trace_notify(wanted && self.call.is_some());
        }
        if !self.unsettled {
            self.signal_if(wanted, signals);
            return Published::Settled;
        }
        // A guest that polls does not wait for it, and one that is signalled finds that it is counted.
        let deferred = match &mut self.served {
            Served::Blk(Blk { queue, .. }) => {
                queue.end_batch();
                false
            }
            Served::Scsi(scsi) => scsi.end_batch(),
        };
        self.signal_if(wanted, signals);
        self.unsettled = self.stopping.is_some();
        Published::Unsettled { deferred }
    }

    #[inline(always)]
    fn signal_if(&self, wanted: bool, signals: impl FnOnce()) {
        if wanted && let Some(call) = &self.call {
            signals();
            signal(call);
            self.stats.notifications().add(1);
        }
    }

    /// For tracers: what the disk has completed since this was last counted.
    #[cold]
    fn trace_notify(&self, signalled: bool) {
        let name = self.served.name();
        let counted = self.served.stats().in_flight().get();
        let completions = counted.saturating_sub(self.in_flight().into());
        tracepoints::notify::fire(
            name.export(),
            name.index().into(),
            completions,
            signalled.into(),
        );
    }

    /// For tracers: the guest has kicked.
    #[cold]
    pub fn trace_kick(&self) {
        let name = self.served.name();
        tracepoints::kick::fire(name.export(), name.index().into());
    }

    /// The guest's memory is mapped anew. Requests in flight keep the map that they came with.
    pub fn set_memory(&mut self, memory: Arc<GuestMemory>, engines: &mut Engines) {
        let remapped = self.ring.remap(&memory);
        let old = std::mem::replace(&mut self.memory, memory);
        self.join_memory(engines);
        self.begin_generation(old, None, engines);
        if let Err(error) = remapped {
            self.break_down(&error);
        }
    }

    /// What it writes to the guest's memory is logged there from now on, or is not.
    pub fn set_log(&mut self, log: Option<QueueLog>) {
        self.ring.set_log(log, &self.memory);
    }

    /// What it takes from now on goes this way to its disk. What it has taken goes the old one to its end.
    pub fn set_route(&mut self, new: Route, engines: &mut Engines) {
        let Served::Blk(Blk { route, .. }) = &mut self.served else {
            return engines.detach(new);
        };
        let old = std::mem::replace(route, new);
        self.join_memory(engines);
        self.begin_generation(self.memory.clone(), Some(old), engines);
    }

    /// The answer comes when all that was taken so far is done. The queue goes on meanwhile.
    pub fn settle(&mut self, reply: Sender<()>, engines: &mut Engines) {
        self.join_memory(engines);
        self.begin_generation(self.memory.clone(), None, engines);
        self.settling = Some(reply);
        self.end_settling();
    }

    /// What is taken from now on is told apart from what is in flight, which uses `memory` and, if the queue goes on with another
    /// one, `route`.
    fn begin_generation(
        &mut self,
        memory: Arc<GuestMemory>,
        route: Option<Route>,
        engines: &mut Engines,
    ) {
        let older: u32 = self.retired.iter().map(|retired| retired.in_flight).sum();
        let in_flight = self.served.in_flight() - older;
        // Parked requests go the new way, if they are tried again.
        let uses_route = self.in_flight() > self.waiting();
        self.generation = match &mut self.served {
            Served::Blk(Blk { queue, .. }) => queue.begin_generation(),
            Served::Scsi(scsi) => scsi.begin_generation(),
        };
        let mut retired = Retired {
            end: self.generation,
            in_flight,
            memory,
            route: None,
        };
        if uses_route {
            retired.route = route;
        } else if let Some(route) = route {
            engines.detach(route);
        }
        if in_flight > 0 {
            self.retired.push(retired);
        } else {
            self.leave(retired, engines);
        }
    }

    /// A generation without requests in flight has no more use for its memory and its route.
    fn leave(&self, retired: Retired, engines: &mut Engines) {
        self.leave_memory(&retired.memory, engines);
        if let Some(route) = retired.route {
            engines.detach(route);
        }
    }

    /// The current generation begins to use its memory.
    pub fn join_memory(&self, engines: &mut Engines) {
        let Served::Blk(Blk { route, .. }) = &self.served else {
            return;
        };
        if !self.fixed_buffers {
            return;
        }
        let regions = self.memory.regions().iter();
        let ranges = regions.map(|region| {
            let len = usize::try_from(region.len).expect("what is mapped fits an address space");
            (region.host as usize, len)
        });
        // SAFETY: each generation keeps its map until it has left, which holds its regions.
        unsafe { engines.join_memory(route, key(&self.memory), ranges) };
    }

    fn leave_memory(&self, memory: &Arc<GuestMemory>, engines: &mut Engines) {
        if self.fixed_buffers {
            engines.leave_memory(key(memory));
        }
    }

    /// Nothing is in flight, and nothing will be.
    pub fn end(&mut self, engines: &mut Engines) {
        debug_assert!(self.retired.is_empty(), "they end with their requests");
        self.served.stats().size().set(0);
        self.leave_memory(&self.memory, engines);
    }

    fn end_settling(&mut self) {
        if self.settling.is_none() {
            return;
        }
        let older: u32 = self.retired.iter().map(|retired| retired.in_flight).sum();
        if older == self.waiting_from_before()
            && let Some(reply) = self.settling.take()
        {
            // A front-end that is gone does not want to know.
            let _ = reply.send(());
        }
    }

    #[cold]
    fn release(&mut self, taken: Stamp, requests: u32, engines: &mut Engines) {
        if let Some(index) = self.retired.iter().position(|retired| taken < retired.end) {
            self.retired[index].in_flight -= requests;
            if self.retired[index].in_flight == 0 {
                let retired = self.retired.remove(index);
                self.leave(retired, engines);
            }
            self.end_settling();
        }
    }

    pub fn set_call(&mut self, call: Option<OwnedFd>) {
        self.call = call;
        // What was signalled on the old descriptor may not have been seen by whoever waits on the
        // new one: a signal too many is harmless, one too few is not.
        if let Some(call) = &self.call {
            signal(call);
        }
    }

    /// Duplicates of its descriptors, of which the loop has the kick's.
    pub fn descriptors(&self, kick: Option<BorrowedFd<'_>>) -> io::Result<Descriptors> {
        Ok(Descriptors {
            kick: duplicate(kick)?,
            call: duplicate(self.call.as_ref())?,
            err: duplicate(self.err.as_ref())?,
        })
    }

    pub fn set_err(&mut self, err: Option<OwnedFd>) {
        self.err = err;
    }

    /// The guest broke the queue: it alone stands still from here on.
    fn break_down(&mut self, error: &dyn Display) {
        if self.broken {
            return;
        }
        self.broken = true;
        tracing::error!(
            queue = self.served.name().to_string(), %error,
            "the guest's driver broke this queue: it is stopped until the driver resets the device"
        );
        if let Some(reports) = &self.reports {
            reports.broken(error);
        }
        if let Some(err) = &self.err {
            signal(err);
        }
        self.end_admissions();
    }
}

/// A map's name, as long as it is kept.
fn key(memory: &Arc<GuestMemory>) -> usize {
    Arc::as_ptr(memory) as usize
}

/// A full counter (EAGAIN) is a signal that is pending already; any other error is the front-end's
/// own doing.
fn signal(fd: &OwnedFd) {
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}
