//! A started virtqueue on its iothread: its ring, its device, and the kick, call and err descriptors.

mod generations;

use std::fmt::Display;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::Sender;

use block::{AttachedDisk, IoContext, Node};
use engine::Completion;
use eventfd::Signaller;
use telemetry::queue::AdmissionEnd;
use virtqueue::queue_setup::{QueueFds, QueueSetup};
use virtqueue::{Chain, GuestMemory, QueueDirtyLog, RingError};

use crate::admit_budget::AdmitBudget;
use crate::awaited_side::awaited_side;
use crate::device::{ParkedStopAction, QueueContext, QueueDevice, new_queue_device};
use crate::event_loop::{HandlerId, IdleEnd, PollPredictor, PollSettings, Remote};
use crate::messages::{
    Message, QueueRegistration, QueueReporter, ResumeAction, ScsiMessage, VringSetup,
};
use crate::older_generations::OlderGenerations;

/// Number of polls in a row that find an active queue empty before its kicks are enabled again. So many polls cost
/// about as much as the kick that they spare, which is the best choice without knowing when
/// the next request comes.
pub(crate) const MAX_EMPTY_POLLS: u16 = 256;

/// A started queue. Aligned to two cache lines, which a processor fetches in pairs.
#[repr(align(128))]
pub(crate) struct Vring {
    ring: virtqueue::Queue,
    device: Box<dyn QueueDevice>,
    /// Its index among the sources of its iothread.
    source_index: u32,
    memory: Arc<GuestMemory>,
    older_generations: OlderGenerations,
    /// Whether its memory is registered with the iothread's io_uring, each generation separately.
    fixed_buffers: bool,
    reports: Option<QueueReporter>,
    /// The loop's handler of its kick descriptor; `None`: its front-end does not kick.
    pub kick: Option<HandlerId>,
    signaller: Signaller,
    /// Signals the guest.
    call: Option<OwnedFd>,
    /// Signals that the queue is broken.
    err: Option<OwnedFd>,
    pub enabled: bool,
    broken: bool,
    /// Receives the base of the queue once it has drained.
    pub stopping: Option<Sender<u32>>,
    /// Handling of its parked requests when it stops.
    parked_at_stop: ParkedStopAction,
    /// Number of polls in a row that found it empty while it was active.
    pub empty_polls: u16,
    /// Most requests of its next admission.
    admit_budget: AdmitBudget,
    /// Predicts whether polling for it pays.
    predictor: PollPredictor,
    /// Its registration with its export, for other threads.
    pub registration: Option<QueueRegistration>,
}

