//! A started virtqueue: its ring, the device behind it, the descriptors around it.

mod generations;

use std::fmt::Display;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::Sender;

use block::{AttachedDisk, IoContext, Node};
use engine::Completion;
use telemetry::queue::Admission;
use virtqueue::control::{Descriptors, QueueSetup};
use virtqueue::{Chain, GuestMemory, QueueLog, RingError};

use crate::device::{QueueContext, QueueDevice, Stop, new_queue};
use crate::epochs::Epochs;
use crate::event_loop::{HandlerId, Idle, PollPredictor, PollSettings, Remote, Turn};
use crate::messages::{Message, QueueRegistration, QueueReports, Resume, ScsiMessage, VringSetup};

/// Requests admitted from one queue per iteration, at most. It bounds how long the other queues of
/// the iothread wait for their turn, and the guest for its completions.
pub(crate) const ADMIT_BUDGET: usize = 64;

/// How often in a row an active queue is found empty before it has to kick again. So many looks cost
/// about as much as the kick that they spare, which is the best that one can do without knowing when
/// the next request comes.
pub(crate) const EMPTY_LOOKS: u16 = 256;

/// A started queue. Two cache lines apart from any other's: a processor fetches them in pairs.
#[repr(align(128))]
pub(crate) struct Vring {
    ring: virtqueue::Queue,
    device: Box<dyn QueueDevice>,
    /// On its iothread.
    place: u32,
    memory: Arc<GuestMemory>,
    epochs: Epochs,
    /// Its memory is registered with the iothread's ring, each generation for itself.
    fixed_buffers: bool,
    reports: Option<QueueReports>,
    pub kick: Option<HandlerId>,
    call: Option<OwnedFd>,
    err: Option<OwnedFd>,
    pub enabled: bool,
    broken: bool,
    /// Waits for the queue to have drained; where it stands then is sent here.
    pub stopping: Option<Sender<u32>>,
    /// What becomes of its parked requests when it stops.
    stop: Stop,
    /// How often in a row nothing was found in it while it was active.
    pub empty_looks: u16,
    /// How long it keeps the loop waiting.
    predictor: PollPredictor,
    /// Other threads reach it, as one of its export's.
    pub registration: Option<QueueRegistration>,
}

impl Vring {
    /// A queue that is not in any list yet. `place` is its place among the runner's, which `remote` leads to. `attach` makes the
    /// route to a disk.
    pub fn new(
        setup: VringSetup,
        place: u32,
        remote: &Remote<Message>,
        attach: impl FnMut(&Arc<Node>) -> AttachedDisk,
    ) -> Result<(Self, Option<OwnedFd>), RingError> {
        let VringSetup {
            name,
            device,
            queue,
            fixed_buffers,
            stats,
            reports,
        } = setup;
        let QueueSetup {
            memory,
            layout,
            features,
            base,
            inflight,
            log,
            descriptors: Descriptors { kick, call, err },
            enabled,
        } = queue;
        let mut ring = match inflight {
            None => virtqueue::Queue::new(&memory, layout, features, base)?,
            Some(region) => {
                virtqueue::Queue::with_recorder(&memory, layout, features, base, region)?
            }
        };
        if log.is_some() {
            ring.set_log(log, &memory);
        }
        stats.size().set(layout.size.into());
        let vring = Vring {
            ring,
            device: new_queue(device, name, layout.size, place, stats, remote, attach),
            place,
            memory,
            epochs: Epochs::default(),
            fixed_buffers,
            reports,
            kick: None,
            call,
            err,
            enabled,
            broken: false,
            stopping: None,
            stop: Stop::Return,
            empty_looks: 0,
            predictor: PollPredictor::default(),
            registration: None,
        };
        Ok((vring, kick))
    }

