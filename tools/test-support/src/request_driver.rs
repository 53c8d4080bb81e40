//! A driver with several queues in one memory, each with room for some requests of 4 KiB.

pub mod commands;
mod ranges;

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use virtqueue::RingFeatures;
use virtqueue::testing::{Buffer, TestMemory};

use crate::deadline::{Deadline, eventually};
use crate::events::{take, wait_for_any};
use crate::sockets::limited;
use crate::vhost_user::queue;
use crate::vhost_user::ring::Ring;
use crate::vhost_user::wire::*;

/// `VIRTIO_BLK_T_IN`
pub const IN: u32 = 0;
/// `VIRTIO_BLK_T_OUT`
pub const OUT: u32 = 1;
/// `VIRTIO_BLK_T_FLUSH`
pub const FLUSH: u32 = 4;
/// `VIRTIO_BLK_T_GET_ID`
pub const GET_ID: u32 = 8;
/// `VIRTIO_BLK_T_DISCARD`
pub const DISCARD: u32 = 11;
/// `VIRTIO_BLK_T_WRITE_ZEROES`
pub const WRITE_ZEROES: u32 = 13;

/// Bytes of a request.
pub const BLOCK: usize = 4096;
/// Requests that a queue has room for.
pub const SLOTS: usize = 8;

/// Bytes of the configuration space of a disk, up to write-zeroes.
const CONFIG_BYTES: u32 = 60;
const ENTRIES: u16 = 64;

const MIN_MEMORY_BYTES: u64 = 1 << 20;
/// Room for a queue and its requests.
const QUEUE_BYTES: u64 = 128 << 10;

/// `VHOST_USER_F_PROTOCOL_FEATURES`, `VIRTIO_F_VERSION_1`
const BASE_FEATURES: u64 = 1 << 30 | 1 << 32;
/// And `VIRTIO_BLK_F_FLUSH`, `VIRTIO_BLK_F_CONFIG_WCE`
const BLK_FEATURES: u64 = 1 << 9 | 1 << 11 | BASE_FEATURES;
/// `MQ`, `REPLY_ACK`, `CONFIG`
const PROTOCOL_FEATURES: u64 = 1 | 1 << 3 | 1 << 9;
/// A SCSI command, and its response with sense data of the default size (VIRTIO 1.2, section 5.6.6.1).
const COMMAND_BYTES: usize = 51;
const RESPONSE_BYTES: u32 = 108;
/// `VIRTIO_SCSI_F_HOTPLUG`, `VIRTIO_SCSI_F_CHANGE`
const EVENTS: u64 = 1 << 1 | 1 << 2;
/// What is in a status byte before the device writes one.
pub const NO_STATUS: u8 = 0xff;

/// Memory of one request.
#[derive(Clone, Copy, Debug)]
struct Slot {
    header: u64,
    data: u64,
    status: u64,
}

/// One queue from the guest's side.
#[derive(Debug)]
struct Queue {
    virtqueue: queue::Queue,
    slots: Vec<Slot>,
    /// By slot: the head of its request, until that is answered.
    asked: Vec<Option<u16>>,
}

/// The driver of a device, and its front-end. A test makes each request and waits for it.
#[derive(Debug)]
pub struct RequestDriver {
    wire: Wire,
    memory: TestMemory,
    queues: Vec<Queue>,
}

impl RequestDriver {
    /// Connected to a disk, with that many queues running.
    pub fn connect(socket: &Path, queues: u32) -> Self {
        RequestDriver::with_features(socket, queues, BLK_FEATURES)
    }

    /// The same with a driver that cannot flush, nor set the cache mode.
    pub fn connect_without_flush(socket: &Path, queues: u32) -> Self {
        RequestDriver::with_features(socket, queues, BASE_FEATURES)
    }

    /// Another driver, which cannot do that, chooses its features. No queue runs.
    pub fn negotiate_without_flush(&self) {
        self.must(SET_FEATURES, &u64s(&[BASE_FEATURES]), &[]);
    }

