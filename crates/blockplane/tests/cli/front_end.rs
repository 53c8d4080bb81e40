//! A front-end of the smallest kind: enough to ask an export what it is, start its queues, and
//! keep a request in flight.
//!
//! Messages and numbers are those of QEMU's "Vhost-user Protocol" document and of the virtio
//! specification 1.2, sections 2.7 (split virtqueues) and 5.2 (block device). Errors are not handled but
//! fail the test.

use std::fs::File;
use std::io::{ErrorKind, IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::process::{STUCK_AFTER, readable};

const GET_FEATURES: u32 = 1;
const SET_FEATURES: u32 = 2;
const SET_OWNER: u32 = 3;
const SET_MEM_TABLE: u32 = 5;
const SET_VRING_NUM: u32 = 8;
const SET_VRING_ADDR: u32 = 9;
const SET_VRING_BASE: u32 = 10;
const SET_VRING_KICK: u32 = 12;
const SET_VRING_CALL: u32 = 13;
const SET_VRING_ERR: u32 = 14;
const SET_PROTOCOL_FEATURES: u32 = 16;
const GET_QUEUE_NUM: u32 = 17;
const SET_VRING_ENABLE: u32 = 18;
const GET_CONFIG: u32 = 24;

const VERSION: u32 = 1;

/// `VIRTIO_BLK_F_RO`
pub const READ_ONLY: u64 = 1 << 5;
/// `VHOST_USER_F_PROTOCOL_FEATURES`
const PROTOCOL_FEATURES: u64 = 1 << 30;
/// `VIRTIO_F_VERSION_1`
const VERSION_1: u64 = 1 << 32;
/// `VHOST_USER_PROTOCOL_F_MQ` and `_CONFIG`
const PROTOCOL_MQ_CONFIG: u64 = 1 << 0 | 1 << 9;

// The guest's memory: one ring, which all queues share since only one is ever used, and the
// buffers of two requests.
const MEMORY_BYTES: u64 = 64 << 10;
const ENTRIES: u32 = 8;
const DESC: u64 = 0;
const AVAIL: u64 = 0x1000;
const USED: u64 = 0x2000;
const BUFFERS: u64 = 0x4000;
const STATUS: u64 = 0x800;
const DATA: u64 = 0x1000;
const REQUEST_BYTES: u64 = 0x2000;

const DESC_NEXT: u16 = 1;
const DESC_WRITE: u16 = 2;

/// A connection to an export.
pub struct FrontEnd {
    stream: UnixStream,
    memory: File,
    kick: OwnedFd,
    call: OwnedFd,
}

/// `VIRTIO_BLK_T_IN`
pub const READ: u32 = 0;
/// `VIRTIO_BLK_T_OUT`
pub const WRITE: u32 = 1;
/// `VIRTIO_BLK_T_GET_ID`
pub const GET_ID: u32 = 8;

impl FrontEnd {
    /// Connects and agrees on features.
    pub fn connect(socket: &Path) -> Self {
        let memory = File::from(memfd_create("guest", MemfdFlags::CLOEXEC).unwrap());
        memory.set_len(MEMORY_BYTES).unwrap();
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(STUCK_AFTER)).unwrap();
        stream.set_write_timeout(Some(STUCK_AFTER)).unwrap();
        let front_end = FrontEnd {
            stream,
            memory,
            kick: event(),
            call: event(),
        };
        front_end.send(SET_OWNER, &[], None);
        let offered = front_end.features();
        let features = PROTOCOL_FEATURES | VERSION_1 | offered & READ_ONLY;
        assert_eq!(features & !offered, 0, "offered: {offered:#x}");
        front_end.send(SET_FEATURES, &features.to_ne_bytes(), None);
        front_end.send(
            SET_PROTOCOL_FEATURES,
            &PROTOCOL_MQ_CONFIG.to_ne_bytes(),
            None,
        );
        front_end
    }

    /// What the export offers.
    pub fn features(&self) -> u64 {
        u64::from_ne_bytes(self.ask(GET_FEATURES, &[]).try_into().unwrap())
    }

    pub fn num_queues(&self) -> u64 {
        u64::from_ne_bytes(self.ask(GET_QUEUE_NUM, &[]).try_into().unwrap())
    }

    /// The first bytes of `struct virtio_blk_config`, up to `num_queues`.
    pub fn config(&self) -> [u8; 36] {
        let head = numbers(&[0, 36, 0]);
        let answer = self.ask(GET_CONFIG, &[head, vec![0; 36]].concat());
        answer[12..].try_into().unwrap()
    }

    /// The size of the disk in sectors of 512 bytes.
    pub fn capacity(&self) -> u64 {
        u64::from_le_bytes(self.config()[..8].try_into().unwrap())
    }

    /// Shares memory and starts that many queues. Only one of them may be used.
    pub fn start_queues(&self, count: u32) {
        let region = [1, 0, MEMORY_BYTES, 0, 0].map(u64::to_ne_bytes).concat();
        self.send(SET_MEM_TABLE, &region, Some(self.memory.as_fd()));
        for index in 0..count {
            self.send(SET_VRING_NUM, &numbers(&[index, ENTRIES]), None);
            self.send(SET_VRING_BASE, &numbers(&[index, 0]), None);
            let rings = [DESC, USED, AVAIL, 0].map(u64::to_ne_bytes).concat();
            let addr = [numbers(&[index, 0]), rings].concat();
            self.send(SET_VRING_ADDR, &addr, None);
            let index_u64 = u64::from(index).to_ne_bytes();
            self.send(SET_VRING_CALL, &index_u64, Some(self.call.as_fd()));
            self.send(SET_VRING_KICK, &index_u64, Some(self.kick.as_fd()));
            self.send(SET_VRING_ENABLE, &numbers(&[index, 1]), None);
        }
        // Messages are taken in order: with this answer the queues are started.
        self.num_queues();
    }

    /// Starts queue 0 in a way that must fail, and takes the word of it on a descriptor whose writer
    /// waits until somebody reads, which nobody does. Sends that and no more.
    pub fn start_to_fail_unheard(&self) {
        let region = [1, 0, MEMORY_BYTES, 0, 0].map(u64::to_ne_bytes).concat();
        self.send(SET_MEM_TABLE, &region, Some(self.memory.as_fd()));
        let no_power_of_two = 3;
        self.send(SET_VRING_NUM, &numbers(&[0, no_power_of_two]), None);
        let rings = [DESC, USED, AVAIL, 0].map(u64::to_ne_bytes).concat();
        self.send(SET_VRING_ADDR, &[numbers(&[0, 0]), rings].concat(), None);
        let full = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        self.send(SET_VRING_ERR, &0u64.to_ne_bytes(), Some(full.as_fd()));
        self.send(SET_VRING_KICK, &0u64.to_ne_bytes(), Some(self.kick.as_fd()));
    }

    /// Makes requests available to queue 0, at most two, and kicks once. Each is for the disk's first
    /// 512 bytes.
    pub fn submit(&self, kinds: &[u32]) {
        self.submit_at(kinds, 0);
    }

    /// The same, for 512 bytes further on in the disk.
    pub fn submit_at(&self, kinds: &[u32], sector: u64) {
        for (slot, kind) in (0u16..).zip(kinds) {
            let buffer = BUFFERS + u64::from(slot) * REQUEST_BYTES;
            let mut header = [kind.to_le_bytes(), [0; 4]].concat();
            header.extend(sector.to_le_bytes());
            self.memory.write_all_at(&header, buffer).unwrap();
            self.memory.write_all_at(&[0xff], buffer + STATUS).unwrap();
            let head = 3 * slot;
            let data_bytes = if *kind == GET_ID { 20 } else { 512 };
            self.describe(head, buffer, 16, DESC_NEXT);
            let direction = if *kind == WRITE { 0 } else { DESC_WRITE };
            self.describe(head + 1, buffer + DATA, data_bytes, DESC_NEXT | direction);
            self.describe(head + 2, buffer + STATUS, 1, DESC_WRITE);
            let entry = AVAIL + 4 + 2 * u64::from(slot);
            self.memory
                .write_all_at(&head.to_le_bytes(), entry)
                .unwrap();
        }
        let count = u16::try_from(kinds.len()).unwrap();
        self.memory
            .write_all_at(&count.to_le_bytes(), AVAIL + 2)
            .unwrap();
        rustix::io::write(&self.kick, &1u64.to_ne_bytes()).unwrap();
    }

    fn describe(&self, index: u16, addr: u64, len: u32, flags: u16) {
        let next = if flags & DESC_NEXT == 0 { 0 } else { index + 1 };
        let mut desc = addr.to_le_bytes().to_vec();
        desc.extend(len.to_le_bytes());
        desc.extend([flags, next].map(u16::to_le_bytes).concat());
        let at = DESC + 16 * u64::from(index);
        self.memory.write_all_at(&desc, at).unwrap();
    }

    /// Waits for calls until that many requests are completed. There may be calls without a
    /// completion (virtio specification 1.2, section 2.7.7.1: they are hints).
    pub fn wait_until_completed(&self, count: usize) {
        while self.completed().len() < count {
            self.wait_for_call();
        }
    }

    /// Waits for a call and takes it.
    pub fn wait_for_call(&self) {
        assert!(readable(&self.call), "no call");
        rustix::io::read(&self.call, &mut [0; 8]).unwrap();
    }

    /// Which requests are completed, in this order: their numbers in [`FrontEnd::submit`].
    pub fn completed(&self) -> Vec<u16> {
        let count = u16::from_le_bytes(self.read(USED + 2));
        (0..count)
            .map(|i| u16::from_le_bytes(self.read(USED + 4 + 8 * u64::from(i))) / 3)
            .collect()
    }

    /// The status byte of a request; 0 is success.
    pub fn status(&self, request: u16) -> u8 {
        let [status] = self.read(BUFFERS + u64::from(request) * REQUEST_BYTES + STATUS);
        status
    }

    fn read<const N: usize>(&self, offset: u64) -> [u8; N] {
        let mut bytes = [0; N];
        self.memory.read_exact_at(&mut bytes, offset).unwrap();
        bytes
    }

    /// Waits until the export hangs up.
    pub fn wait_for_hang_up(&self) {
        let mut byte = [0];
        match (&self.stream).read(&mut byte) {
            Ok(0) => {}
            // A message of ours was not read: hung up as well.
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
            other => panic!("still connected: {other:?}"),
        }
    }

    /// Brings descriptors, more with every message, until the export has enough of it.
    pub fn bring_descriptors_until_hang_up(&self) {
        for queue in 0..self.num_queues() {
            let call = Some(self.call.as_fd());
            if self
                .try_send(SET_VRING_CALL, &queue.to_ne_bytes(), call)
                .is_err()
            {
                return;
            }
        }
        self.wait_for_hang_up();
    }

    fn send(&self, request: u32, payload: &[u8], fd: Option<BorrowedFd<'_>>) {
        self.try_send(request, payload, fd).unwrap();
    }

    fn try_send(
        &self,
        request: u32,
        payload: &[u8],
        fd: Option<BorrowedFd<'_>>,
    ) -> rustix::io::Result<()> {
        let size = u32::try_from(payload.len()).unwrap();
        let message = [numbers(&[request, VERSION, size]), payload.to_vec()].concat();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if let Some(fd) = &fd {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(std::slice::from_ref(fd))));
        }
        let slices = [IoSlice::new(&message)];
        let sent = sendmsg(&self.stream, &slices, &mut ancillary, SendFlags::NOSIGNAL)?;
        assert_eq!(sent, message.len());
        Ok(())
    }

    fn ask(&self, request: u32, payload: &[u8]) -> Vec<u8> {
        self.send(request, payload, None);
        let mut head = [0; 12];
        (&self.stream).read_exact(&mut head).unwrap();
        assert_eq!(
            head[..4],
            request.to_ne_bytes(),
            "the answer to what was asked"
        );
        let size = u32::from_ne_bytes(head[8..].try_into().unwrap());
        let mut answer = vec![0; size as usize];
        (&self.stream).read_exact(&mut answer).unwrap();
        answer
    }
}

fn numbers(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|n| n.to_ne_bytes()).collect()
}
