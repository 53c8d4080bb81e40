//! The socket devices of an iothread, among its queues.
//!
//! A socket device has a place as a queue has, where there is no queue: completions for it, and its turn among those that
//! have something to publish, are found by that. So queues do not pay for it. What needs the loop (watching
//! other descriptors, timers) is done at the end of the iteration: those that want it are in a list.
//!
//! A socket device is polled for as a queue is, as its pace says. But a look at its socket is a system call, where one at a ring is
//! a load: so it is looked at only while it was active lately, one socket device at a time, and seldom beside rings.

use std::os::fd::OwnedFd;
use std::sync::mpsc::Sender;

use block::{AttachedDisk, IoContext, Node, SourceIo};
use engine::Completion;

use crate::event_loop::{HandlerId, Idle, Interest, PollPredictor, PollSettings, Turn};
use crate::in_flight::{InFlightRequests, TrackedIo};
use crate::socket_device::{SOURCES, SocketDevice};

/// Turns of a socket device in a row, before others have theirs.
const TURNS: usize = 4;

/// A socket device and what is watched for it.
pub(crate) struct RunningSocketDevice {
    device: Box<dyn SocketDevice>,
    disks: Vec<AttachedDisk>,
    place: u32,
    generation: u64,
    handlers: [Option<HandlerId>; SOURCES],
    /// When the loop's timer brings its turn.
    armed_ns: Option<u64>,
    /// Its last turn has left something to do.
    more: bool,
    predictor: PollPredictor,
    /// Counts what its front-end and its disks have said.
    progress: u64,
    /// It is polled for: its socket is looked at.
    polled: bool,
    /// No requests are submitted.
    pub disabled: bool,
    in_flight: InFlightRequests,
    /// Waits for its end.
    pub stopping: Option<Sender<u32>>,
}

impl RunningSocketDevice {
    pub fn new(device: Box<dyn SocketDevice>, disks: Vec<AttachedDisk>, place: u32) -> Self {
        RunningSocketDevice {
            generation: device.generation(),
            device,
            disks,
            place,
            handlers: [None; SOURCES],
            armed_ns: None,
            more: false,
            predictor: PollPredictor::default(),
            progress: 0,
            polled: false,
            disabled: false,
            in_flight: InFlightRequests::default(),
            stopping: None,
        }
    }

    pub fn place(&self) -> u32 {
        self.place
    }

    /// Its disks, when it ends.
    pub fn into_disks(self) -> Vec<AttachedDisk> {
        self.disks
    }

    pub fn disconnect(&mut self) {
        self.device.disconnect();
    }

    /// No front-end is connected, and nothing is in flight.
    pub fn is_idle(&mut self) -> bool {
        !self.device.is_connected() && self.device.in_flight() == 0
    }

    /// Takes no front-end any more, if it is idle; false if it is not.
    pub fn park(&mut self) -> bool {
        let idle = self.is_idle();
        if idle {
            self.device.park(true);
        }
        idle
    }

    /// Takes front-ends again.
    pub fn unpark(&mut self) {
        self.device.park(false);
    }

    /// One of its descriptors is ready.
    pub fn ready(&mut self, source: u8, now_ns: u64) {
        self.progress += 1;
        self.device.ready(source.into(), now_ns);
    }

    /// Requests are done. Its turn comes next.
    pub fn complete(&mut self, done: &[Completion]) {
        self.progress += 1;
        self.in_flight.complete(done);
        self.device.complete(done);
    }

    /// Looks at its socket. True: its turn comes next.
    pub fn poll_socket(&mut self) -> bool {
        let found = self.device.poll_socket();
        self.progress += u64::from(found);
        found
    }

    /// As for a queue.
    pub fn poll_until(&mut self, settings: &PollSettings, now_ns: u64) -> u64 {
        let turn = match u32::try_from(self.device.in_flight()) {
            Ok(0) => Turn::Guest,
            in_flight => Turn::Disk {
                in_flight: in_flight.unwrap_or(u32::MAX),
            },
        };
        let until_ns = match self.device.is_connected() {
            true => self
                .predictor
                .poll_until(settings, now_ns, self.progress, turn),
            false => 0,
        };
        self.polled = until_ns > now_ns;
        until_ns
    }

    /// As for a queue.
    pub fn learn(&mut self, settings: &PollSettings, idle: Idle) {
        self.predictor.learn(settings, idle, self.progress);
    }

    /// Its turn. False: requests wait for room.
    pub fn run(&mut self, io: &mut IoContext, now_ns: u64) -> bool {
        let mut has_room = true;
        for _ in 0..TURNS {
            self.more = self.device.run(now_ns);
            has_room = self.submit(io);
            if !self.more {
                break;
            }
        }
        has_room
    }

    /// Submits what one turn has brought, before the next one brings more. False: requests wait for room.
    fn submit(&mut self, io: &mut IoContext) -> bool {
        self.in_flight.end_older(io);
        if self.disabled || self.stopping.is_some() {
            return true;
        }
        self.device.submit(&mut TrackedIo {
            io: SourceIo {
                io,
                disks: &self.disks,
                place: self.place,
            },
            in_flight: &mut self.in_flight,
        })
    }

