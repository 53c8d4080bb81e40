//! The controllers of an iothread, among its queues.
//!
//! A controller has a place as a queue has, where there is no queue: completions for it, and its turn among those that
//! have something to publish, are found by that. So queues do not pay for it. What needs the loop (watching
//! other descriptors, timers) is done when a descriptor of the controller's is ready, and it has one to signal by itself.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::Sender;

use block::{Engines, Node};
use engine::Errno;
use event_loop::{HandlerId, Interest};
use rustix::event::{EventfdFlags, eventfd};

use crate::controller::{Carriers, Controller, ControllerError, SOURCES};

/// The place of a controller's own eventfd among its descriptors.
pub(crate) const TEND: u8 = u8::MAX;

/// Turns of a controller in a row, before others have theirs.
const TURNS: usize = 4;

/// A controller and what is watched for it.
pub(crate) struct Running {
    controller: Box<dyn Controller>,
    nodes: Vec<Arc<Node>>,
    place: u32,
    generation: u64,
    handlers: [Option<HandlerId>; SOURCES],
    /// Signalled when the loop is to look after it.
    tend: OwnedFd,
    pub tend_handler: Option<HandlerId>,
    /// When the loop was told to come back.
    armed_ns: Option<u64>,
    /// In the list of what has something to publish.
    pub due: bool,
    /// No requests are handed over.
    pub disabled: bool,
    /// Who waits until none is in flight; none is handed over until then.
    settling: Vec<Sender<()>>,
    /// Who waits for its end.
    pub stopping: Option<Sender<u32>>,
}

impl Running {
    pub fn new(
        controller: Box<dyn Controller>,
        nodes: Vec<Arc<Node>>,
        place: u32,
    ) -> Result<Self, ControllerError> {
        let tend = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(std::io::Error::from)?;
        Ok(Running {
            generation: controller.generation(),
            controller,
            nodes,
            place,
            handlers: [None; SOURCES],
            tend,
            tend_handler: None,
            armed_ns: None,
            due: false,
            disabled: false,
            settling: Vec::new(),
            stopping: None,
        })
    }

    pub fn nodes(&self) -> &[Arc<Node>] {
        &self.nodes
    }

    pub fn tend_fd(&self) -> std::io::Result<OwnedFd> {
        self.tend.as_fd().try_clone_to_owned()
    }

    pub fn disconnect(&mut self) {
        self.controller.disconnect();
        self.wants_tending();
    }

    /// Nobody uses it.
    pub fn is_idle(&mut self) -> bool {
        !self.controller.is_connected() && self.controller.in_flight() == 0
    }

    /// One of its descriptors is ready.
    pub fn ready(&mut self, source: u8, now_ns: u64) {
        if source != TEND {
            self.controller.ready(source.into(), now_ns);
        }
    }

    /// The loop is to look after it.
    pub fn wants_tending(&self) {
        // A full counter is a signal already.
        let _ = rustix::io::write(&self.tend, &1u64.to_ne_bytes());
    }

    /// A request has ended. True: it is to be put among what has something to publish.
    pub fn completed(&mut self, slot: u32, result: Result<(), Errno>) -> bool {
        self.controller.completed(slot, result);
        if self.stopping.is_some() {
            self.wants_tending();
        }
        !std::mem::replace(&mut self.due, true)
    }

    /// Its turn. False: requests wait for room.
    pub fn run(&mut self, engines: &mut Engines, now_ns: u64) -> bool {
        let mut more = true;
        for _ in 0..TURNS {
            more = more && self.controller.run(now_ns);
        }
        if self.controller.in_flight() == 0 {
            for reply in self.settling.drain(..) {
                // Whoever asked may have stopped waiting.
                let _ = reply.send(());
            }
        }
        let mut served = true;
        if !self.disabled && self.settling.is_empty() && self.stopping.is_none() {
            served = self.controller.submit(&mut Carriers {
                engines,
                nodes: &self.nodes,
                token_base: u64::from(self.place) << 32,
            });
        }
        let deadline_ns = self.controller.deadline_ns();
        if more || self.watches_change() || deadline_ns.is_some_and(|at| self.is_earlier(at)) {
            self.wants_tending();
        }
        served
    }

