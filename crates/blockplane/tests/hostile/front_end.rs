//! A guest and its front-end: well-behaved as far as a row wants it to be.
//!
//! Two queues in one memory, each with eventfds of its own. Rows take it as far as they need
//! (`connect`, `negotiate`, `share_memory`, `set_up`, `start`) and then send invalid input.

use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use test_support::deadline::{Deadline, eventually};
pub use test_support::events::{event, is_readable};
use test_support::events::{take, wait_for_any};
pub use test_support::request_driver::{DISCARD, FLUSH, GET_ID, IN, NO_STATUS, OUT, WRITE_ZEROES};
use test_support::vhost_user::queue;
use test_support::vhost_user::ring::Ring;
use virtqueue::RingFeatures;
use virtqueue::testing::{Buffer, RawDescriptor, TestMemory};

use crate::daemon::QUEUES;
use crate::row::Answer;
use crate::wire::*;

/// `VIRTIO_RING_F_INDIRECT_DESC`
pub const INDIRECT_DESC: u64 = 1 << 28;
/// `VIRTIO_RING_F_EVENT_IDX`
pub const EVENT_IDX: u64 = 1 << 29;
/// `VHOST_USER_F_PROTOCOL_FEATURES`
pub const PROTOCOL_FEATURES: u64 = 1 << 30;
/// `VIRTIO_F_RING_PACKED`
pub const RING_PACKED: u64 = 1 << 34;
/// `VIRTIO_F_VERSION_1`
pub const VERSION_1: u64 = 1 << 32;
/// What a guest chooses unless the row says otherwise; with `VIRTIO_BLK_F_FLUSH`.
pub const FEATURES: u64 = 1 << 9 | PROTOCOL_FEATURES | VERSION_1;
/// `MQ`, `REPLY_ACK`, `BACKEND_REQ`, `CONFIG`, `RESET_DEVICE`, `CONFIGURE_MEM_SLOTS`
pub const ALL_PROTOCOL_FEATURES: u64 = 1 | 1 << 3 | 1 << 5 | 1 << 9 | 1 << 13 | 1 << 15;

/// Where memory begins, unless the row shares some of its own.
pub const MEMORY: u64 = 0x10_0000;
pub const MEMORY_BYTES: u64 = 4 << 20;
/// Entries of a queue.
pub const ENTRIES: u16 = 16;

const IO_BYTES: usize = 4096;

/// A queue from the guest's side.
pub struct Queue {
    virtqueue: queue::Queue,
    pub err: OwnedFd,
    /// Where the last request's status byte is.
    pub status: u64,
    /// Header, data and status of verified requests.
    buffers: u64,
}

impl Deref for Queue {
    type Target = queue::Queue;

    fn deref(&self) -> &queue::Queue {
        &self.virtqueue
    }
}

impl DerefMut for Queue {
    fn deref_mut(&mut self) -> &mut queue::Queue {
        &mut self.virtqueue
    }
}

/// A front-end whose rows break the rules, and its guest.
pub struct HostileFrontEnd {
    pub wire: Wire,
    pub memory: TestMemory,
    pub queues: Vec<Queue>,
    features: u64,
    /// Chosen beside what the row says.
    also: u64,
}

impl HostileFrontEnd {
    /// Connected, and not a word said.
    pub fn connect(socket: &Path) -> Self {
        HostileFrontEnd {
            wire: Wire::connect(socket),
            memory: TestMemory::new(MEMORY_BYTES),
            queues: Vec::new(),
            features: 0,
            also: 0,
        }
    }

    /// From here on what is negotiated includes packed queues.
    pub fn choose_packed(&mut self) {
        self.also = RING_PACKED;
    }

    /// What was negotiated.
    pub fn features(&self) -> u64 {
        self.features
    }

    /// Does all that a front-end does until its queues run.
    pub fn ready(&mut self) {
        self.ready_with(FEATURES, ENTRIES);
    }

    pub fn ready_with(&mut self, features: u64, entries: u16) {
        self.negotiate(features);
        self.share_memory();
        for index in 0..QUEUES {
            self.set_up(index, entries);
            self.start(index);
        }
    }

    pub fn negotiate(&mut self, features: u64) {
        self.negotiate_also(features, 0);
    }

    /// The same with more features of the protocol.
    pub fn negotiate_also(&mut self, features: u64, protocol_features: u64) {
        self.features = features | self.also;
        let protocol_features = ALL_PROTOCOL_FEATURES | protocol_features;
        self.wire.begin_session(protocol_features).unwrap();
        self.must(SET_FEATURES, &u64s(&[self.features]), &[]);
    }

    /// A message that is all right.
    #[track_caller]
    pub fn must(&self, request: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) {
        self.wire.must(request, payload, fds).unwrap();
    }

    /// What becomes of a message that is acknowledged.
    pub fn ask(&self, request: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) -> Answer {
        match self.wire.ask(request, payload, fds) {
            None => Answer::Dropped,
            Some(_) if !self.wire.is_connected() => Answer::Dropped,
            Some(reply) if reply == u64s(&[0]) => Answer::Accepted,
            Some(_) => Answer::Refused,
        }
    }

