//! A socket device on its iothread, with its disks, watched descriptors, turns and polling, and the table of all of them.
//!
//! A socket device has an index of its own among those of queues: completions for it, and its turn in the notify phase, are found by
//! that, so queues do not pay for it. Changes of watched descriptors and timers are made at the end of the iteration, for the socket
//! devices in a list.
//!
//! A socket device is polled as a queue is, with a poll predictor. But a poll of its socket is a system call, where that of a ring is
//! a load: so it is polled only while it was active lately, one socket device at a time, and seldom beside rings.

use std::os::fd::OwnedFd;
use std::sync::mpsc::Sender;

use block::{AttachedDisk, IoContext, Node, SourceIo};
use engine::Completion;

use crate::awaited_side::awaited_side;
use crate::event_loop::{HandlerId, IdleEnd, Interest, PollPredictor, PollSettings};
use crate::socket_device::{MAX_WATCHED_DESCRIPTORS, SocketDevice};
use crate::socket_in_flight::{CountingDiskIo, InFlightSocketRequests};

/// Limit of turns of a socket device in a row.
const MAX_TURNS: usize = 4;

/// A socket device, its disks and its watched descriptors.
pub(crate) struct RunningSocketDevice {
    device: Box<dyn SocketDevice>,
    disks: Vec<AttachedDisk>,
    source_index: u32,
    watched_descriptors_version: u64,
    handlers: [Option<HandlerId>; MAX_WATCHED_DESCRIPTORS],
    /// Deadline that the loop's timer was armed for.
    armed_ns: Option<u64>,
    /// Whether its last turn has left work.
    has_more: bool,
    predictor: PollPredictor,
    /// Counts messages of its front-end and completions of its disks.
    progress: u64,
    /// Whether its socket is polled.
    is_polled: bool,
    /// Whether requests may not be submitted.
    pub disabled: bool,
    in_flight: InFlightSocketRequests,
    /// To be notified when it has ended.
    pub stopping: Option<Sender<u32>>,
}

impl RunningSocketDevice {
    /// A socket device that is not watched yet, with its disks and its index.
    pub fn new(device: Box<dyn SocketDevice>, disks: Vec<AttachedDisk>, source_index: u32) -> Self {
        RunningSocketDevice {
            watched_descriptors_version: device.watched_descriptors_version(),
            device,
            disks,
            source_index,
            handlers: [None; MAX_WATCHED_DESCRIPTORS],
            armed_ns: None,
            has_more: false,
            predictor: PollPredictor::default(),
            progress: 0,
            is_polled: false,
            disabled: false,
            in_flight: InFlightSocketRequests::default(),
            stopping: None,
        }
    }

    pub fn source_index(&self) -> u32 {
        self.source_index
    }

    /// Its disks, when it ends.
    pub fn into_disks(self) -> Vec<AttachedDisk> {
        self.disks
    }

    pub fn disconnect(&mut self) {
        self.device.disconnect();
    }

    /// Whether no front-end is connected and nothing is in flight.
    pub fn is_disconnected_and_drained(&mut self) -> bool {
        !self.device.is_connected() && self.device.in_flight_count() == 0
    }

    /// Accepts no front-end any more, if it is idle; false if it is not.
    pub fn pause_accepting_if_idle(&mut self) -> bool {
        let idle = self.is_disconnected_and_drained();
        if idle {
            self.device.set_accepting_paused(true);
        }
        idle
    }

    /// Accepts front-ends again.
    pub fn resume_accepting(&mut self) {
        self.device.set_accepting_paused(false);
    }

    /// Handles that one of its descriptors is ready.
    pub fn on_ready(&mut self, descriptor: u8, now_ns: u64) {
        self.progress += 1;
        self.device.on_ready(descriptor.into(), now_ns);
    }

    /// Completes requests. Its turn follows.
    pub fn complete(&mut self, done: &[Completion]) {
        self.progress += 1;
        self.in_flight.count_completed(done);
        self.device.complete(done);
    }

    /// Polls its socket. True: its turn follows.
    pub fn poll_socket(&mut self) -> bool {
        let found = self.device.poll_socket();
        self.progress += u64::from(found);
        found
    }

