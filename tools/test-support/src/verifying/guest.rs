//! A guest and its front-end, which outlive their server: memory, rings, the in-flight region.

use std::os::fd::{AsFd, OwnedFd};

use virtqueue::RingFeatures;
use virtqueue::testing::TestMemory;

use super::blocks::{BLOCK, Blocks, bytes};
use super::device::{Device, Op, Outcome, RequestMemory};
use super::random::Random;
use crate::deadline::Deadline;
use crate::events::{take, wait_for_any};
use crate::vhost_user::queue;
use crate::vhost_user::ring::Ring;
use crate::vhost_user::wire::*;

/// Entries of a split queue. The in-flight region has as many.
pub const ENTRIES: u16 = 64;
/// Descriptors of a packed one: laps end in the middle of chains.
const PACKED_ENTRIES: u16 = 61;
/// Where indices of a split queue begin: they pass their end soon.
const BASE: u16 = 65_000;
/// Requests that a queue has room for.
pub const SLOTS: usize = 16;
/// `VIRTIO_F_RING_PACKED`
const RING_PACKED: u64 = 1 << 34;
/// `MQ`, `REPLY_ACK`, `INFLIGHT_SHMFD`
const PROTOCOL_FEATURES: u64 = 1 | 1 << 3 | 1 << 12;

/// A request that is not answered yet.
#[derive(Clone, Copy, Debug)]
struct PendingRequest {
    name: u16,
    op: Op,
    block: usize,
    /// What it writes, or when a read was asked for.
    value: u64,
}

#[derive(Debug)]
struct Queue {
    virtqueue: queue::Queue,
    rooms: [RequestMemory; SLOTS],
    asked: [Option<PendingRequest>; SLOTS],
    /// Where a server said that it has stopped.
    stopped_at: Option<u32>,
}

/// As `GET_INFLIGHT_FD` answered.
#[derive(Debug)]
struct InflightFile {
    payload: Vec<u8>,
    file: OwnedFd,
}

/// A guest that knows what each block of its disk may hold, and its front-end.
#[derive(Debug)]
pub struct VerifyingGuest {
    device: Device,
    packed: bool,
    memory: TestMemory,
    queues: Vec<Queue>,
    inflight_file: Option<InflightFile>,
    /// It asks the server for an in-flight region.
    pub uses_inflight_region: bool,
    /// The size of a ring as it says it when it asks for the region, and when it passes it on; the rings may have more entries.
    pub named_ring_size: u16,
    /// `GET_VRING_BASE_INFLIGHT`: a queue that stops leaves what waits in the region.
    pub suspends_with_inflight_region: bool,
    /// Its queues are started, and not enabled.
    pub stays_disabled: bool,
    /// What its disk may hold.
    pub blocks: Blocks,
    /// Requests that were answered so far.
    pub answers: u64,
    /// Writes among them.
    pub writes: u64,
}

impl VerifyingGuest {
    /// With so many queues for requests, and a disk of so many blocks.
    #[must_use]
    pub fn new(device: Device, packed: bool, queues: usize, blocks: u64) -> Self {
        let memory = TestMemory::new(4 << 20);
        let queue = |_| Queue::new(&memory, packed);
        VerifyingGuest {
            device,
            packed,
            queues: (0..device.first_queue() + queues).map(queue).collect(),
            memory,
            inflight_file: None,
            uses_inflight_region: true,
            named_ring_size: ENTRIES,
            suspends_with_inflight_region: false,
            stays_disabled: false,
            blocks: Blocks::new(blocks),
            answers: 0,
            writes: 0,
        }
    }

    /// Messages until all queues run.
    #[must_use]
    pub fn messages(&self) -> usize {
        5 + self.queues.len()
    }