    /// What becomes of a message that is not answered.
    pub fn tell(&self, request: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) -> Answer {
        self.wire.message(request, VERSION, payload, fds);
        self.still_there()
    }

    /// The same with so many eventfds.
    pub fn tell_with_events(&self, request: u32, payload: &[u8], count: usize) -> Answer {
        let files: Vec<_> = (0..count).map(|_| event()).collect();
        let fds: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        self.tell(request, payload, &fds)
    }

    pub fn still_there(&self) -> Answer {
        match self.wire.is_connected() {
            true => Answer::Accepted,
            false => Answer::Dropped,
        }
    }

    /// The regions of this guest's memory, as messages describe them.
    pub fn regions(&self) -> Vec<Region> {
        mem_regions(&self.memory)
    }

    pub fn share_memory(&self) {
        self.wire.share_memory(&self.memory).unwrap();
    }

    /// Shares memory, and sets up queue 0.
    pub fn set_up_first(&mut self) {
        self.share_memory();
        self.set_up(0, ENTRIES);
    }

    /// Makes the next queue, or a stopped one anew at another place, and says where it is.
    pub fn set_up(&mut self, index: u32, entries: u16) {
        let base = self.make_queue(index, entries);
        self.must(SET_VRING_BASE, &u32s(&[index, base]), &[]);
        self.announce_but_base(index);
    }

    /// The same, and does not say where it begins.
    pub fn set_up_without_base(&mut self, index: u32, entries: u16) {
        self.make_queue(index, entries);
        self.announce_but_base(index);
    }

    /// A queue with new rings and buffers, of the form that was negotiated; where it begins.
    fn make_queue(&mut self, index: u32, entries: u16) -> u32 {
        let features = RingFeatures {
            event_idx: self.features & EVENT_IDX != 0,
            indirect: self.features & INDIRECT_DESC != 0,
            packed: self.features & RING_PACKED != 0,
        };
        let ring = Ring::new(&self.memory, entries, features);
        let buffers = self.memory.alloc(16 + IO_BYTES as u64 + 1, 16);
        let base = ring.base();
        let queue = Queue {
            virtqueue: queue::Queue::new(ring),
            err: event(),
            status: 0,
            buffers,
        };
        match self.queues.get_mut(index as usize) {
            Some(stopped) => *stopped = queue,
            None => self.queues.push(queue),
        }
        base
    }

    fn announce_but_base(&self, index: u32) {
        let queue = &self.queues[index as usize];
        let set_up = queue.set_up_without_base(&self.wire, &self.memory, index);
        set_up.unwrap();
        let number = u64s(&[u64::from(index)]);
        self.must(SET_VRING_ERR, &number, &[queue.err.as_fd()]);
    }

    /// Payload that says where a queue's rings are.
    pub fn addresses(&self, index: u32, flags: u32) -> Vec<u8> {
        self.queues[index as usize].addresses(&self.memory, index, flags)
    }

    pub fn start(&self, index: u32) {
        let queue = &self.queues[index as usize];
        queue.start(&self.wire, index).unwrap();
        self.wire.enable(index, true).unwrap();
    }

    /// What starting a queue leads to that is set up in a way that it should not be.
    pub fn try_start(&self, index: u32) -> Answer {
        let queue = &self.queues[index as usize];
        let number = u64s(&[index.into()]);
        match self.ask(SET_VRING_KICK, &number, &[queue.kick.as_fd()]) {
            Answer::Accepted if is_readable(&queue.err) => Answer::Broken,
            answer => answer,
        }
    }

    /// Hands a chain to a queue as it is.
    pub fn chain(&mut self, index: usize, chain: &[RawDescriptor]) -> Answer {
        let queue = &mut self.queues[index];
        queue.ring.add_raw(chain);
        queue.kick();
        self.outcome(index)
    }

    /// The first queue's chains made available as they are.
    pub fn make_available(&mut self, heads: &[u16]) {
        let queue = &mut self.queues[0];
        for head in heads {
            queue.ring.split().make_available(*head);
        }
        queue.kick();
    }

    /// A request of any form to queue 0: what the device reads, then buffers that it writes.
    pub fn request(&mut self, readable: &[&[u8]], writable: &[u32]) -> Answer {
        self.submit(readable, writable);
        self.outcome(0)
    }

    /// Reads a sector.
    pub fn read_sector(&mut self) -> Answer {
        self.submit_read();
        self.outcome(0)
    }

    pub fn submit_read(&mut self) {
        self.submit(&[&request_header(IN, 0)], &[512, 1]);
    }

    /// Reads a sector as a guest that is not called: it looks at the ring.
    pub fn read_sector_without_call(&mut self) -> Answer {
        self.submit_read();
        self.wait_for_used(0);
        self.queues[0].ring.take_used();
        Answer::Status(self.memory.read(self.queues[0].status, 1)[0])
    }

