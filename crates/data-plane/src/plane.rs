//! The five phases over rings, devices and engines.
//!
//! Queues move between three lists, each entered at most once (a flag in the queue says so):
//! - *active*: was kicked, or found non-empty; looked at in every iteration, its kicks suppressed,
//!   until the loop is about to block and finds it empty;
//! - *stalled*: an engine had no room; becomes active when something has completed, ahead of those
//!   that did not wait. The list is in two parts: who got nothing at all goes before who got some;
//! - *unpublished*: has used entries that the guest does not see yet.

use std::sync::mpsc::Sender;

use block::Engines;
use engine::Completion;
use event_loop::iothread::PlaneContext;
use event_loop::{HandlerId, Interest, Plane, Readiness, TimerId};
use virtio_blk::Admission;
use virtqueue::Chain;

use std::os::fd::OwnedFd;

use crate::message::Message;
use crate::vring::{StartError, Vring, VringSetup};
use crate::vrings::Vrings;

/// How long after the kernel had no memory for a request, with none in flight, it is asked again.
const RETRY_NS: u64 = 1_000_000;

/// How often a queue is looked at whose front-end will not kick (it said so instead of giving a
/// descriptor): a compromise between its latency and a core.
const UNKICKED_LOOK_NS: u64 = 100_000;

/// Room for the completions of worker threads in one reap, beside those of the other engines: as many
/// as a thread pool that is busy everywhere could have finished at once. (With more the list grows.)
const WORKER_COMPLETIONS: usize = 4096;

/// A descriptor of the plane.
#[derive(Clone, Copy)]
pub enum Handler {
    /// Linux AIO has completed something.
    Aio,
    /// The guest kicked the queue at this place.
    Kick(u32),
}

/// What an iothread runs.
pub struct StoragePlane {
    // First, so that it is dropped first: it waits for what is in flight in the queues' memory.
    engines: Engines,
    vrings: Vrings,
    active: Vec<u32>,
    stalled: Vec<u32>,
    /// The second part of *stalled*: queues that got some room before there was no more.
    stalled_served: Vec<u32>,
    unpublished: Vec<u32>,
    completions: Vec<Completion>,
    chain: Chain,
    /// A queue was left with work because its budget was used up.
    more: bool,
    timer: Option<(u64, TimerId)>,
}

impl StoragePlane {
    /// Around its engines, whose eventfd it registers.
    ///
    /// # Errors
    /// When descriptors have run out.
    pub fn new(cx: &mut PlaneContext<Self>, engines: Engines) -> std::io::Result<Self> {
        if let Some(eventfd) = engines.aio_eventfd() {
            cx.add(
                eventfd.try_clone_to_owned()?,
                Interest::ReadableEdge,
                Handler::Aio,
            )?;
        }
        let completions = Vec::with_capacity(engines.most_completions() + WORKER_COMPLETIONS);
        Ok(StoragePlane {
            engines,
            vrings: Vrings::default(),
            active: Vec::new(),
            stalled: Vec::new(),
            stalled_served: Vec::new(),
            unpublished: Vec::new(),
            completions,
            chain: Chain::new(),
            more: false,
            timer: None,
        })
    }

    fn start(&mut self, cx: &mut PlaneContext<Self>, setup: VringSetup) -> Result<u32, StartError> {
        let place = self.vrings.reserve();
        let started =
            Vring::new(setup, place)
                .map_err(StartError::from)
                .and_then(|(mut vring, kick)| {
                    vring.kick = watch(cx, place, kick)?;
                    Ok(vring)
                });
        match started {
            Ok(vring) => {
                self.vrings.put(place, vring);
                self.make_room_in_lists();
                self.activate(place);
                Ok(place)
            }
            Err(error) => {
                self.vrings.remove(place);
                Err(error)
            }
        }
    }

    fn stop(&mut self, cx: &mut PlaneContext<Self>, place: u32, reply: Sender<u16>) {
        let Some(vring) = self.vrings.get_mut(place) else {
            return;
        };
        if let Some(kick) = vring.kick.take() {
            cx.delete(kick);
        }
        vring.stopping = Some(reply);
        if vring.stalled {
            vring.stalled = false;
            self.stalled.retain(|other| *other != place);
            self.stalled_served.retain(|other| *other != place);
        }
        if vring.active {
            vring.active = false;
            self.active.retain(|other| *other != place);
        }
        // The notify phase ends it, now or after its last completion.
        self.mark_unpublished(place);
    }

    /// Every queue may be in every list: none of them grows on a request's way.
    fn make_room_in_lists(&mut self) {
        let queues = self.vrings.count();
        for list in [
            &mut self.active,
            &mut self.stalled,
            &mut self.stalled_served,
            &mut self.unpublished,
        ] {
            list.reserve(queues.saturating_sub(list.len()));
        }
    }