impl Vring {
    /// A queue that is in no list yet, and its kick descriptor. `source_index` is its index
    /// on the iothread that `remote` leads to.
    pub fn new_with_attached_disks(
        setup: VringSetup,
        source_index: u32,
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
            descriptors: QueueFds { kick, call, err },
            enabled,
        } = queue;
        let mut ring = match inflight {
            None => virtqueue::Queue::new(&memory, layout, features, base)?,
            Some(region) => {
                virtqueue::Queue::with_recorder(&memory, layout, features, base, region)?
            }
        };
        if log.is_some() {
            ring.set_dirty_log(log, &memory);
        }
        let signaller = match &reports {
            Some(reports) => reports.export.signaller().clone(),
            None => Signaller::new(&name.export().to_string_lossy()),
        };
        stats.queue_size().set(layout.size.into());
        let vring = Vring {
            ring,
            device: new_queue_device(
                device,
                name,
                layout.size,
                source_index,
                stats,
                remote,
                attach,
            ),
            source_index,
            memory,
            older_generations: OlderGenerations::default(),
            fixed_buffers,
            reports,
            kick: None,
            signaller,
            call,
            err,
            enabled,
            broken: false,
            stopping: None,
            parked_at_stop: ParkedStopAction::ReturnToRing,
            empty_polls: 0,
            admit_budget: AdmitBudget::default(),
            predictor: PollPredictor::default(),
            registration: None,
        };
        Ok((vring, kick))
    }

    /// The device, and the context for its calls.
    #[inline]
    fn device_and_context<'a>(
        &'a mut self,
        io: &'a mut IoContext,
        now: u64,
    ) -> (&'a mut dyn QueueDevice, QueueContext<'a>) {
        let cx = QueueContext {
            ring: &mut self.ring,
            memory: &self.memory,
            io,
            source_index: self.source_index,
            reports: self.reports.as_ref(),
            enabled: self.enabled,
            now,
        };
        (&mut *self.device, cx)
    }

    /// Sets or removes its dirty log.
    pub fn set_dirty_log(&mut self, log: Option<QueueDirtyLog>) {
        self.ring.set_dirty_log(log, &self.memory);
    }

    /// Replaces the descriptor that signals the guest.
    pub fn set_call_and_signal(&mut self, call: Option<OwnedFd>) {
        self.call = call;
        // A driver that waits on the new descriptor may not have seen a signal on the old one:
        // a signal too many is harmless, one too few is not.
        if let Some(call) = &self.call {
            self.signaller.signal(call);
        }
    }

    /// Replaces the descriptor that signals a broken queue.
    pub fn set_err(&mut self, err: Option<OwnedFd>) {
        self.err = err;
    }

    /// Leaves parked requests in the in-flight region, if there is one, when the queue stops.
    pub fn leave_parked_in_region_at_stop(&mut self) {
        self.parked_at_stop = ParkedStopAction::LeaveInRegion;
    }

    /// Duplicates of its descriptors; `kick` is the one that the loop watches.
    pub fn duplicate_descriptors(&self, kick: Option<BorrowedFd<'_>>) -> io::Result<QueueFds> {
        Ok(QueueFds {
            kick: duplicate_fd(kick)?,
            call: duplicate_fd(self.call.as_ref())?,
            err: duplicate_fd(self.err.as_ref())?,
        })
    }

    /// Its disks, when it ends.
    pub fn into_disks(self) -> Vec<AttachedDisk> {
        self.device.into_disks()
    }

    /// Whether requests may be admitted from it.
    pub fn may_admit(&self) -> bool {
        !self.broken
            && if self.stopping.is_none() {
                self.enabled
            } else {
                self.has_recovered_to_admit()
            }
    }

    /// Whether there are recovered requests to admit before the queue stops. They are, since the next process that uses the rings may
    /// not know of the in-flight region; also if the queue is disabled, as front-ends disable a queue before they stop it, unless its
    /// parked requests are to stay in the region.
    #[cold]
    fn has_recovered_to_admit(&self) -> bool {
        let stays = self.parked_at_stop == ParkedStopAction::LeaveInRegion && !self.enabled;
        self.device.chains_are_requests() && !stays && self.ring.has_recovered_chains()
    }

    /// Begins to stop it: no new requests are admitted. Its base is sent to `reply` once it has drained.
    pub fn begin_stop(&mut self, reply: Sender<u32>) {
        self.stopping = Some(reply);
        self.ring.pop_only_recovered_from_now_on();
        self.end_admissions_if_finished();
    }

    /// Ends the admissions of a queue that stops, after its last recovered request.
    pub fn end_admissions_if_finished(&mut self) {
        if self.stopping.is_some() && !self.has_recovered_to_admit() {
            self.device.on_no_more_admissions(&mut self.ring);
        }
    }

    /// Whether it was stopped and has nothing in flight but parked requests.
    pub fn is_stopping_and_drained(&self) -> bool {
        let in_flight = self.device.in_flight_counts();
        self.stopping.is_some() && in_flight.requests == in_flight.parked && !self.may_admit()
    }

    #[inline]
    pub fn has_available(&self) -> bool {
        self.ring.has_available()
    }

    pub fn disable_kicks(&mut self) {
        self.ring.disable_kicks();
    }

    /// Enables kicks. False, and kicks stay disabled, when there is a request already.
    pub fn enable_kicks_if_empty(&mut self) -> bool {
        let found = self.ring.enable_kicks_and_recheck();
        if found {
            self.disable_kicks();
        }
        !found
    }

    /// Counts a poll that found it empty. True when there were so many of them that its kicks were enabled again.
    #[inline]
    pub fn count_empty_poll_or_enable_kicks(&mut self) -> bool {
        self.empty_polls = self.empty_polls.wrapping_add(1);
        if self.empty_polls < MAX_EMPTY_POLLS {
            return false;
        }
        self.empty_polls = 0;
        self.kick.is_some() && self.enable_kicks_if_empty()
    }

    /// The time until which polling for its next request or completion pays.
    pub fn predict_poll_deadline_ns(&mut self, settings: &PollSettings, now_ns: u64) -> u64 {
        let in_flight = self.device.in_flight_counts().requests;
        let awaited = awaited_side(in_flight, self.device.disks());
        let progress = self.progress_stamp(in_flight);
        self.predictor
            .predict_poll_deadline_ns(settings, now_ns, progress, awaited)
    }

    /// Learns from the idle time after [`Vring::predict_poll_deadline_ns`], which has ended.
    pub fn learn_from_idle(&mut self, settings: &PollSettings, idle: IdleEnd) {
        let progress = self.progress_stamp(self.device.in_flight_counts().requests);
        self.predictor.learn_from_idle(settings, idle, progress);
    }

    /// A number that changes with every admitted request and every completion.
    fn progress_stamp(&self, in_flight: u32) -> u64 {
        u64::from(self.next_avail()) << 32 | u64::from(in_flight)
    }

    pub fn next_avail(&self) -> u16 {
        self.ring.next_avail_counting_recovered()
    }

    /// Phase 4 of the event loop: admits as many requests as its [budget](AdmitBudget) allows. `None`:
    /// the guest broke the queue, which was reported.
    pub fn admit(
        &mut self,
        chain: &mut Chain,
        io: &mut IoContext,
        now: impl FnOnce() -> u64,
    ) -> Option<AdmissionEnd> {
        // An active queue is often empty: this check is one load.
        if !self.ring.has_available() {
            return Some(AdmissionEnd::Drained);
        }
        let (cost_before, budget) = (io.submission_cost(), self.admit_budget.requests());
        let (device, cx) = self.device_and_context(io, now());
        let admission = device.admit(cx, chain, budget);
        self.admit_budget
            .adapt(io.submission_cost().wrapping_sub(cost_before));
        self.release_and_settle_old_generations(io);
        self.end_admissions_if_finished();
        admission
            .map_err(|error| self.mark_broken_and_report(&error))
            .ok()
    }

    /// Whether the device has pushed used entries other than by completions.
    #[inline]
    pub fn take_pushed_outside_completions(&mut self) -> bool {
        self.device.take_pushed_outside_completions()
    }

    /// Phase 2: completes block requests of this queue, `now` in ticks.
    pub fn complete(&mut self, done: &[Completion], io: &mut IoContext, now: u64) {
        let (device, cx) = self.device_and_context(io, now);
        device.complete(done, cx);
        self.release_and_settle_old_generations(io);
    }

    /// Phase 3: publishes used entries, with at most one signal. `before_signal` is called before that. True if requests wait
    /// for room in an engine.
    pub fn publish_and_signal(&mut self, before_signal: impl FnOnce()) -> bool {
        let signal = self.ring.publish() && self.call.is_some();
        if telemetry::tracepoints::notify::enabled() {
            self.trace_notify(signal);
        }
        // The statistics are updated before the signal. A guest that polls may see its used entries earlier.
        let deferred = self.device.count_completions_and_has_waiting();
        if signal && let Some(call) = &self.call {
            before_signal();
            self.signaller.signal(call);
            self.device.queue_stats().notifications().add(1);
        }
        deferred
    }

    /// Fires the tracepoint of a notification, with the completions since the last count.
    #[cold]
    fn trace_notify(&self, signalled: bool) {
        let name = self.device.queue_name();
        let counted = self.device.queue_stats().in_flight().get();
        let completions = counted.saturating_sub(self.device.in_flight_counts().requests.into());
        telemetry::tracepoints::notify::fire(
            name.export(),
            name.index().into(),
            completions,
            signalled.into(),
        );
    }

    /// Fires the tracepoint of a kick.
    #[cold]
    pub fn trace_kick(&self) {
        let name = self.device.queue_name();
        telemetry::tracepoints::kick::fire(name.export(), name.index().into());
    }

    /// Handles a message of another queue of its device. False: it was for an earlier queue.
    pub fn handle_scsi_message(
        &mut self,
        message: ScsiMessage,
        io: &mut IoContext,
        now: u64,
    ) -> bool {
        let (device, cx) = self.device_and_context(io, now);
        let handled = device.handle_scsi_message(message, cx);
        // The notify phase follows in any case.
        self.take_pushed_outside_completions();
        self.release_and_settle_old_generations(io);
        if self.broken {
            self.device.on_no_more_admissions(&mut self.ring);
        }
        self.end_admissions_if_finished();
        handled
    }

    /// Submits requests that waited for room in an engine. True: none waits any more.
    pub fn submit_waiting(&mut self, io: &mut IoContext, now: u64) -> bool {
        let (device, cx) = self.device_and_context(io, now);
        let done = device.submit_waiting(cx);
        self.publish_and_settle(io);
        done
    }

    /// Retries or answers parked requests. True: all of them, or they wait for the queue to be enabled.
    #[must_use]
    pub fn retry_or_fail_parked(
        &mut self,
        how: ResumeAction,
        io: &mut IoContext,
        now: u64,
    ) -> bool {
        let (device, cx) = self.device_and_context(io, now);
        let done = device.retry_or_fail_parked(how, cx);
        self.publish_and_settle(io);
        done
    }

    /// Retries parked requests that waited for the queue to be enabled. As for
    /// [`retry_or_fail_parked`](Self::retry_or_fail_parked).
    #[must_use]
    pub fn resume_deferred_retries_if_enabled(&mut self, io: &mut IoContext, now: u64) -> bool {
        if !self.enabled {
            return true;
        }
        let (device, cx) = self.device_and_context(io, now);
        let done = device.on_enabled(cx);
        self.publish_and_settle(io);
        done
    }

    /// Publishes answers to parked requests at once, in any phase, since they are rare.
    fn publish_and_settle(&mut self, io: &mut IoContext) {
        if self.take_pushed_outside_completions() {
            self.publish_and_signal(|| ());
        }
        self.release_and_settle_old_generations(io);
    }

    /// Reports unfinished requests that were admitted in this period.
    pub fn report_late_except_parked(&self, after: u64, until: u64, now: u64) {
        if let Some(reports) = &self.reports {
            self.device
                .report_late_except_parked(after, until, now, reports);
        }
    }

    /// Ends a queue that [was stopped and has drained](Self::is_stopping_and_drained): its parked requests leave it, and its
    /// memory and disk are not used any more. Returns its base.
    pub fn finish_stop_and_get_base(&mut self, io: &mut IoContext, now: u64) -> u32 {
        let how = self.parked_at_stop;
        let (device, cx) = self.device_and_context(io, now);
        device.leave_return_or_fail_parked(how, cx);
        self.publish_and_settle(io);
        // The next process that uses the rings expects to be kicked.
        self.ring.enable_kicks_and_recheck();
        debug_assert_eq!(
            self.older_generations.in_flight_count(),
            0,
            "they end with their requests"
        );
        self.device.queue_stats().queue_size().set(0);
        self.unregister_memory_if_fixed_buffers(&self.memory, io);
        self.ring.base()
    }

    /// Stops a queue that the guest broke, and reports it.
    fn mark_broken_and_report(&mut self, error: &dyn Display) {
        if self.broken {
            return;
        }
        self.broken = true;
        let name = self.device.queue_name();
        tracing::error!(
            export = %name.export().to_string_lossy(), queue = name.index(), %error,
            "the guest's driver broke this queue: it is stopped until the driver resets the device"
        );
        if let Some(reports) = &self.reports {
            reports.report_broken(error);
        }
        if let Some(err) = &self.err {
            self.signaller.signal(err);
        }
        self.device.on_no_more_admissions(&mut self.ring);
    }
}

/// Duplicates a descriptor.
fn duplicate_fd(fd: Option<impl AsFd>) -> io::Result<Option<OwnedFd>> {
    fd.map(|fd| fd.as_fd().try_clone_to_owned()).transpose()
}
