//! A front-end for tests: both ends of the socket on one thread, so that nothing depends on time.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "each test uses a part of it; a test that cannot go on fails where it is"
)]

pub mod transcript;

use std::fs::File;
use std::io::{ErrorKind, IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use vfio_user::testing::Scratch;
use vfio_user::wire::{self, DmaMap, DmaUnmap, Header, RegionAccess, SetIrqs, command};
use vfio_user::{PciDevice, Server};

/// What QEMU 11.1 proposes.
pub const QEMU_VERSION: &str = r#"{"capabilities": {"pgsizes": 4096, "max_msg_fds": 16, "max_dma_maps": 65535, "max_data_xfer_size": 1048576, "migration": {"max_bitmap_size": 268435456, "pgsize": 4096}, "write_multiple": true}}"#;

pub const KEEP: u64 = vfio_user::testing::KEEP;

/// A message: what follows its header, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub header: Header,
    pub payload: Vec<u8>,
}

impl Message {
    pub fn command(id: u16, command: u16, flags: u32, payload: &[u8]) -> Self {
        let header = Header {
            id,
            command,
            size: Header::SIZE + payload.len() as u32,
            flags,
            errno: 0,
        };
        let payload = payload.to_vec();
        Message { header, payload }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.header.encode(&mut bytes);
        bytes.extend_from_slice(&self.payload);
        bytes
    }
}

/// A server and its front-end.
pub struct Rig<D = Scratch> {
    pub server: Server<D>,
    pub front_end: UnixStream,
    pub now_ns: u64,
    inbox: Vec<u8>,
    next_id: u16,
}

impl Rig {
    /// Connected, and nothing else.
    pub fn new() -> Self {
        Rig::around(Scratch::default())
    }

    /// The version is agreed on, as with QEMU.
    pub fn ready() -> Self {
        let mut rig = Rig::new();
        rig.agree();
        rig
    }
}

impl<D: PciDevice> Rig<D> {
    pub fn around(device: D) -> Self {
        let mut server = Server::new(device);
        let front_end = connect(&mut server);
        Rig {
            server,
            front_end,
            now_ns: 0,
            inbox: Vec::new(),
            next_id: 0,
        }
    }

    pub fn agree(&mut self) {
        let payload = [&[0; 4], QEMU_VERSION.as_bytes(), &[0]].concat();
        self.call(command::VERSION, &payload, &[]).unwrap();
    }

    /// Another front-end comes, after this one has gone.
    pub fn reconnect(&mut self) {
        self.front_end.shutdown(std::net::Shutdown::Both).unwrap();
        self.turn();
        assert!(!self.is_connected());
        self.connect();
    }

    /// A front-end comes; there is none.
    pub fn connect(&mut self) {
        self.inbox.clear();
        self.front_end = connect(&mut self.server);
    }

    pub fn is_connected(&self) -> bool {
        self.server.socket().is_some()
    }

    /// The server does all that it can.
    pub fn turn(&mut self) {
        for _ in 0..4 {
            self.server.readable(self.now_ns);
            self.server.writable();
            self.server.unmasked();
            while self.server.run(self.now_ns) {}
        }
    }