    /// Something has completed, so there is room again: who waited for it goes first.
    fn resume_stalled(&mut self) {
        let StoragePlane {
            vrings,
            active,
            stalled,
            stalled_served,
            ..
        } = self;
        let others = active.len();
        for place in stalled.drain(..).chain(stalled_served.drain(..)) {
            if let Some(vring) = vrings.get_mut(place) {
                vring.stalled = false;
                if vring.runs() {
                    vring.active = true;
                    active.push(place);
                }
            }
        }
        active.rotate_left(others);
    }

    fn set_kick(
        &mut self,
        cx: &mut PlaneContext<Self>,
        place: u32,
        kick: Option<OwnedFd>,
    ) -> Result<(), StartError> {
        // A queue that is stopping is not kicked any more: its handler is deleted already.
        if let Some(vring) = self.vrings.get_mut(place)
            && vring.stopping.is_none()
        {
            let watched = watch(cx, place, kick)?;
            if let Some(old) = std::mem::replace(&mut vring.kick, watched) {
                cx.delete(old);
            }
        }
        Ok(())
    }

    /// Puts a queue among those that are looked at, if requests may be taken from it.
    fn activate(&mut self, place: u32) {
        if let Some(vring) = self.vrings.get_mut(place)
            && vring.runs()
            && !vring.active
            && !vring.stalled
        {
            vring.active = true;
            vring.disable_kicks();
            self.active.push(place);
        }
    }

    fn mark_unpublished(&mut self, place: u32) {
        if let Some(vring) = self.vrings.get_mut(place)
            && !vring.unpublished
        {
            vring.unpublished = true;
            self.unpublished.push(place);
        }
    }

    /// A queue that was stopped and has nothing in flight is gone.
    fn end_if_drained(&mut self, place: u32) {
        let Some(vring) = self.vrings.get_mut(place) else {
            return;
        };
        if vring.in_flight() > 0 {
            return;
        }
        if let Some(reply) = vring.stopping.take() {
            // Whoever uses the rings next expects to be kicked.
            vring.enable_kicks();
            let base = vring.next_avail();
            // Before the answer: whoever gets it may close the disk and unmap the memory, and finds
            // that nobody else holds them.
            self.vrings.remove(place);
            // A front-end that is gone does not want to know.
            let _ = reply.send(base);
        }
    }

    /// A timer for what no descriptor will announce.
    fn arm_timer(&mut self, cx: &mut PlaneContext<Self>) {
        let retry = || cx.now_ns() + RETRY_NS;
        let deadline = match (self.engines.next_deadline_ns(), self.engines.needs_retry()) {
            (deadline, false) => deadline,
            (deadline, true) => Some(deadline.unwrap_or(u64::MAX).min(retry())),
        };
        if let Some(deadline_ns) = deadline {
            self.arm_timer_for(cx, deadline_ns);
        }
    }

    /// Sees to it that an iteration runs at `deadline_ns` at the latest.
    fn arm_timer_for(&mut self, cx: &mut PlaneContext<Self>, deadline_ns: u64) {
        if let Some((armed_ns, timer)) = self.timer {
            if armed_ns <= deadline_ns {
                return;
            }
            cx.cancel_timer(timer);
        }
        self.timer = Some((deadline_ns, cx.add_timer(deadline_ns, ())));
    }
}

fn watch(
    cx: &mut PlaneContext<StoragePlane>,
    place: u32,
    kick: Option<OwnedFd>,
) -> Result<Option<HandlerId>, StartError> {
    let add = |fd| cx.add(fd, Interest::ReadableEdge, Handler::Kick(place));
    kick.map(add).transpose().map_err(StartError::Kick)
}

impl Plane for StoragePlane {
    type Handler = Handler;
    type Timer = ();
    type Message = Message;

    fn ready(&mut self, _: &mut PlaneContext<Self>, _: HandlerId, handler: Handler, _: Readiness) {
        match handler {
            // The reap phase looks at the ring anyway.
            Handler::Aio => {}
            Handler::Kick(place) => self.activate(place),
        }
    }

    fn expired(&mut self, _: &mut PlaneContext<Self>, (): ()) {
        self.timer = None;
    }

