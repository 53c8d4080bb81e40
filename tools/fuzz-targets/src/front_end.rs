//! The front-end of a vfio-user server: both ends of the socket on one thread, so that nothing depends on time.

use std::collections::VecDeque;
use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use vfio_user::wire::{self, DmaAccess, DmaMap, DmaUnmap, Header, command};
use vfio_user::{PciDevice, Server};

/// Requests of the device for guest memory.
struct PendingAccess {
    header: Header,
    access: DmaAccess,
    data: Vec<u8>,
}

pub struct FrontEnd<D> {
    pub server: Server<D>,
    pub now_ns: u64,
    socket: Option<UnixStream>,
    inbox: Vec<u8>,
    next_id: u16,
    /// Commands without a reply.
    waiting: Vec<(u16, u16)>,
    /// It has sent what is no message: replies may be to anything.
    is_wild: bool,
    asked: VecDeque<PendingAccess>,
}

impl<D: PciDevice> FrontEnd<D> {
    /// Not connected.
    pub fn new(device: D) -> Self {
        FrontEnd {
            server: Server::new(device),
            now_ns: 1,
            socket: None,
            inbox: Vec::new(),
            next_id: 0,
            waiting: Vec::new(),
            is_wild: false,
            asked: VecDeque::new(),
        }
    }

    /// A new connection, after the old one has ended. The version is not agreed on.
    pub fn connect(&mut self) {
        self.server.disconnect();
        self.server.do_pending_work(self.now_ns);
        self.inbox.clear();
        self.waiting.clear();
        self.is_wild = false;
        self.asked.clear();
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        ours.set_nonblocking(true).expect("a socket");
        self.server
            .attach_connection(theirs)
            .expect("no front-end is connected");
        self.socket = Some(ours);
    }

    pub fn agree(&mut self) {
        let text = br#"{"capabilities":{"max_msg_fds":16,"max_data_xfer_size":1048576,"write_multiple":true}}"#;
        let payload = [&[0; 4], &text[..], &[0]].concat();
        self.command(command::VERSION, &payload, None);
    }

    pub fn map(&mut self, address: u64, size: u64, fd: Option<BorrowedFd>) {
        let mut payload = Vec::new();
        DmaMap {
            argsz: DmaMap::SIZE,
            flags: wire::DMA_READ_ALLOWED | wire::DMA_WRITE_ALLOWED,
            offset: 0,
            address,
            size,
        }
        .encode(&mut payload);
        self.command(command::DMA_MAP, &payload, fd);
    }

    pub fn unmap(&mut self, address: u64, size: u64) {
        let mut payload = Vec::new();
        DmaUnmap {
            argsz: DmaUnmap::SIZE,
            flags: 0,
            address,
            size,
        }
        .encode(&mut payload);
        self.command(command::DMA_UNMAP, &payload, None);
    }

    /// Sends a command, which is carried out as far as it does not have to wait.
    pub fn command(&mut self, command: u16, payload: &[u8], fd: Option<BorrowedFd>) {
        self.command_with(command, 0, payload, fd.as_slice());
    }

    /// The same with flags, and several descriptors.
    pub fn command_with(&mut self, command: u16, flags: u32, payload: &[u8], fds: &[BorrowedFd]) {
        self.next_id = self.next_id.wrapping_add(1);
        let header = Header {
            id: self.next_id,
            command,
            size: Header::SIZE + u32::try_from(payload.len()).expect("a short one"),
            flags,
            ..Header::default()
        };
        if flags & wire::NO_REPLY == 0 {
            self.waiting.push((header.id, command));
        }
        let mut bytes = Vec::new();
        header.encode(&mut bytes);
        bytes.extend_from_slice(payload);
        self.send(&bytes, fds);
    }

    /// Sends what may be no message.
    pub fn send_anything(&mut self, bytes: &[u8], fds: &[BorrowedFd]) {
        self.is_wild = true;
        self.send(bytes, fds);
    }

    fn send(&mut self, bytes: &[u8], fds: &[BorrowedFd]) {
        let Some(socket) = &self.socket else {
            return;
        };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(32))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        // It fails when the server has hung up.
        let _ = sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags);
        self.server.handle_readable(self.now_ns);
        self.receive();
    }

    /// Reads what the server has sent. Replies are to what was asked, once each.
    pub fn receive(&mut self) {
        let Some(socket) = &mut self.socket else {
            return;
        };
        let mut some = [0; 16384];
        while let Ok(count @ 1..) = socket.read(&mut some) {
            self.inbox.extend_from_slice(&some[..count]);
            self.server.handle_writable();
        }
        while let Some(header) = Header::decode(&self.inbox) {
            let end = usize::try_from(header.size).expect("32 bits");
            assert!(end >= Header::BYTES, "{header:?}");
            let Some(payload) = self.inbox.get(Header::BYTES..end) else {
                break;
            };
            if header.flags & wire::TYPE_MASK == wire::TYPE_COMMAND {
                let access = DmaAccess::decode(payload).expect("an access to memory");
                let data = payload[DmaAccess::BYTES..].to_vec();
                self.asked.push_back(PendingAccess {
                    header,
                    access,
                    data,
                });
            } else {
                let what = (header.id, header.command);
                match self.waiting.iter().position(|waiting| *waiting == what) {
                    Some(asked) => _ = self.waiting.remove(asked),
                    None => assert!(self.is_wild, "a reply to something: {header:?}"),
                }
            }
            self.inbox.drain(..end);
        }
    }

    /// Whether all that it has sent were messages.
    pub fn is_tame(&self) -> bool {
        !self.is_wild
    }

    pub fn is_connected(&self) -> bool {
        self.server.socket().is_some()
    }

    /// Commands without a reply.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether the server waits for memory.
    pub fn asked(&self) -> bool {
        !self.asked.is_empty()
    }

    /// Answers what was asked for first; `memory` is at `address`. An error for what is outside of it, and unless `succeeds`.
    pub fn answer(&mut self, address: u64, memory: &mut [u8], succeeds: bool) {
        let Some(PendingAccess {
            header,
            access,
            data,
        }) = self.asked.pop_front()
        else {
            return;
        };
        let range = || {
            let start = usize::try_from(access.address.checked_sub(address)?).ok()?;
            let end = start.checked_add(usize::try_from(access.count).ok()?)?;
            (end <= memory.len()).then_some(start..end)
        };
        let range = range().filter(|_| succeeds);
        let mut payload = Vec::new();
        access.encode(&mut payload);
        match (header.command, &range) {
            (command::DMA_READ, Some(range)) => payload.extend_from_slice(&memory[range.clone()]),
            (_, Some(range)) => memory[range.clone()].copy_from_slice(&data),
            _ => payload.clear(),
        }
        let mut bytes = Vec::new();
        Header {
            size: Header::SIZE + u32::try_from(payload.len()).expect("as asked"),
            flags: wire::TYPE_REPLY | if range.is_none() { wire::ERROR } else { 0 },
            errno: if range.is_none() { 14 } else { 0 },
            ..header
        }
        .encode(&mut bytes);
        bytes.extend_from_slice(&payload);
        self.send(&bytes, &[]);
    }
}