    /// Sends bytes, and descriptors with the first of them. What the socket does not take at once the
    /// server reads meanwhile. False: the server has hung up.
    pub fn send(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
        let (mut rest, mut fds) = (bytes, fds);
        while !rest.is_empty() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !fds.is_empty() {
                assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
            }
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match sendmsg(&self.front_end, &[IoSlice::new(rest)], &mut control, flags) {
                Ok(count) => {
                    rest = &rest[count..];
                    fds = &[];
                }
                Err(Errno::AGAIN) => self.turn(),
                Err(Errno::PIPE | Errno::CONNRESET) => return false,
                Err(error) => panic!("{error}"),
            }
        }
        true
    }

    /// The next message of the server's, if there is one already.
    pub fn receive(&mut self) -> Option<Message> {
        let mut some = [0; 65536];
        while let Ok(count @ 1..) = self.front_end.read(&mut some) {
            self.inbox.extend_from_slice(&some[..count]);
            self.server.writable();
        }
        let header = Header::decode(&self.inbox)?;
        let end = header.size as usize;
        assert!(end >= Header::BYTES, "{header:?}");
        let payload = self.inbox.get(Header::BYTES..end)?.to_vec();
        self.inbox.drain(..end);
        Some(Message { header, payload })
    }

    /// Whether the server has hung up.
    pub fn is_hung_up(&mut self) -> bool {
        self.turn();
        match self.front_end.read(&mut [0]) {
            Ok(count) => count == 0,
            // It had not read all that we sent.
            Err(error) => error.kind() == ErrorKind::ConnectionReset,
        }
    }

    /// Sends a command; gives the id that its reply will have.
    pub fn begin(
        &mut self,
        command: u16,
        flags: u32,
        payload: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> u16 {
        self.next_id += 1;
        let message = Message::command(self.next_id, command, flags, payload);
        assert!(self.send(&message.bytes(), fds), "hung up");
        self.turn();
        self.next_id
    }

    /// Sends a command and gives the payload of its reply, which must be the next message; or its error.
    pub fn call(
        &mut self,
        command: u16,
        payload: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<Vec<u8>, Errno> {
        let id = self.begin(command, 0, payload, fds);
        let reply = self.receive().expect("a reply");
        result(&reply, id, command)
    }

    pub fn map(&mut self, address: u64, size: u64, fd: Option<&OwnedFd>) -> Result<(), Errno> {
        let mut payload = Vec::new();
        DmaMap {
            argsz: DmaMap::SIZE,
            flags: wire::DMA_READ_ALLOWED | wire::DMA_WRITE_ALLOWED,
            offset: 0,
            address,
            size,
        }
        .encode(&mut payload);
        let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
        let reply = self.call(command::DMA_MAP, &payload, &fds)?;
        assert!(reply.is_empty());
        Ok(())
    }

    pub fn read(&mut self, region: u32, offset: u64, count: u32) -> Result<Vec<u8>, Errno> {
        let payload = access(region, offset, count, &[]);
        let reply = self.call(command::REGION_READ, &payload, &[])?;
        assert_eq!(reply[..payload.len()], payload);
        assert_eq!(reply.len(), payload.len() + count as usize);
        Ok(reply[payload.len()..].to_vec())
    }

    pub fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let payload = access(region, offset, data.len() as u32, data);
        let reply = self.call(command::REGION_WRITE, &payload, &[])?;
        assert_eq!(reply, payload[..RegionAccess::BYTES]);
        Ok(())
    }

    pub fn set_irqs(&mut self, flags: u32, count: u32, fd: Option<&OwnedFd>) -> Result<(), Errno> {
        let payload = set_irqs(0, flags, count, &[]);
        let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
        let reply = self.call(command::DEVICE_SET_IRQS, &payload, &fds)?;
        assert!(reply.is_empty());
        Ok(())
    }
}

fn connect<D: PciDevice>(server: &mut Server<D>) -> UnixStream {
    let (front_end, socket) = UnixStream::pair().unwrap();
    front_end.set_nonblocking(true).unwrap();
    server.connect(socket).unwrap();
    front_end
}

/// What a reply says; it has to be one to this command.
pub fn result(reply: &Message, id: u16, command: u16) -> Result<Vec<u8>, Errno> {
    let Header { flags, errno, .. } = reply.header;
    assert_eq!((reply.header.id, reply.header.command), (id, command));
    if flags == wire::TYPE_REPLY | wire::ERROR {
        assert!(reply.payload.is_empty(), "an error is only a header");
        return Err(Errno::from_raw_os_error(errno.cast_signed()));
    }
    assert_eq!((flags, errno), (wire::TYPE_REPLY, 0));
    Ok(reply.payload.clone())
}

pub fn access(region: u32, offset: u64, count: u32, data: &[u8]) -> Vec<u8> {
    let mut payload = Vec::new();
    RegionAccess {
        offset,
        region,
        count,
    }
    .encode(&mut payload);
    payload.extend_from_slice(data);
    payload
}

pub fn set_irqs(index: u32, flags: u32, count: u32, booleans: &[u8]) -> Vec<u8> {
    let mut payload = Vec::new();
    SetIrqs {
        argsz: SetIrqs::SIZE + booleans.len() as u32,
        flags,
        index,
        start: 0,
        count,
    }
    .encode(&mut payload);
    payload.extend_from_slice(booleans);
    payload
}

pub fn unmap(flags: u32, address: u64, size: u64) -> Vec<u8> {
    let mut payload = Vec::new();
    DmaUnmap {
        argsz: DmaUnmap::SIZE,
        flags,
        address,
        size,
    }
    .encode(&mut payload);
    payload
}

/// Memory to share.
pub fn memory(bytes: u64) -> OwnedFd {
    let memory = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&memory, bytes).unwrap();
    memory
}

pub fn file(fd: &OwnedFd) -> File {
    fd.try_clone().unwrap().into()
}

pub fn new_eventfd() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

/// How often an eventfd was signalled since it was last asked.
pub fn signals(fd: &OwnedFd) -> u64 {
    let mut count = [0; 8];
    match rustix::io::read(fd, &mut count) {
        Ok(_) => u64::from_ne_bytes(count),
        Err(error) => {
            assert_eq!(error, Errno::AGAIN);
            0
        }
    }
}
