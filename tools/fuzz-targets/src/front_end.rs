//! The front-end of a vfio-user server: both ends of the socket on one thread, so that nothing depends on time.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use rustix::net::SendFlags;
use test_support::fds::send_with_fds;
use test_support::vfio_user::rig::{QEMU_VERSION, Rig};
use test_support::vfio_user::{Message, map, unmap};
use vfio_user::PciDevice;
use vfio_user::wire::{self, DmaAccess, command};

pub struct FrontEnd<D> {
    pub rig: Rig<D>,
    next_id: u16,
    /// Commands without a reply.
    waiting: Vec<(u16, u16)>,
    /// It has sent what is no message: replies may be to anything.
    is_wild: bool,
    /// Requests of the device for guest memory.
    asked: VecDeque<Message>,
}

impl<D: PciDevice> FrontEnd<D> {
    /// Connected. The version is not agreed on.
    pub fn new(device: D) -> Self {
        let mut rig = Rig::around(device);
        rig.now_ns = 1;
        FrontEnd {
            rig,
            next_id: 0,
            waiting: Vec::new(),
            is_wild: false,
            asked: VecDeque::new(),
        }
    }

    /// A new connection, after the old one has ended. The version is not agreed on.
    pub fn connect(&mut self) {
        self.rig.server.disconnect();
        self.do_pending_work();
        self.waiting.clear();
        self.is_wild = false;
        self.asked.clear();
        self.rig.connect();
    }

    pub fn agree(&mut self) {
        let payload = [&[0; 4], QEMU_VERSION.as_bytes(), &[0]].concat();
        self.command(command::VERSION, &payload, None);
    }

    pub fn map(&mut self, address: u64, size: u64, fd: Option<BorrowedFd>) {
        self.command(command::DMA_MAP, &map(address, size), fd);
    }

    pub fn unmap(&mut self, address: u64, size: u64) {
        self.command(command::DMA_UNMAP, &unmap(0, address, size), None);
    }

    /// Sends a command, which is carried out as far as it does not have to wait.
    pub fn command(&mut self, command: u16, payload: &[u8], fd: Option<BorrowedFd>) {
        self.command_with(command, 0, payload, fd.as_slice());
    }

    /// The same with flags, and several descriptors.
    pub fn command_with(&mut self, command: u16, flags: u32, payload: &[u8], fds: &[BorrowedFd]) {
        self.next_id = self.next_id.wrapping_add(1);
        if flags & wire::NO_REPLY == 0 {
            self.waiting.push((self.next_id, command));
        }
        let message = Message::command(self.next_id, command, flags, payload);
        self.send(&message.bytes(), fds);
    }

    /// Sends what may be no message.
    pub fn send_anything(&mut self, bytes: &[u8], fds: &[BorrowedFd]) {
        self.is_wild = true;
        self.send(bytes, fds);
    }

    fn send(&mut self, bytes: &[u8], fds: &[BorrowedFd]) {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        // It fails when the server has hung up.
        let _ = send_with_fds(&self.rig.front_end, bytes, fds, flags);
        self.rig.server.handle_readable(self.rig.now_ns);
        self.receive();
    }

    /// The device goes on. Returns whether it wants to do so again.
    pub fn do_pending_work(&mut self) -> bool {
        self.rig.server.do_pending_work(self.rig.now_ns)
    }

    /// Reads what the server has sent. Replies are to what was asked, once each.
    pub fn receive(&mut self) {
        while let Some(message) = self.rig.receive() {
            let header = message.header;
            if header.flags & wire::TYPE_MASK == wire::TYPE_COMMAND {
                self.asked.push_back(message);
                continue;
            }
            assert_eq!(header.flags & wire::ERROR != 0, header.errno != 0);
            let what = (header.id, header.command);
            match self.waiting.iter().position(|waiting| *waiting == what) {
                Some(asked) => _ = self.waiting.remove(asked),
                None => assert!(self.is_wild, "a reply to something: {header:?}"),
            }
        }
    }

    /// Whether all that it has sent were messages.
    pub fn is_tame(&self) -> bool {
        !self.is_wild
    }

    /// Commands without a reply.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether the device waits for guest memory.
    pub fn asked(&self) -> bool {
        !self.asked.is_empty()
    }

    /// Answers what was asked for first; `memory` is at `address`. An error for what is outside of it, and unless `succeeds`.
    pub fn answer(&mut self, address: u64, memory: &mut [u8], succeeds: bool) {
        let Some(Message { header, payload }) = self.asked.pop_front() else {
            return;
        };
        let access = DmaAccess::decode(&payload).expect("an access to memory");
        let range = || {
            let start = usize::try_from(access.address.checked_sub(address)?).ok()?;
            let end = start.checked_add(usize::try_from(access.count).ok()?)?;
            (end <= memory.len()).then_some(start..end)
        };
        let range = range().filter(|_| succeeds);
        let (access, data) = payload.split_at(DmaAccess::BYTES);
        let (flags, errno, payload) = match range {
            None => (wire::ERROR, 14, Vec::new()),
            Some(range) if header.command == command::DMA_READ => {
                (0, 0, [access, &memory[range]].concat())
            }
            Some(range) => {
                memory[range].copy_from_slice(data);
                (0, 0, access.to_vec())
            }
        };
        let flags = wire::TYPE_REPLY | flags;
        let mut reply = Message::command(header.id, header.command, flags, &payload);
        reply.header.errno = errno;
        self.send(&reply.bytes(), &[]);
    }
}