    fn is_earlier(&self, deadline_ns: u64) -> bool {
        self.armed_ns.is_none_or(|armed_ns| deadline_ns < armed_ns)
    }

    fn watches_change(&self) -> bool {
        let wanted = self.controller.sources();
        let other = |(watched, wanted): (&Option<HandlerId>, &Option<_>)| {
            watched.is_some() != wanted.is_some()
        };
        self.generation != self.controller.generation()
            || self.handlers.iter().zip(&wanted).any(other)
    }

    /// Watches what is to be watched now: `add` and `delete` are the loop's.
    pub fn watch(
        &mut self,
        mut add: impl FnMut(OwnedFd, Interest, u8) -> std::io::Result<HandlerId>,
        mut delete: impl FnMut(HandlerId),
    ) -> std::io::Result<()> {
        let changed = self.generation != self.controller.generation();
        self.generation = self.controller.generation();
        let wanted = self.controller.sources();
        for (source, (watched, wanted)) in (0u8..).zip(self.handlers.iter_mut().zip(wanted)) {
            if (changed || wanted.is_none())
                && let Some(handler) = watched.take()
            {
                delete(handler);
            }
            if let (None, Some((fd, interest))) = (&watched, wanted) {
                *watched = Some(add(fd.try_clone_to_owned()?, interest, source)?);
            }
        }
        Ok(())
    }

    /// When the loop is to come back, if that is to be told anew.
    pub fn deadline_ns(&mut self) -> Option<u64> {
        self.armed_ns = self.controller.deadline_ns();
        self.armed_ns
    }

    /// The answer comes when nothing is in flight.
    pub fn settle(&mut self, reply: Sender<()>) {
        self.settling.push(reply);
    }

    /// Another opening of a disk takes the place of the one that has its name; gives the old one. Nothing is in flight.
    pub fn set_node(&mut self, node: &Arc<Node>) -> Option<Arc<Node>> {
        let same = |old: &&mut Arc<Node>| old.name() == node.name();
        let old = self.nodes.iter_mut().find(same)?;
        Some(std::mem::replace(old, node.clone()))
    }

    pub fn stop(&mut self, reply: Sender<u32>) {
        self.controller.stop();
        self.stopping = Some(reply);
    }

    /// It was stopped, and nothing is in flight: who is to hear of that.
    pub fn ended(&mut self) -> Option<Sender<u32>> {
        if self.stopping.is_none() || self.controller.in_flight() > 0 {
            return None;
        }
        for reply in self.settling.drain(..) {
            let _ = reply.send(());
        }
        self.stopping.take()
    }

    /// What is watched for it.
    pub fn handlers(&self) -> impl Iterator<Item = HandlerId> {
        self.handlers
            .iter()
            .copied()
            .flatten()
            .chain(self.tend_handler)
    }
}

/// All of an iothread's, by place.
#[derive(Default)]
pub(crate) struct Controllers {
    places: Vec<Option<Box<Running>>>,
}

impl Controllers {
    pub fn put(&mut self, running: Running) {
        let place = running.place as usize;
        if self.places.len() <= place {
            self.places.resize_with(place + 1, || None);
        }
        self.places[place] = Some(Box::new(running));
    }

    pub fn get_mut(&mut self, place: u32) -> Option<&mut Running> {
        self.places.get_mut(place as usize)?.as_deref_mut()
    }

    pub fn take(&mut self, place: u32) -> Option<Box<Running>> {
        self.places.get_mut(place as usize)?.take()
    }

    /// Their places.
    pub fn places(&self) -> Vec<u32> {
        let running = self.places.iter().flatten();
        running.map(|running| running.place).collect()
    }
}

/// The clock of the loop's timers.
pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let (seconds, nanoseconds) = (now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs());
    seconds * 1_000_000_000 + nanoseconds
}