    /// The same to a SCSI controller, whose first two queues are not for commands.
    pub fn connect_scsi(socket: &Path, queues: u32) -> Self {
        RequestDriver::with_features(socket, queues + 2, BASE_FEATURES)
    }

    /// The same, that hears of events.
    pub fn connect_hearing(socket: &Path, queues: u32) -> Self {
        RequestDriver::with_features(socket, queues + 2, BASE_FEATURES | EVENTS)
    }

    /// A guest's front-end that is disconnected when its queue starts.
    ///
    /// # Panics
    /// If the queue starts.
    pub fn connect_refused(socket: &Path) {
        let mut guest = RequestDriver::with_features(socket, 0, BLK_FEATURES);
        guest.queues.push(Queue::new(&guest.memory));
        guest.start_refused(0, 0);
    }

    /// Starts a queue, and is disconnected instead.
    ///
    /// # Panics
    /// If the queue starts.
    #[track_caller]
    pub fn start_refused(&self, index: u32, base: u16) {
        let queue = &self.queues[index as usize].virtqueue;
        let set_up = queue.set_up(&self.wire, &self.memory, index, base.into());
        set_up.unwrap();
        let kick = [queue.kick.as_fd()];
        let answer = self.wire.ask(SET_VRING_KICK, &u64s(&[index.into()]), &kick);
        assert_ne!(answer, Some(u64s(&[0])), "the queue has started");
        self.wire.wait_for_hang_up();
    }

    /// Has the device log the pages that it writes, as when a migration begins, or no more.
    pub fn log_dirty_pages(&self, on: bool) {
        let log_all = u64::from(on) << 26;
        self.must(SET_FEATURES, &u64s(&[BLK_FEATURES | log_all]), &[]);
    }

    fn with_features(socket: &Path, queues: u32, features: u64) -> Self {
        let mut guest = RequestDriver {
            wire: Wire::connect(socket),
            memory: TestMemory::new(MIN_MEMORY_BYTES.max(u64::from(queues) * QUEUE_BYTES)),
            queues: Vec::new(),
        };
        guest.wire.begin_session(PROTOCOL_FEATURES).unwrap();
        guest.must(SET_FEATURES, &u64s(&[features]), &[]);
        guest.wire.share_memory(&guest.memory).unwrap();
        for index in 0..queues {
            let queue = Queue::new(&guest.memory);
            guest.queues.push(queue);
            guest.start(index, 0);
        }
        guest
    }

    /// Starts a queue, from an index in its rings on.
    #[track_caller]
    pub fn start(&self, index: u32, base: u16) {
        let queue = &self.queues[index as usize].virtqueue;
        let base = base.into();
        queue
            .set_up(&self.wire, &self.memory, index, base)
            .and_then(|()| queue.start(&self.wire, index))
            .and_then(|()| self.wire.enable(index, true))
            .unwrap();
    }

    /// Lets a queue be read, or not.
    pub fn enable(&self, index: u32, enabled: bool) {
        self.wire.enable(index, enabled).unwrap();
    }

    /// Stops a queue; all that it took is answered then. The answer is where it would go on.
    pub fn stop(&self, index: u32) -> u16 {
        let base = self.wire.stop(index).expect("an answer");
        u16::try_from(base).unwrap()
    }

    /// Writes to the configuration space and waits until the device has taken it.
    pub fn set_config(&self, offset: u32, byte: u8) {
        self.must(SET_CONFIG, &config(offset, 1, 0, &[byte]), &[]);
    }

    /// What the device says that it has, in bytes.
    pub fn capacity(&self) -> u64 {
        let sectors = self.wire.config().expect("an answer");
        u64::from_le_bytes(sectors) * 512
    }

    /// Its whole configuration space (VIRTIO 1.2, section 5.2.4).
    pub fn config_space(&self) -> Vec<u8> {
        let ask = config(0, CONFIG_BYTES, 0, &[0; CONFIG_BYTES as usize]);
        self.wire.message(GET_CONFIG, VERSION, &ask, &[]);
        self.wire.reply(GET_CONFIG).expect("an answer")[12..].to_vec()
    }