    /// Looks at the used ring until there is one entry more.
    pub fn wait_for_used(&mut self, index: usize) {
        let queue = &mut self.queues[index];
        eventually("the request ends", || queue.ring.has_answered());
    }

    /// Waits until the device has taken what is in queue 0 up to here, in chains of a split queue or
    /// descriptors of a packed one (with [`EVENT_IDX`]), or has found the queue broken.
    pub fn wait_until_taken(&mut self, count: u16) {
        let queue = &self.queues[0];
        let deadline = Deadline::default();
        while queue.ring.kick_at() != Some(count) && !is_readable(&queue.err) {
            deadline.check("the request is taken");
            std::thread::yield_now();
        }
    }

    /// Waits for a queue to break.
    pub fn err_of(&self, index: usize) -> Answer {
        let fds = [self.queues[index].err.as_fd(), self.wire.socket()];
        match wait_for_any("the queue breaks", Deadline::default(), &fds)[0] {
            true => Answer::Broken,
            false => Answer::Dropped,
        }
    }

    /// Hands a request to queue 0, with buffers of its own.
    pub fn submit(&mut self, readable: &[&[u8]], writable: &[u32]) {
        let mut buffers = Vec::new();
        for bytes in readable {
            let len = u32::try_from(bytes.len()).unwrap();
            buffers.push(Buffer::readable(self.memory.alloc_bytes(bytes), len));
        }
        for len in writable {
            let addr = self.memory.alloc(u64::from(*len).max(1), 1);
            buffers.push(Buffer::writable(addr, *len));
        }
        self.submit_buffers(0, &buffers);
    }

    /// Hands these buffers to a queue, the last of which ends with the status.
    pub fn submit_buffers(&mut self, index: usize, buffers: &[Buffer]) {
        let queue = &mut self.queues[index];
        if let Some(last) = buffers.last()
            && last.writable
        {
            queue.status = last.addr + u64::from(last.len).max(1) - 1;
            self.memory.write(queue.status, &[NO_STATUS]);
        }
        queue.ring.add(buffers);
        queue.ring.signal_next();
        queue.ring.publish();
        queue.kick();
    }

    /// Where the next status byte of queue 0 will be.
    pub fn expect_status_at(&mut self, addr: u64) {
        self.memory.write(addr, &[NO_STATUS]);
        self.queues[0].status = addr;
    }

    /// Waits for what becomes of the last request: a status, a broken queue, or a lost connection.
    #[track_caller]
    pub fn outcome(&mut self, index: usize) -> Answer {
        let deadline = Deadline::default();
        loop {
            let queue = &mut self.queues[index];
            if is_readable(&queue.err) {
                return Answer::Broken;
            }
            if queue.ring.has_answered() {
                return Answer::Status(self.memory.read(queue.status, 1)[0]);
            }
            let fds = [queue.err.as_fd(), queue.call.as_fd(), self.wire.socket()];
            // Calls without an answer do not extend it.
            let ready = wait_for_any("the request ends", deadline, &fds);
            // Nothing is said on the socket unasked: readable, it has ended.
            if ready[2] {
                return Answer::Dropped;
            }
            take(&queue.call);
        }
    }

    /// Writes 4 KiB with a pattern and reads them back.
    pub fn verified_io(&mut self, index: usize, block: u64, seed: u8) -> Result<(), String> {
        let data = self.queues[index].buffers + 16;
        let pattern: Vec<u8> = (0u8..=255)
            .cycle()
            .map(|byte| byte ^ seed)
            .take(IO_BYTES)
            .collect();
        self.memory.write(data, &pattern);
        self.transfer(index, OUT, block)?;
        self.memory.fill(data, IO_BYTES, 0);
        self.transfer(index, IN, block)?;
        let found = self.memory.read(data, IO_BYTES);
        match found == pattern {
            true => Ok(()),
            false => Err(format!("block {block} is not what was written: {found:x?}")),
        }
    }

    /// 4 KiB, in whole blocks.
    fn transfer(&mut self, index: usize, kind: u32, block: u64) -> Result<(), String> {
        self.begin(index, kind, block);
        let outcome = self.outcome(index);
        self.queues[index].ring.take_used();
        match outcome {
            Answer::Status(0) => Ok(()),
            other => Err(format!("a good request: {other:?}")),
        }
    }

    /// Hands over a request of 4 KiB.
    pub fn begin(&mut self, index: usize, kind: u32, block: u64) {
        let head = self.queues[index].buffers;
        let data = head + 16;
        self.memory.write(head, &request_header(kind, block * 8));
        let len = u32::try_from(IO_BYTES).unwrap();
        let data_buffer = match kind {
            IN => Buffer::writable(data, len),
            _ => Buffer::readable(data, len),
        };
        let status = Buffer::writable(data + u64::from(len), 1);
        self.submit_buffers(index, &[Buffer::readable(head, 16), data_buffer, status]);
    }
}

/// A request's header.
pub fn request_header(kind: u32, sector: u64) -> Vec<u8> {
    let fields = [kind.to_le_bytes(), [0; 4]];
    [fields.as_flattened(), &sector.to_le_bytes()].concat()
}