    /// The time until which polling for its next message or completion pays.
    pub fn predict_poll_deadline_ns(&mut self, settings: &PollSettings, now_ns: u64) -> u64 {
        let in_flight = u32::try_from(self.device.in_flight_count()).unwrap_or(u32::MAX);
        let awaited = awaited_side(in_flight, &self.disks);
        let until_ns = match self.device.is_connected() {
            true => {
                self.predictor
                    .predict_poll_deadline_ns(settings, now_ns, self.progress, awaited)
            }
            false => 0,
        };
        self.is_polled = until_ns > now_ns;
        until_ns
    }

    /// Learns from the idle time after [`RunningSocketDevice::predict_poll_deadline_ns`], which has ended.
    pub fn learn_from_idle(&mut self, settings: &PollSettings, idle: IdleEnd) {
        self.predictor
            .learn_from_idle(settings, idle, self.progress);
    }

    /// Runs one turn, and more until this time, and submits the requests of each. False: requests wait for room.
    pub fn run_turns_and_submit(&mut self, io: &mut IoContext, until_ns: u64) -> bool {
        let mut has_room = true;
        let mut now_ns = block::clock_ns();
        for _ in 0..MAX_TURNS {
            self.has_more = self.device.run_turn(now_ns);
            self.in_flight
                .let_waited_for_requests_bypass_gates(io, self.source_index);
            self.in_flight.end_older_generations_if_done(io);
            has_room = self.submit_unless_disabled(io);
            now_ns = block::clock_ns();
            if !self.has_more || now_ns >= until_ns {
                break;
            }
        }
        has_room
    }

    /// Submits the requests of one turn. False: requests wait for room.
    fn submit_unless_disabled(&mut self, io: &mut IoContext) -> bool {
        if self.disabled || self.stopping.is_some() {
            return true;
        }
        self.device.submit(&mut CountingDiskIo {
            io: SourceIo {
                io,
                disks: &self.disks,
                source_index: self.source_index,
                in_flight: self.in_flight.count(),
            },
            in_flight: &mut self.in_flight,
        })
    }

    /// Whether its last turn has left work.
    pub fn has_more_work(&self) -> bool {
        self.has_more
    }

    /// Whether its watches or its timer have to be updated after a turn, or it is to end.
    pub fn needs_update_or_end(&mut self) -> bool {
        let deadline_ns = self.device.deadline_ns();
        self.has_more
            || self.stopping.is_some()
            || self.are_watches_outdated()
            || deadline_ns.is_some_and(|at| self.is_earlier_than_armed_deadline(at))
    }

    /// Whether this deadline is before the one that the timer was armed for.
    fn is_earlier_than_armed_deadline(&self, deadline_ns: u64) -> bool {
        self.armed_ns.is_none_or(|armed_ns| deadline_ns < armed_ns)
    }

    /// Whether the device has other descriptors to watch than those that are watched.
    fn are_watches_outdated(&self) -> bool {
        let wanted = self.device.watched_descriptors();
        let other = |(watched, wanted): (&Option<HandlerId>, &Option<_>)| {
            watched.is_some() != wanted.is_some()
        };
        self.watched_descriptors_version != self.device.watched_descriptors_version()
            || self.handlers.iter().zip(&wanted).any(other)
    }

    /// Updates its watched descriptors, by `add` and `delete` of the loop.
    pub fn apply_watches(
        &mut self,
        mut add: impl FnMut(OwnedFd, Interest, u8) -> std::io::Result<HandlerId>,
        mut delete: impl FnMut(HandlerId),
    ) -> std::io::Result<()> {
        let changed = self.watched_descriptors_version != self.device.watched_descriptors_version();
        self.watched_descriptors_version = self.device.watched_descriptors_version();
        let wanted = self.device.watched_descriptors();
        for (descriptor, (watched, wanted)) in (0u8..).zip(self.handlers.iter_mut().zip(wanted)) {
            if (changed || wanted.is_none())
                && let Some(handler) = watched.take()
            {
                delete(handler);
            }
            if let (None, Some((fd, interest))) = (&watched, wanted) {
                *watched = Some(add(fd.try_clone_to_owned()?, interest, descriptor)?);
            }
        }
        Ok(())
    }

    /// Deadline that the loop's timer was armed for.
    pub fn armed_ns(&self) -> Option<u64> {
        self.armed_ns
    }

    /// Forgets that the timer was armed, since it has expired: it is armed again after the next turn.
    pub fn forget_armed_deadline(&mut self) {
        self.armed_ns = None;
    }