    /// What the device answers to a question that says nothing else, such as what it offers.
    pub fn query(&self, request: u32) -> Vec<u8> {
        self.wire.message(request, VERSION, &[], &[]);
        self.wire.reply(request).expect("an answer")
    }

    /// Gives the device a channel for its own messages, with protocol features besides that for it.
    pub fn listen(&self, protocol_features: u64) -> UnixStream {
        let features = u64s(&[protocol_features | 1 << 5]);
        self.wire
            .message(SET_PROTOCOL_FEATURES, VERSION, &features, &[]);
        let (ours, theirs) = UnixStream::pair().unwrap();
        let fds = [theirs.as_fd()];
        self.wire.message(SET_BACKEND_REQ_FD, VERSION, &[], &fds);
        assert!(self.wire.is_connected());
        limited(ours)
    }

    #[track_caller]
    fn must(&self, request: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) {
        self.wire.must(request, payload, fds).unwrap();
    }

    /// Makes a request of one block available and kicks. What is written is `byte` all over.
    pub fn ask(&mut self, index: u32, slot: usize, kind: u32, block: u64, byte: u8) {
        self.add(index, slot, kind, block, byte);
        self.submit(index);
    }

    /// Shows the device all that was added at once.
    pub fn submit(&mut self, index: u32) {
        let queue = &mut self.queues[index as usize].virtqueue;
        queue.ring.publish();
        queue.kick();
    }