    fn message(&mut self, cx: &mut PlaneContext<Self>, message: Message) {
        // Answers to somebody who no longer listens are dropped.
        match message {
            Message::Start(setup, reply) => {
                let _ = reply.send(self.start(cx, *setup));
            }
            Message::Stop(place, reply) => self.stop(cx, place, reply),
            Message::Enable(place, enabled) => {
                if let Some(vring) = self.vrings.get_mut(place) {
                    vring.enabled = enabled;
                }
                self.activate(place);
            }
            Message::SetMemory(place, memory, reply) => {
                if let Some(vring) = self.vrings.get_mut(place) {
                    vring.set_memory(memory);
                }
                let _ = reply.send(());
            }
            Message::SetCall(place, call) => {
                if let Some(vring) = self.vrings.get_mut(place) {
                    vring.set_call(call);
                }
            }
            Message::SetKick(place, kick, reply) => {
                let _ = reply.send(self.set_kick(cx, place, kick));
                // A kick on the old descriptor may have been lost.
                self.activate(place);
            }
            Message::SetErr(place, err) => {
                if let Some(vring) = self.vrings.get_mut(place) {
                    vring.set_err(err);
                }
            }
            Message::SetAioMaxBatch(max_batch) => self.engines.set_aio_max_batch(max_batch),
        }
    }

    fn reap(&mut self, _: &mut PlaneContext<Self>) {
        self.engines.reap(&mut self.completions);
    }

    fn complete(&mut self, _: &mut PlaneContext<Self>) {
        if self.completions.is_empty() {
            return;
        }
        for Completion { token, result } in self.completions.drain(..) {
            // The halves of a token: the queue's place and the request's slot.
            #[allow(clippy::cast_possible_truncation)]
            let (place, slot) = ((token >> 32) as u32, token as u32);
            let Some(vring) = self.vrings.get_mut(place) else {
                debug_assert!(
                    false,
                    "a queue is kept until its last request has completed"
                );
                continue;
            };
            vring.complete(slot, result);
            if !vring.unpublished {
                vring.unpublished = true;
                self.unpublished.push(place);
            }
        }
        self.resume_stalled();
    }

    fn notify(&mut self, _: &mut PlaneContext<Self>) {
        while let Some(place) = self.unpublished.pop() {
            if let Some(vring) = self.vrings.get_mut(place) {
                vring.unpublished = false;
                vring.publish();
                if vring.stopping.is_some() {
                    self.end_if_drained(place);
                }
            }
        }
    }

    fn admit(&mut self, _: &mut PlaneContext<Self>) {
        self.more = false;
        let StoragePlane {
            engines,
            vrings,
            active,
            stalled,
            stalled_served,
            unpublished,
            chain,
            more,
            ..
        } = self;
        // In order: who waited longest is first in the list, and takes what room there is.
        active.retain(|&place| {
            let Some(vring) = vrings.get_mut(place) else {
                return false;
            };
            if !vring.runs() {
                vring.active = false;
                return false;
            }
            let first = vring.next_avail();
            let admission = vring.admit(chain, engines);
            if vring.take_answered() && !vring.unpublished {
                vring.unpublished = true;
                unpublished.push(place);
            }
            vring.active = match admission {
                Some(Admission::Drained) => true,
                Some(Admission::Budget) => {
                    *more = true;
                    true
                }
                Some(Admission::Stalled) => {
                    vring.stalled = true;
                    if vring.next_avail() == first {
                        stalled.push(place);
                    } else {
                        stalled_served.push(place);
                    }
                    false
                }
                None => false,
            };
            vring.active
        });
    }

    fn submit(&mut self, cx: &mut PlaneContext<Self>) {
        self.engines.flush_batch();
        self.arm_timer(cx);
    }

    fn busy(&self) -> bool {
        self.more || !self.unpublished.is_empty() || self.engines.has_completions()
    }

    fn poll(&mut self) -> bool {
        self.engines.has_completions()
            || self.active.iter().any(|place| {
                self.vrings
                    .get(*place)
                    .is_some_and(|vring| vring.runs() && vring.has_available())
            })
    }

    fn park(&mut self, cx: &mut PlaneContext<Self>) -> bool {
        let (mut found, mut unkicked) = (false, false);
        let vrings = &mut self.vrings;
        self.active.retain(|place| {
            let Some(vring) = vrings.get_mut(*place) else {
                return false;
            };
            if !vring.runs() {
                vring.active = false;
                return false;
            }
            if vring.kick.is_none() {
                unkicked = true;
                found |= vring.has_available();
                return true;
            }
            vring.active = vring.enable_kicks();
            if vring.active {
                vring.disable_kicks();
                found = true;
            }
            vring.active
        });
        if unkicked {
            let look_ns = cx.now_ns() + UNKICKED_LOOK_NS;
            self.arm_timer_for(cx, look_ns);
        }
        found || self.engines.has_completions()
    }

    fn stopped(&mut self, _: &mut PlaneContext<Self>) {
        tracing::debug!("iothread stopped");
    }
}