    /// Deadline of its next turn, for the loop's timer.
    pub fn record_and_get_deadline_ns(&mut self) -> Option<u64> {
        self.armed_ns = self.device.deadline_ns();
        self.armed_ns
    }

    /// Notifies `reply` when all requests submitted so far are done.
    pub fn reply_when_current_requests_end(&mut self, reply: Sender<()>) {
        self.in_flight.reply_when_current_requests_end(reply);
    }

    /// Replaces the disks of this node, or of an earlier one of its name; the only disk of a device in any case. Requests in
    /// flight use the old ones until they are done.
    pub fn replace_disks_of_node(&mut self, node: &Node, mut attach: impl FnMut() -> AttachedDisk) {
        let is_only = self.disks.len() == 1;
        for disk in &mut self.disks {
            if is_only || disk.node().name() == node.name() {
                self.in_flight
                    .retire_disk(std::mem::replace(disk, attach()));
            }
        }
    }

    /// Begins to stop it: `reply` is notified when it has ended.
    pub fn begin_stop(&mut self, reply: Sender<u32>) {
        self.device.disconnect_and_stop();
        self.stopping = Some(reply);
    }

    /// The sender to notify of its end, if it was stopped and nothing is in flight.
    pub fn take_stop_reply_if_drained(&mut self) -> Option<Sender<u32>> {
        if self.stopping.is_none() || self.device.in_flight_count() > 0 {
            return None;
        }
        self.stopping.take()
    }

    /// Its watched descriptors.
    pub fn watch_handler_ids(&self) -> impl Iterator<Item = HandlerId> {
        self.handlers.iter().copied().flatten()
    }
}

/// All socket devices of an iothread, by index.
#[derive(Default)]
pub(crate) struct SocketDevices {
    devices: Vec<Option<Box<RunningSocketDevice>>>,
    /// The indices in use.
    used_indices: Vec<u32>,
    /// The one whose socket was polled last, as a position in `used_indices`.
    last_polled: usize,
    /// Indices of those whose watches or timers have to be updated.
    indices_to_update: Vec<u32>,
}

impl SocketDevices {
    /// Adds a socket device, under its index.
    pub fn add(&mut self, running: RunningSocketDevice) {
        let source_index = running.source_index as usize;
        if self.devices.len() <= source_index {
            self.devices.resize_with(source_index + 1, || None);
        }
        self.used_indices.push(running.source_index);
        self.indices_to_update.reserve(self.used_indices.len());
        self.devices[source_index] = Some(Box::new(running));
    }

    /// Whether there are no socket devices.
    pub fn is_empty(&self) -> bool {
        self.used_indices.is_empty()
    }

    /// The next one whose socket is polled, in turn.
    pub fn next_to_poll(&mut self) -> Option<&mut RunningSocketDevice> {
        for _ in 0..self.used_indices.len() {
            self.last_polled = (self.last_polled + 1) % self.used_indices.len();
            let source_index = self.used_indices[self.last_polled];
            if self
                .get_mut(source_index)
                .is_some_and(|running| running.is_polled)
            {
                return self.get_mut(source_index);
            }
        }
        None
    }

    /// Has the watches and the timer of this one updated before the iteration ends.
    pub fn schedule_update(&mut self, source_index: u32) {
        if !self.indices_to_update.contains(&source_index) {
            self.indices_to_update.push(source_index);
        }
    }

    /// Whether any is to be updated.
    #[inline]
    pub fn has_scheduled_updates(&self) -> bool {
        !self.indices_to_update.is_empty()
    }

    /// The next one to update.
    pub fn pop_scheduled_update(&mut self) -> Option<u32> {
        self.indices_to_update.pop()
    }

    pub fn get_mut(&mut self, source_index: u32) -> Option<&mut RunningSocketDevice> {
        self.devices.get_mut(source_index as usize)?.as_deref_mut()
    }

    /// Removes a socket device; the caller frees its index.
    pub fn remove(&mut self, source_index: u32) -> Option<Box<RunningSocketDevice>> {
        let running = self.devices.get_mut(source_index as usize)?.take()?;
        self.used_indices.retain(|other| *other != source_index);
        Some(running)
    }

    /// All socket devices.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut RunningSocketDevice> {
        self.devices.iter_mut().flatten().map(Box::as_mut)
    }
}