    /// A request that the device does not see yet.
    pub fn add(&mut self, index: u32, slot: usize, kind: u32, block: u64, byte: u8) {
        let (memory, queue) = (&self.memory, &mut self.queues[index as usize]);
        assert_eq!(queue.asked[slot], None, "its answer was awaited");
        let Slot {
            header,
            data,
            status,
        } = queue.slots[slot];
        let sector = block * (BLOCK as u64 / 512);
        memory.write(
            header,
            &[&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat(),
        );
        memory.fill(data, BLOCK, byte);
        memory.write(status, &[NO_STATUS]);
        let len = u32::try_from(BLOCK).unwrap();
        let data = match kind {
            IN | GET_ID => Some(Buffer::writable(data, len)),
            OUT => Some(Buffer::readable(data, len)),
            DISCARD | WRITE_ZEROES => {
                memory.write(data, &ranges::descriptor(sector, BLOCK as u64 / 512, 0));
                Some(Buffer::readable(data, ranges::DESCRIPTOR_BYTES))
            }
            _ => None,
        };
        let mut buffers = vec![Buffer::readable(header, 16)];
        buffers.extend(data);
        buffers.push(Buffer::writable(status, 1));
        queue.asked[slot] = Some(queue.virtqueue.ring.add(&buffers));
    }

    /// A request that is none: half a header, and nothing to answer in.
    pub fn ask_nonsense(&mut self, index: u32) {
        let queue = &mut self.queues[index as usize];
        queue
            .virtqueue
            .ring
            .add(&[Buffer::readable(queue.slots[0].header, 8)]);
        self.submit(index);
    }

    /// Whether a request is answered.
    pub fn is_answered(&mut self, index: u32, slot: usize) -> bool {
        let queue = &mut self.queues[index as usize];
        for head in queue.virtqueue.ring.take_used() {
            let answered = queue.asked.iter().position(|asked| *asked == Some(head));
            queue.asked[answered.expect("it was asked")] = None;
        }
        queue.asked[slot].is_none()
    }

    /// Sleeps until a request is answered with success.
    #[track_caller]
    pub fn wait(&mut self, index: u32, slot: usize) {
        let deadline = Deadline::default();
        while !self.is_answered(index, slot) {
            let call = &self.queues[index as usize].virtqueue.call;
            // Signals of other requests do not extend it.
            let what = format_args!("queue {index} signals that request {slot} is answered");
            wait_for_any(what, deadline, &[call.as_fd()]);
            // Another signal may have been taken with it.
            take(call);
        }
        let status = self.queues[index as usize].slots[slot].status;
        assert_eq!(self.memory.read(status, 1), [0], "the status");
    }

    /// The same without waiting for a signal.
    #[track_caller]
    pub fn watch(&mut self, index: u32, slot: usize) {
        eventually(format_args!("an answer in queue {index}"), || {
            self.is_answered(index, slot)
        });
    }

    /// Waits for a signal of a queue, and takes it.
    #[track_caller]
    pub fn wait_for_call(&self, index: u32) {
        let call = &self.queues[index as usize].virtqueue.call;
        wait_for_any("a signal", Deadline::default(), &[call.as_fd()]);
        take(call);
    }

    /// Waits until the device hangs up.
    #[track_caller]
    pub fn wait_for_hang_up(&self) {
        self.wire.wait_for_hang_up();
    }

    /// One request, from the first to the last.
    #[track_caller]
    pub fn request(&mut self, index: u32, kind: u32, block: u64, byte: u8) {
        self.ask(index, 0, kind, block, byte);
        self.wait(index, 0);
    }

    /// One request, from the first to the last, and its status.
    #[track_caller]
    pub fn status_of(&mut self, index: u32, kind: u32, block: u64, byte: u8) -> u8 {
        self.ask(index, 0, kind, block, byte);
        self.watch(index, 0);
        self.status(index, 0)
    }

    /// Reads one block.
    #[track_caller]
    pub fn read(&mut self, index: u32, block: u64) -> Vec<u8> {
        self.request(index, IN, block, 0);
        self.data(index, 0)
    }

    /// Makes requests of so many blocks available at once, in slots from 0 on. What is written to each is its byte all over.
    pub fn ask_all(&mut self, index: u32, kind: u32, blocks: impl IntoIterator<Item = (u64, u8)>) {
        for (slot, (block, byte)) in blocks.into_iter().enumerate() {
            self.add(index, slot, kind, block, byte);
        }
        self.submit(index);
    }

    /// Waits until no slot of a queue has a request that is not answered, and returns the status of each slot.
    #[track_caller]
    pub fn watch_all(&mut self, index: u32) -> [u8; SLOTS] {
        std::array::from_fn(|slot| {
            self.watch(index, slot);
            self.status(index, slot)
        })
    }

    /// The status of a request that was answered.
    pub fn status(&self, index: u32, slot: usize) -> u8 {
        let status = self.queues[index as usize].slots[slot].status;
        self.memory.read(status, 1)[0]
    }

    /// What a request has read.
    pub fn data(&self, index: u32, slot: usize) -> Vec<u8> {
        let data = self.queues[index as usize].slots[slot].data;
        self.memory.read(data, BLOCK)
    }

    /// Makes the next signal to this queue block in the kernel.
    pub fn block_signal(&self, index: u32) {
        let call = &self.queues[index as usize].virtqueue.call;
        // What is pending would make room.
        take(call);
        rustix::io::write(call, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        // The device has set it not to block; the flag belongs to both ends.
        rustix::fs::fcntl_setfl(call, rustix::fs::OFlags::empty()).unwrap();
    }
}

impl Queue {
    fn new(memory: &TestMemory) -> Self {
        let features = RingFeatures {
            event_idx: false,
            indirect: false,
            packed: false,
        };
        let slot = |_| Slot {
            header: memory.alloc(COMMAND_BYTES as u64, 16),
            data: memory.alloc(BLOCK as u64, BLOCK as u64),
            status: memory.alloc(RESPONSE_BYTES.into(), 1),
        };
        Queue {
            virtqueue: queue::Queue::new(Ring::new(memory, ENTRIES, features)),
            slots: (0..SLOTS).map(slot).collect(),
            asked: vec![None; SLOTS],
        }
    }
}
