//! A front-end of the smallest kind: enough to query an export, start its queues, and keep two requests in flight.

use std::cell::RefCell;
use std::fmt::Display;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::event::{EventfdFlags, eventfd};
use test_support::deadline::Deadline;
use test_support::events::{take, wait_for_any};
use test_support::vhost_user::queue::Queue;
use test_support::vhost_user::ring::Ring;
use test_support::vhost_user::wire::*;
use virtqueue::RingFeatures;
use virtqueue::testing::{Buffer, TestMemory};

/// `VIRTIO_BLK_F_RO`
pub const READ_ONLY: u64 = 1 << 5;
/// `VHOST_USER_F_PROTOCOL_FEATURES`
const PROTOCOL_FEATURES: u64 = 1 << 30;
/// `VIRTIO_F_VERSION_1`
const VERSION_1: u64 = 1 << 32;
/// `MQ`, `REPLY_ACK`, `CONFIG`
const PROTOCOL: u64 = 1 | 1 << 3 | 1 << 9;

const MEMORY_BYTES: u64 = 64 << 10;
const ENTRIES: u16 = 8;

/// `VIRTIO_BLK_T_IN`
pub const READ: u32 = 0;
/// `VIRTIO_BLK_T_OUT`
pub const WRITE: u32 = 1;
/// `VIRTIO_BLK_T_GET_ID`
pub const GET_ID: u32 = 8;

/// A connection to an export.
pub struct FrontEnd {
    wire: Wire,
    memory: TestMemory,
    /// All queues are this one, since only one is ever used.
    queue: RefCell<Queue>,
    /// Of each request: its used entry's id, and where its status is.
    requests: RefCell<Vec<(u16, u64)>>,
}

impl FrontEnd {
    /// Connects and agrees on features.
    pub fn connect(socket: &Path) -> Self {
        let memory = TestMemory::new(MEMORY_BYTES);
        let ring = Ring::new(&memory, ENTRIES, RingFeatures::default());
        let front_end = FrontEnd {
            wire: Wire::connect(socket),
            memory,
            queue: Queue::new(ring).into(),
            requests: RefCell::default(),
        };
        front_end.wire.begin_session(PROTOCOL).unwrap();
        let offered = front_end.features();
        let features = PROTOCOL_FEATURES | VERSION_1 | offered & READ_ONLY;
        assert_eq!(features & !offered, 0, "offered: {offered:#x}");
        let chosen = front_end.wire.must(SET_FEATURES, &u64s(&[features]), &[]);
        chosen.unwrap();
        front_end
    }

    /// What the export offers.
    pub fn features(&self) -> u64 {
        self.wire.offered_features().unwrap()
    }

    pub fn num_queues(&self) -> u64 {
        let reply = self.wire.query(GET_QUEUE_NUM, &[]).unwrap();
        u64::from_ne_bytes(reply.try_into().unwrap())
    }

    /// The first bytes of `struct virtio_blk_config`, up to `num_queues`.
    pub fn config(&self) -> [u8; 36] {
        self.wire.config().unwrap()
    }

    /// The size of the disk in sectors of 512 bytes.
    pub fn capacity(&self) -> u64 {
        u64::from_le_bytes(self.wire.config().unwrap())
    }

    /// Shares memory and starts that many queues. Only one of them may be used.
    pub fn start_queues(&self, count: u32) {
        let (wire, queue) = (&self.wire, self.queue.borrow());
        wire.share_memory(&self.memory).unwrap();
        for index in 0..count {
            queue.set_up(wire, &self.memory, index, 0).unwrap();
            queue.start(wire, index).unwrap();
            wire.enable(index, true).unwrap();
        }
    }

    /// Starts queue 0 in a way that must fail, with an error descriptor whose writer waits until it is read, which
    /// never happens. Sends that and no more.
    pub fn start_to_fail_unheard(&self) {
        let (wire, queue) = (&self.wire, self.queue.borrow());
        wire.share_memory(&self.memory).unwrap();
        let send = |request, payload: &[u8]| wire.message(request, VERSION, payload, &[]);
        let no_power_of_two = 3;
        send(SET_VRING_NUM, &u32s(&[0, no_power_of_two]));
        send(SET_VRING_ADDR, &queue.addresses(&self.memory, 0, 0));
        let full = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        wire.message(SET_VRING_ERR, VERSION, &u64s(&[0]), &[full.as_fd()]);
        let kick = queue.kick.as_fd();
        wire.message(SET_VRING_KICK, VERSION, &u64s(&[0]), &[kick]);
    }

    /// Makes requests available to queue 0, at most two, and kicks once. Each is for the disk's first
    /// 512 bytes.
    pub fn submit(&self, kinds: &[u32]) {
        self.submit_at(kinds, 0);
    }

    /// The same, for 512 bytes further on in the disk.
    pub fn submit_at(&self, kinds: &[u32], sector: u64) {
        let mut queue = self.queue.borrow_mut();
        for kind in kinds {
            let header = [&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat();
            let status = self.memory.alloc_bytes(&[0xff]);
            let id = queue.ring.add(&[
                Buffer::readable(self.memory.alloc_bytes(&header), 16),
                Buffer {
                    addr: self.memory.alloc(512, 512),
                    len: if *kind == GET_ID { 20 } else { 512 },
                    writable: *kind != WRITE,
                },
                Buffer::writable(status, 1),
            ]);
            self.requests.borrow_mut().push((id, status));
        }
        queue.ring.publish();
        queue.kick();
    }

    /// Waits for calls until that many requests are completed. There may be calls without a
    /// completion (virtio specification 1.2, section 2.7.7.1: they are hints).
    #[track_caller]
    pub fn wait_until_completed(&self, count: usize) {
        let deadline = Deadline::default();
        loop {
            let completed = self.completed().len();
            if completed >= count {
                return;
            }
            let what =
                format_args!("a call, for {count} requests of which {completed} are completed");
            self.wait_for_call_before(deadline, what);
        }
    }

    /// Waits for a call and takes it.
    #[track_caller]
    pub fn wait_for_call(&self) {
        self.wait_for_call_before(Deadline::default(), "a call");
    }

    #[track_caller]
    fn wait_for_call_before(&self, deadline: Deadline, what: impl Display) {
        let queue = self.queue.borrow();
        wait_for_any(what, deadline, &[queue.call.as_fd()]);
        take(&queue.call);
    }

    /// Which requests are completed, in this order: their numbers in [`FrontEnd::submit`].
    pub fn completed(&self) -> Vec<u16> {
        let mut queue = self.queue.borrow_mut();
        let (ring, requests) = (queue.ring.split(), self.requests.borrow());
        let number = |entry| {
            let (id, _) = ring.used_entry(entry);
            let position = requests.iter().position(|made| u32::from(made.0) == id);
            u16::try_from(position.expect("a request's id")).unwrap()
        };
        (0..ring.used_idx()).map(number).collect()
    }

    /// The status byte of a request; 0 is success.
    pub fn status(&self, request: u16) -> u8 {
        let (_, status) = self.requests.borrow()[usize::from(request)];
        self.memory.read(status, 1)[0]
    }

    /// Waits until the export hangs up.
    pub fn wait_for_hang_up(&self) {
        self.wire.wait_for_hang_up();
    }

    /// Brings descriptors, more with every message, until the export has enough of it.
    pub fn bring_descriptors_until_hang_up(&self) {
        let queue = self.queue.borrow();
        for index in 0..self.num_queues() {
            let call = queue.call.as_fd();
            self.wire
                .message(SET_VRING_CALL, VERSION, &u64s(&[index]), &[call]);
        }
        self.wait_for_hang_up();
    }
}