    /// Its last turn has left something to do.
    pub fn has_more(&self) -> bool {
        self.more
    }

    /// After a turn: the loop is to look after it.
    pub fn wants_loop(&mut self) -> bool {
        let deadline_ns = self.device.deadline_ns();
        self.more
            || self.stopping.is_some()
            || self.watches_change()
            || deadline_ns.is_some_and(|at| self.is_earlier(at))
    }

    fn is_earlier(&self, deadline_ns: u64) -> bool {
        self.armed_ns.is_none_or(|armed_ns| deadline_ns < armed_ns)
    }

    fn watches_change(&self) -> bool {
        let wanted = self.device.sources();
        let other = |(watched, wanted): (&Option<HandlerId>, &Option<_>)| {
            watched.is_some() != wanted.is_some()
        };
        self.generation != self.device.generation() || self.handlers.iter().zip(&wanted).any(other)
    }

    /// Watches what is to be watched now: `add` and `delete` are the loop's.
    pub fn watch(
        &mut self,
        mut add: impl FnMut(OwnedFd, Interest, u8) -> std::io::Result<HandlerId>,
        mut delete: impl FnMut(HandlerId),
    ) -> std::io::Result<()> {
        let changed = self.generation != self.device.generation();
        self.generation = self.device.generation();
        let wanted = self.device.sources();
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

    /// When its turn is to come at the latest, for the loop's timer.
    pub fn deadline_ns(&mut self) -> Option<u64> {
        self.armed_ns = self.device.deadline_ns();
        self.armed_ns
    }

    /// The answer comes when all is done that was submitted so far.
    pub fn settle(&mut self, reply: Sender<()>) {
        self.in_flight.settle(reply);
    }

    /// Disks that are this node, or another opening of it, are replaced. Requests in flight use the old ones to their ends.
    pub fn set_node(&mut self, node: &Node, mut attach: impl FnMut() -> AttachedDisk) {
        for disk in &mut self.disks {
            if disk.node().name() == node.name() {
                self.in_flight.retire(std::mem::replace(disk, attach()));
            }
        }
    }

    pub fn stop(&mut self, reply: Sender<u32>) {
        self.device.stop();
        self.stopping = Some(reply);
    }

    /// It was stopped, and nothing is in flight: what waits for that.
    pub fn ended(&mut self) -> Option<Sender<u32>> {
        if self.stopping.is_none() || self.device.in_flight() > 0 {
            return None;
        }
        self.stopping.take()
    }

    /// What is watched for it.
    pub fn handlers(&self) -> impl Iterator<Item = HandlerId> {
        self.handlers.iter().copied().flatten()
    }
}

/// All of an iothread's, by place.
#[derive(Default)]
pub(crate) struct SocketDevices {
    places: Vec<Option<Box<RunningSocketDevice>>>,
    /// The places of those that there are.
    used: Vec<u32>,
    /// Which of these was looked at last.
    looked_at: usize,
    /// Those that the loop is to look after.
    wanting: Vec<u32>,
}

impl SocketDevices {
    pub fn put(&mut self, running: RunningSocketDevice) {
        let place = running.place as usize;
        if self.places.len() <= place {
            self.places.resize_with(place + 1, || None);
        }
        self.used.push(running.place);
        self.wanting.reserve(self.used.len());
        self.places[place] = Some(Box::new(running));
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.used.is_empty()
    }

    /// The next one that is polled for, in turn.
    pub fn next_polled(&mut self) -> Option<&mut RunningSocketDevice> {
        for _ in 0..self.used.len() {
            self.looked_at = (self.looked_at + 1) % self.used.len();
            let place = self.used[self.looked_at];
            if self.get_mut(place).is_some_and(|running| running.polled) {
                return self.get_mut(place);
            }
        }
        None
    }

    /// The loop is to look after this one before the iteration ends.
    pub fn want_loop(&mut self, place: u32) {
        if !self.wanting.contains(&place) {
            self.wanting.push(place);
        }
    }

    /// Whether the loop is to look after any.
    #[inline]
    pub fn any_wants_loop(&self) -> bool {
        !self.wanting.is_empty()
    }

    /// The next one that the loop is to look after.
    pub fn next_wanting(&mut self) -> Option<u32> {
        self.wanting.pop()
    }

    pub fn get_mut(&mut self, place: u32) -> Option<&mut RunningSocketDevice> {
        self.places.get_mut(place as usize)?.as_deref_mut()
    }

    pub fn take(&mut self, place: u32) -> Option<Box<RunningSocketDevice>> {
        let running = self.places.get_mut(place as usize)?.take()?;
        self.used.retain(|other| *other != place);
        Some(running)
    }

    /// All of them.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut RunningSocketDevice> {
        self.places.iter_mut().flatten().map(Box::as_mut)
    }

    /// Their places.
    pub fn places(&self) -> Vec<u32> {
        self.used.clone()
    }
}

/// The clock of the loop's timers.
pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let (seconds, nanoseconds) = (now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs());
    seconds * 1_000_000_000 + nanoseconds
}
