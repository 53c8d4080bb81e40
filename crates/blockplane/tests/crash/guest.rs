//! A guest and its front-end, which outlive their server: memory, rings, the record of what is in flight.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use virtqueue::testing::TestMemory;

use crate::blocks::{Blocks, bytes};
use crate::device::{Device, Op, Outcome, Room};
use crate::link::{Gone, Link};
use crate::process::STUCK_AFTER;
use crate::random::Random;
use crate::ring::{ENTRIES, Ring};
use crate::wire::*;

/// Requests that a queue has room for.
pub const SLOTS: usize = 16;
/// `VIRTIO_F_RING_PACKED`
const RING_PACKED: u64 = 1 << 34;
/// `MQ`, `REPLY_ACK`, `INFLIGHT_SHMFD`
const PROTOCOL_FEATURES: u64 = 1 | 1 << 3 | 1 << 12;

/// A request that is not answered yet.
#[derive(Clone, Copy)]
struct Asked {
    name: u16,
    op: Op,
    block: usize,
    /// What it writes, or when a read was asked for.
    value: u64,
}

struct Queue {
    ring: Ring,
    kick: OwnedFd,
    call: OwnedFd,
    rooms: [Room; SLOTS],
    asked: [Option<Asked>; SLOTS],
    /// Where a server said that it has stopped.
    stopped_at: Option<u32>,
}

/// As `GET_INFLIGHT_FD` answered.
struct Record {
    payload: Vec<u8>,
    file: OwnedFd,
}

pub struct Guest {
    device: Device,
    packed: bool,
    memory: TestMemory,
    queues: Vec<Queue>,
    record: Option<Record>,
    /// It keeps one.
    pub keeps_record: bool,
    /// The size of a ring as it says it when it asks for the record, and when it passes it on; the rings may have more entries.
    pub named_ring_size: u16,
    /// `GET_VRING_BASE_INFLIGHT`: a queue that stops leaves what waits in the record.
    pub takes_record_along: bool,
    /// Its queues are started, and not enabled.
    pub stays_disabled: bool,
    pub blocks: Blocks,
    /// Requests that were answered so far.
    pub answers: u64,
}

impl Guest {
    pub fn new(device: Device, packed: bool, queues: usize, blocks: u64) -> Self {
        let memory = TestMemory::new(4 << 20);
        let queue = |_| Queue::new(&memory, packed);
        Guest {
            device,
            packed,
            queues: (0..device.first_queue() + queues).map(queue).collect(),
            memory,
            record: None,
            keeps_record: true,
            named_ring_size: ENTRIES,
            takes_record_along: false,
            stays_disabled: false,
            blocks: Blocks::new(blocks),
            answers: 0,
        }
    }

    /// Messages until all queues run.
    pub fn messages(&self) -> usize {
        5 + self.queues.len()
    }

    /// What a front-end says to a server that it was not connected to. `before_each` message something may happen.
    pub fn introduce(&mut self, link: &Link, mut before_each: impl FnMut()) -> Result<(), Gone> {
        before_each();
        link.tell(SET_OWNER, &[]);
        // Who does not ask what is offered is not believed to have chosen from it.
        link.asked(GET_FEATURES, &[])?;
        // Messages are acknowledged from the next one on.
        let takes_along = u64::from(self.takes_record_along) << 20;
        link.tell(
            SET_PROTOCOL_FEATURES,
            &u64s(&[PROTOCOL_FEATURES | takes_along]),
        );
        let mut must = |request, payload: &[u8], fds: &[BorrowedFd<'_>]| {
            before_each();
            link.must(request, payload, fds)
        };
        let packed = if self.packed { RING_PACKED } else { 0 };
        must(SET_FEATURES, &u64s(&[self.device.features() | packed]), &[])?;
        if self.keeps_record && self.record.is_none() {
            let queues = u16::try_from(self.queues.len()).unwrap();
            let named = self.named_ring_size.to_ne_bytes();
            let numbers = [queues.to_ne_bytes(), named, [0; 2], [0; 2]];
            let wanted = [u64s(&[0, 0]), numbers.concat()].concat();
            let (mut payload, file) = link.asked_file(GET_INFLIGHT_FD, &wanted)?;
            // As QEMU does: of the answer it keeps the file and its size.
            payload[18..20].copy_from_slice(&named);
            self.record = Some(Record { payload, file });
        }
        if let Some(record) = &self.record {
            must(SET_INFLIGHT_FD, &record.payload, &[record.file.as_fd()])?;
        }
        let regions = mem_regions(&self.memory);
        let file = self.memory.region_file(0);
        must(SET_MEM_TABLE, &mem_table(&regions), &[file])?;
        for index in 0..self.queues.len() {
            before_each();
            self.start(link, index)?;
        }
        Ok(())
    }

    /// Starts a queue; what was added to it is served without a kick.
    pub fn start(&mut self, link: &Link, index: usize) -> Result<(), Gone> {
        self.start_disabled(link, index)?;
        if self.stays_disabled {
            return Ok(());
        }
        let index = u32::try_from(index).unwrap();
        link.must(SET_VRING_ENABLE, &u32s(&[index, 1]), &[])
    }