    /// Connects to a server that does not know this guest, and starts its queues. `before_each` message something may happen.
    ///
    /// # Errors
    /// [`Disconnected`].
    pub fn connect_and_start(
        &mut self,
        wire: &Wire,
        mut before_each: impl FnMut(),
    ) -> Result<(), Disconnected> {
        before_each();
        let suspends = u64::from(self.suspends_with_inflight_region) << 20;
        wire.begin_session(PROTOCOL_FEATURES | suspends)?;
        before_each();
        let packed = if self.packed { RING_PACKED } else { 0 };
        let features = self.device.features() | packed;
        wire.must(SET_FEATURES, &u64s(&[features]), &[])?;
        if self.uses_inflight_region && self.inflight_file.is_none() {
            let queues = u16::try_from(self.queues.len()).unwrap();
            let named = self.named_ring_size.to_ne_bytes();
            let numbers = [queues.to_ne_bytes(), named, [0; 2], [0; 2]];
            let wanted = [u64s(&[0, 0]), numbers.concat()].concat();
            let (mut payload, file) = wire.query_file(GET_INFLIGHT_FD, &wanted)?;
            // As QEMU does: of the answer it keeps the file and its size.
            payload[18..20].copy_from_slice(&named);
            self.inflight_file = Some(InflightFile { payload, file });
        }
        if let Some(inflight) = &self.inflight_file {
            before_each();
            wire.must(SET_INFLIGHT_FD, &inflight.payload, &[inflight.file.as_fd()])?;
        }
        before_each();
        wire.share_memory(&self.memory)?;
        for index in 0..self.queues.len() {
            before_each();
            self.start(wire, index)?;
        }
        Ok(())
    }

    /// Starts a queue; what was added to it is served without a kick.
    ///
    /// # Errors
    /// [`Disconnected`].
    pub fn start(&mut self, wire: &Wire, index: usize) -> Result<(), Disconnected> {
        let Queue {
            virtqueue,
            stopped_at,
            ..
        } = &mut self.queues[index];
        let base = match &virtqueue.ring {
            Ring::Split { .. } => stopped_at.take(),
            // As a server said last, be that long ago.
            Ring::Packed(_) => *stopped_at,
        };
        let base = base.unwrap_or(virtqueue.ring.base());
        let index = u32::try_from(index).unwrap();
        virtqueue.set_up(wire, &self.memory, index, base)?;
        virtqueue.start(wire, index)?;
        if self.stays_disabled {
            return Ok(());
        }
        wire.enable(index, true)
    }

    /// Stops a queue. All that it has taken is answered then.
    ///
    /// # Errors
    /// [`Disconnected`].
    pub fn stop(&mut self, wire: &Wire, index: usize) -> Result<(), Disconnected> {
        let base = wire.stop(u32::try_from(index).unwrap())?;
        self.queues[index].stopped_at = Some(base);
        Ok(())
    }

    /// The queues that take requests.
    #[must_use]
    pub fn request_queues(&self) -> std::ops::Range<usize> {
        self.device.first_queue()..self.queues.len()
    }

    /// Makes requests of all kinds available, as many as there is room for, or fewer.
    pub fn ask_some(&mut self, random: &mut Random) {
        for index in self.request_queues() {
            let mut some = false;
            for slot in 0..SLOTS {
                if self.queues[index].asked[slot].is_some() || random.one_in(4) {
                    continue;
                }
                let op = match random.below(16) {
                    0 => Op::Flush,
                    1..7 => Op::Read,
                    _ => Op::Write,
                };
                let block = self.blocks.any(random);
                self.add(index, slot, op, block);
                some = true;
            }
            if some {
                self.queues[index].virtqueue.submit();
            }
        }
    }

    /// Asks one request of a queue that has room for it; returns what it writes.
    pub fn ask(&mut self, index: usize, op: Op, block: usize) -> u64 {
        let free = self.queues[index].asked.iter().position(Option::is_none);
        let value = self.add(index, free.expect("room"), op, block);
        self.queues[index].virtqueue.submit();
        value
    }

    fn add(&mut self, index: usize, slot: usize, op: Op, block: usize) -> u64 {
        let value = match op {
            Op::Read => self.blocks.read_asked(block),
            Op::Write => self.blocks.write_asked(block),
            Op::Flush => 0,
        };
        let room = self.queues[index].rooms[slot];
        match op {
            Op::Write => self.memory.write(room.data, &bytes(block, value)),
            _ => self.memory.fill(room.data, 8, 0xee),
        }
        self.add_to_ring(index, slot, op, block, value);
        value
    }