    /// The device, and what it works with.
    #[inline]
    fn device<'a>(
        &'a mut self,
        io: &'a mut IoContext,
        now: u64,
    ) -> (&'a mut dyn QueueDevice, QueueContext<'a>) {
        let cx = QueueContext {
            ring: &mut self.ring,
            memory: &self.memory,
            io,
            place: self.place,
            reports: self.reports.as_ref(),
            enabled: self.enabled,
            now,
        };
        (&mut *self.device, cx)
    }

    /// Logs what the queue writes to the guest's memory there, or does not.
    pub fn set_log(&mut self, log: Option<QueueLog>) {
        self.ring.set_log(log, &self.memory);
    }

    /// Signals the guest there from now on.
    pub fn set_call(&mut self, call: Option<OwnedFd>) {
        self.call = call;
        // A driver that waits on the new descriptor may not have seen a signal on the old one:
        // a signal too many is harmless, one too few is not.
        if let Some(call) = &self.call {
            send_signal(call);
        }
    }

    /// Signals a broken queue there.
    pub fn set_err(&mut self, err: Option<OwnedFd>) {
        self.err = err;
    }

    /// Leaves parked requests in the in-flight region, if there is one, when the queue stops.
    pub fn leave_parked_at_stop(&mut self) {
        self.stop = Stop::Record;
    }

    /// Duplicates of its descriptors; `kick` is the one that the loop watches.
    pub fn descriptors(&self, kick: Option<BorrowedFd<'_>>) -> io::Result<Descriptors> {
        Ok(Descriptors {
            kick: duplicate(kick)?,
            call: duplicate(self.call.as_ref())?,
            err: duplicate(self.err.as_ref())?,
        })
    }

    /// Its disks, when it ends.
    pub fn into_disks(self) -> Vec<AttachedDisk> {
        self.device.into_disks()
    }

    /// Whether requests may be taken from it.
    pub fn runs(&self) -> bool {
        !self.broken
            && if self.stopping.is_none() {
                self.enabled
            } else {
                self.has_recovered_requests()
            }
    }

    /// What was in flight when the queue was started is carried out before it stops: the next process that uses the rings may
    /// not know of the record. Front-ends disable a queue before they stop it, so that does not count; but of one that is left
    /// disabled the record is.
    #[cold]
    fn has_recovered_requests(&self) -> bool {
        let stays = self.stop == Stop::Record && !self.enabled;
        self.device.has_requests() && !stays && self.ring.has_recovered()
    }

    /// It takes nothing new any more. Where it stands once it has drained is sent to `reply`.
    pub fn begin_stop(&mut self, reply: Sender<u32>) {
        self.stopping = Some(reply);
        self.ring.finish();
        self.end_admissions_if_finished();
    }

    /// A queue that stops has taken the last that it still takes.
    pub fn end_admissions_if_finished(&mut self) {
        if self.stopping.is_some() && !self.has_recovered_requests() {
            self.device.end_admissions(&mut self.ring);
        }
    }

    /// It was stopped, and has nothing in flight but parked requests.
    pub fn has_drained(&self) -> bool {
        let in_flight = self.device.in_flight();
        self.stopping.is_some() && in_flight.requests == in_flight.parked && !self.runs()
    }

    #[inline]
    pub fn has_available(&self) -> bool {
        self.ring.has_available()
    }

    pub fn disable_kicks(&mut self) {
        self.ring.disable_kicks();
    }

    /// Asks for kicks. False, and still not kicked, when there is something already.
    pub fn arm_kick(&mut self) -> bool {
        let found = self.ring.enable_kicks();
        if found {
            self.disable_kicks();
        }
        !found
    }

    /// Nothing was found in it once more. True when that is the case for so long that it has to kick
    /// again, and it was asked to.
    #[inline]
    pub fn deactivate_if_idle(&mut self) -> bool {
        self.empty_looks = self.empty_looks.wrapping_add(1);
        if self.empty_looks < EMPTY_LOOKS {
            return false;
        }
        self.empty_looks = 0;
        self.kick.is_some() && self.arm_kick()
    }

    /// Until when it is worth polling for its next request or completion.
    pub fn poll_until(&mut self, settings: &PollSettings, now_ns: u64) -> u64 {
        let in_flight = self.device.in_flight().requests;
        let turn = match in_flight {
            0 => Turn::Guest,
            in_flight => Turn::Disk { in_flight },
        };
        let progress = self.progress(in_flight);
        self.predictor.poll_until(settings, now_ns, progress, turn)
    }

    /// The idle time after [`Vring::poll_until`] has ended.
    pub fn learn(&mut self, settings: &PollSettings, idle: Idle) {
        let progress = self.progress(self.device.in_flight().requests);
        self.predictor.learn(settings, idle, progress);
    }

    /// Changes with every request that is taken and every completion.
    fn progress(&self, in_flight: u32) -> u64 {
        u64::from(self.next_avail()) << 32 | u64::from(in_flight)
    }

    pub fn next_avail(&self) -> u16 {
        self.ring.next_avail()
    }

    /// Phase 4 of one queue, of up to [`ADMIT_BUDGET`] requests. `None`: the guest broke it, which was reported.
    pub fn admit(
        &mut self,
        chain: &mut Chain,
        io: &mut IoContext,
        now: impl FnOnce() -> u64,
    ) -> Option<Admission> {
        // An active queue is empty in every other iteration: one load.
        if !self.ring.has_available() {
            return Some(Admission::Drained);
        }
        let (device, cx) = self.device(io, now());
        let admission = device.admit(cx, chain, ADMIT_BUDGET);
        self.release_old(io);
        self.end_admissions_if_finished();
        admission.map_err(|error| self.break_down(&error)).ok()
    }

    /// Whether the device has answered something but by completions.
    #[inline]
    pub fn take_answered(&mut self) -> bool {
        self.device.take_answered()
    }

    /// Phase 2: block requests of this queue are done, `now` in ticks.
    pub fn complete(&mut self, done: &[Completion], io: &mut IoContext, now: u64) {
        let (device, cx) = self.device(io, now);
        device.complete(done, cx);
        self.release_old(io);
    }

    /// Phase 3 of one queue: one index, at most one signal. `signals` is called before that. True if requests wait for room in an
    /// engine.
    pub fn publish(&mut self, signals: impl FnOnce()) -> bool {
        let signal = self.ring.publish() && self.call.is_some();
        if telemetry::tracepoints::notify::enabled() {
            self.trace_notify(signal);
        }
        // The statistics are up to date when the guest is signalled. One that polls does not wait for them.
        let deferred = self.device.end_batch();
        if signal && let Some(call) = &self.call {
            signals();
            send_signal(call);
            self.device.stats().notifications().add(1);
        }
        deferred
    }

    /// For tracers: what the disk has completed since this was last counted.
    #[cold]
    fn trace_notify(&self, signalled: bool) {
        let name = self.device.name();
        let counted = self.device.stats().in_flight().get();
        let completions = counted.saturating_sub(self.device.in_flight().requests.into());
        telemetry::tracepoints::notify::fire(
            name.export(),
            name.index().into(),
            completions,
            signalled.into(),
        );
    }

    /// For tracers: the guest has kicked.
    #[cold]
    pub fn trace_kick(&self) {
        let name = self.device.name();
        telemetry::tracepoints::kick::fire(name.export(), name.index().into());
    }

    /// Another queue of its device has sent a message. False: it was for an earlier queue.
    pub fn handle_queue_message(
        &mut self,
        message: ScsiMessage,
        io: &mut IoContext,
        now: u64,
    ) -> bool {
        let (device, cx) = self.device(io, now);
        let handled = device.handle_message(message, cx);
        // The notify phase follows in any case.
        self.take_answered();
        self.release_old(io);
        if self.broken {
            self.device.end_admissions(&mut self.ring);
        }
        self.end_admissions_if_finished();
        handled
    }

    /// Submits what waited for room in an engine. True: nothing waits any more.
    pub fn submit_deferred(&mut self, io: &mut IoContext, now: u64) -> bool {
        let (device, cx) = self.device(io, now);
        let done = device.submit_deferred(cx);
        self.publish_answers(io);
        done
    }

    /// Parked requests are retried or answered. True: all of them were, or wait for the queue to be enabled.
    #[must_use]
    pub fn resume_parked(&mut self, how: Resume, io: &mut IoContext, now: u64) -> bool {
        let (device, cx) = self.device(io, now);
        let done = device.resume_parked(how, cx);
        self.publish_answers(io);
        done
    }

    /// The queue may have been enabled. As for [`resume_parked`](Self::resume_parked).
    #[must_use]
    pub fn resume_if_enabled(&mut self, io: &mut IoContext, now: u64) -> bool {
        if !self.enabled {
            return true;
        }
        let (device, cx) = self.device(io, now);
        let done = device.enabled(cx);
        self.publish_answers(io);
        done
    }

    /// Parked requests were answered: seldom enough to be published at once, in whatever phase the loop is.
    fn publish_answers(&mut self, io: &mut IoContext) {
        if self.take_answered() {
            self.publish(|| ());
        }
        self.release_old(io);
    }

    /// Reports requests that were admitted in this time and are not done.
    pub fn report_late(&self, after: u64, until: u64, now: u64) {
        if let Some(reports) = &self.reports {
            self.device.report_late(after, until, now, reports);
        }
    }

    /// It has [drained](Self::has_drained): its parked requests leave it, and its memory and disk are not used any more. Returns where
    /// it stands.
    pub fn end(&mut self, io: &mut IoContext, now: u64) -> u32 {
        let how = self.stop;
        let (device, cx) = self.device(io, now);
        device.stop(how, cx);
        self.publish_answers(io);
        // The next process that uses the rings expects to be kicked.
        self.ring.enable_kicks();
        debug_assert_eq!(self.epochs.in_flight(), 0, "they end with their requests");
        self.device.stats().size().set(0);
        self.leave_memory(&self.memory, io);
        self.ring.base()
    }

    /// The guest broke the queue: it alone stops here.
    fn break_down(&mut self, error: &dyn Display) {
        if self.broken {
            return;
        }
        self.broken = true;
        tracing::error!(
            queue = self.device.name().to_string(), %error,
            "the guest's driver broke this queue: it is stopped until the driver resets the device"
        );
        if let Some(reports) = &self.reports {
            reports.broken(error);
        }
        if let Some(err) = &self.err {
            send_signal(err);
        }
        self.device.end_admissions(&mut self.ring);
    }
}

/// A full counter (EAGAIN) is a signal that is pending already; any other error is the front-end's
/// own doing.
fn send_signal(fd: &OwnedFd) {
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}

/// Another descriptor of the same file.
fn duplicate(fd: Option<impl AsFd>) -> io::Result<Option<OwnedFd>> {
    fd.map(|fd| fd.as_fd().try_clone_to_owned()).transpose()
}