    fn start_disabled(&mut self, link: &Link, index: usize) -> Result<(), Gone> {
        let queue = &mut self.queues[index];
        let layout = queue.ring.layout();
        let [desc, avail, used] =
            [layout.desc, layout.avail, layout.used].map(|addr| self.memory.user_addr(addr));
        let index = u32::try_from(index).unwrap();
        let base = match &queue.ring {
            Ring::Split(_) => queue.stopped_at.take(),
            // As it was told last, be that long ago.
            Ring::Packed(_) => queue.stopped_at,
        };
        let base = base.unwrap_or(queue.ring.base());
        let number = u64s(&[u64::from(index)]);
        link.must(SET_VRING_NUM, &u32s(&[index, layout.size.into()]), &[])?;
        link.must(SET_VRING_BASE, &u32s(&[index, base]), &[])?;
        let addr = vring_addr(index, 0, desc, avail, used);
        link.must(SET_VRING_ADDR, &addr, &[])?;
        link.must(SET_VRING_CALL, &number, &[queue.call.as_fd()])?;
        link.must(SET_VRING_KICK, &number, &[queue.kick.as_fd()])
    }

    /// Stops a queue. All that it has taken is answered then.
    pub fn stop(&mut self, link: &Link, index: usize) -> Result<(), Gone> {
        let payload = u32s(&[u32::try_from(index).unwrap(), 0]);
        let reply = link.asked(GET_VRING_BASE, &payload)?;
        self.queues[index].stopped_at = Some(u32_at(&reply, 4));
        Ok(())
    }

    /// The queues that take requests.
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
                self.queues[index].show();
            }
        }
    }

    /// Asks one request of a queue that has room for it; returns what it writes.
    pub fn ask(&mut self, index: usize, op: Op, block: usize) -> u64 {
        let free = self.queues[index].asked.iter().position(Option::is_none);
        let value = self.add(index, free.expect("room"), op, block);
        self.queues[index].show();
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
        self.hand_over(index, slot, op, block, value);
        value
    }

    fn hand_over(&mut self, index: usize, slot: usize, op: Op, block: usize, value: u64) {
        let queue = &mut self.queues[index];
        let buffers = self
            .device
            .request(&self.memory, queue.rooms[slot], op, block);
        let name = queue.ring.add(&buffers);
        queue.asked[slot] = Some(Asked {
            name,
            op,
            block,
            value,
        });
    }

    /// Takes what was answered, and looks whether it is right. True: something was.
    pub fn look(&mut self) -> bool {
        let mut some = false;
        for index in self.request_queues() {
            // Names are used again, so not before all of them are known.
            let mut again = Vec::new();
            for name in self.queues[index].ring.take_used() {
                some = true;
                let queue = &mut self.queues[index];
                let is_it = |asked: &Option<Asked>| asked.is_some_and(|asked| asked.name == name);
                let slot = queue
                    .asked
                    .iter()
                    .position(is_it)
                    .expect("it was asked for");
                let asked = queue.asked[slot].take().unwrap();
                let room = queue.rooms[slot];
                let Asked {
                    op, block, value, ..
                } = asked;
                if self.device.outcome(&self.memory, room) == Outcome::Again {
                    again.push((slot, asked));
                    continue;
                }
                self.answers += 1;
                match op {
                    Op::Read => {
                        let found = self.memory.read(room.data, crate::blocks::BLOCK);
                        self.blocks.read_answered(block, value, &found);
                    }
                    Op::Write => self.blocks.write_answered(block, value),
                    Op::Flush => {}
                }
            }
            for (slot, asked) in again {
                let Asked {
                    op, block, value, ..
                } = asked;
                self.hand_over(index, slot, op, block, value);
                self.queues[index].show();
            }
        }
        some
    }

    /// Waits until no more than these are left to be answered.
    pub fn drains_to(&mut self, left: usize, link: &Link) {
        while self.asked() > left {
            if !self.look() {
                assert_eq!(self.sleep(link), Ok(()));
            }
        }
    }

    /// Requests that are not answered.
    pub fn asked(&self) -> usize {
        let asked = self.queues.iter().flat_map(|queue| &queue.asked);
        asked.flatten().count()
    }

    /// Sleeps until something was answered.
    pub fn sleep(&self, link: &Link) -> Result<(), Gone> {
        for index in self.request_queues() {
            if self.queues[index].ring.wait_for_next_used() {
                return Ok(());
            }
        }
        let calls = self.queues.iter().map(|queue| queue.call.as_fd());
        let all: Vec<_> = calls.chain([link.socket()]).collect();
        let polled = |fd: &_| PollFd::from_borrowed_fd(*fd, PollFlags::IN);
        let mut polled: Vec<_> = all.iter().map(polled).collect();
        let timeout = Timespec::try_from(STUCK_AFTER).unwrap();
        let ready = poll(&mut polled, Some(&timeout)).unwrap();
        assert_ne!(ready, 0, "requests are not answered: {}", self.unanswered());
        // Nothing is said there unasked.
        if !polled[self.queues.len()].revents().is_empty() {
            return Err(Gone);
        }
        for queue in &self.queues {
            // Whoever was not called has nothing to read.
            let _ = rustix::io::read(&queue.call, &mut [0; 8]);
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
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        Queue {
            ring: Ring::new(memory, packed),
            kick: event(),
            call: event(),
            rooms: [(); SLOTS].map(|()| Room::new(memory)),
            asked: [None; SLOTS],
            stopped_at: None,
        }
    }

    /// Shows the device what was added, and kicks if it wants that.
    fn show(&mut self) {
        if self.ring.publish() {
            rustix::io::write(&self.kick, &1u64.to_ne_bytes()).unwrap();
        }
    }
}