    fn add_to_ring(&mut self, index: usize, slot: usize, op: Op, block: usize, value: u64) {
        let queue = &mut self.queues[index];
        let buffers = self
            .device
            .request(&self.memory, queue.rooms[slot], op, block);
        let name = queue.virtqueue.ring.add(&buffers);
        queue.asked[slot] = Some(PendingRequest {
            name,
            op,
            block,
            value,
        });
    }

    /// Takes used entries, and checks the answers. True: there were some.
    pub fn poll_used(&mut self) -> bool {
        let mut some = false;
        for index in self.request_queues() {
            // Names are used again, so not before all of them are known.
            let mut again = Vec::new();
            for name in self.queues[index].virtqueue.ring.take_used() {
                some = true;
                let queue = &mut self.queues[index];
                let is_it =
                    |asked: &Option<PendingRequest>| asked.is_some_and(|asked| asked.name == name);
                let slot = queue
                    .asked
                    .iter()
                    .position(is_it)
                    .expect("it was asked for");
                let asked = queue.asked[slot].take().unwrap();
                let room = queue.rooms[slot];
                let PendingRequest {
                    op, block, value, ..
                } = asked;
                if self.device.outcome(&self.memory, room) == Outcome::Again {
                    again.push((slot, asked));
                    continue;
                }
                self.answers += 1;
                match op {
                    Op::Read => {
                        let found = self.memory.read(room.data, BLOCK);
                        self.blocks.read_answered(block, value, &found);
                    }
                    Op::Write => {
                        self.writes += 1;
                        self.blocks.write_answered(block, value);
                    }
                    Op::Flush => {}
                }
            }
            for (slot, asked) in again {
                let PendingRequest {
                    op, block, value, ..
                } = asked;
                self.add_to_ring(index, slot, op, block, value);
                self.queues[index].virtqueue.submit();
            }
        }
        some
    }

    /// Waits until no more than these are left to be answered.
    #[track_caller]
    pub fn drains_to(&mut self, left: usize, wire: &Wire) {
        let deadline = Deadline::default();
        while self.in_flight() > left {
            // Those that are answered with "again" are asked for once more.
            deadline.check(format_args!(
                "{left} of {} requests are left",
                self.in_flight()
            ));
            if !self.poll_used() {
                assert_eq!(self.sleep(wire), Ok(()));
            }
        }
    }

    /// Counts requests that are not answered.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        let asked = self.queues.iter().flat_map(|queue| &queue.asked);
        asked.flatten().count()
    }

    /// Sleeps until something was answered, or a queue is signalled all the same.
    ///
    /// # Errors
    /// [`Disconnected`].
    #[track_caller]
    pub fn sleep(&self, wire: &Wire) -> Result<(), Disconnected> {
        for index in self.request_queues() {
            if self.queues[index].virtqueue.ring.wait_for_next_used() {
                return Ok(());
            }
        }
        let calls = || self.queues.iter().map(|queue| &queue.virtqueue.call);
        let fds: Vec<_> = calls().map(AsFd::as_fd).chain([wire.socket()]).collect();
        let unanswered = self.unanswered();
        let what = format_args!("answers to {unanswered}");
        let ready = wait_for_any(what, Deadline::default(), &fds);
        if ready.ends_with(&[true]) {
            return Err(Disconnected);
        }
        for call in calls() {
            take(call);
        }
        Ok(())
    }

    fn unanswered(&self) -> String {
        let of = |queue: &Queue| queue.asked.iter().flatten().count().to_string();
        self.queues.iter().map(of).collect::<Vec<_>>().join(" ")
    }
}

impl Queue {
    fn new(memory: &TestMemory, packed: bool) -> Self {
        let features = RingFeatures {
            event_idx: true,
            indirect: false,
            packed,
        };
        let ring = if packed {
            Ring::new(memory, PACKED_ENTRIES, features)
        } else {
            Ring::split_at(memory, ENTRIES, features, BASE)
        };
        Queue {
            virtqueue: queue::Queue::new(ring),
            rooms: [(); SLOTS].map(|()| RequestMemory::new(memory)),
            asked: [None; SLOTS],
            stopped_at: None,
        }
    }
}
