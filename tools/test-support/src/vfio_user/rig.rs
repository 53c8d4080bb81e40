//! Server and front-end on one thread, for tests that do not depend on time.

use std::io::{ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::net::SendFlags;
use vfio_user::testing::Scratch;
use vfio_user::wire::{Header, NO_REPLY, RegionAccess, command};
use vfio_user::{PciDevice, Server};

use super::{Message, access, map, result, set_irqs};
use crate::deadline::Deadline;
use crate::fds::send_with_fds;

/// What QEMU 11.1 proposes.
pub const QEMU_VERSION: &str = r#"{"capabilities": {"pgsizes": 4096, "max_msg_fds": 16, "max_dma_maps": 65535, "max_data_xfer_size": 1048576, "migration": {"max_bitmap_size": 268435456, "pgsize": 4096}, "write_multiple": true}}"#;

/// A server and its front-end.
pub struct Rig<D = Scratch> {
    /// The server.
    pub server: Server<D>,
    /// The other end of its socket.
    pub front_end: UnixStream,
    /// The time as the server has it.
    pub now_ns: u64,
    inbox: Vec<u8>,
    next_id: u16,
}

impl Default for Rig {
    fn default() -> Self {
        Self::new()
    }
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
    /// Connected to a server of this device.
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

    /// Agrees on the version, as QEMU does.
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

    /// Whether the server has a front-end.
    pub fn is_connected(&self) -> bool {
        self.server.socket().is_some()
    }

    /// The server does all that it can.
    #[track_caller]
    pub fn turn(&mut self) {
        let deadline = Deadline::default();
        for _ in 0..4 {
            self.server.handle_readable(self.now_ns);
            self.server.handle_writable();
            self.server.handle_unmask();
            while self.server.do_pending_work(self.now_ns) {
                deadline.check("the device has nothing more to do");
            }
        }
    }

    /// Sends bytes, and descriptors with the first of them. What the socket does not take at once the
    /// server reads meanwhile. False: the server has hung up.
    pub fn send(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
        let (mut rest, mut fds) = (bytes, fds);
        let deadline = Deadline::default();
        while !rest.is_empty() {
            deadline.check("the server reads what is sent");
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match send_with_fds(&self.front_end, rest, fds, flags) {
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
        let deadline = Deadline::default();
        while let Ok(count @ 1..) = self.front_end.read(&mut some) {
            deadline.check("the end of what the server sends");
            self.inbox.extend_from_slice(&some[..count]);
            self.server.handle_writable();
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

    /// Shares memory, or says where it is.
    pub fn map(&mut self, address: u64, size: u64, fd: Option<&OwnedFd>) -> Result<(), Errno> {
        let payload = map(address, size);
        let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
        let reply = self.call(command::DMA_MAP, &payload, &fds)?;
        assert!(reply.is_empty());
        Ok(())
    }

    /// Reads from a region.
    pub fn read(&mut self, region: u32, offset: u64, count: u32) -> Result<Vec<u8>, Errno> {
        let payload = access(region, offset, count, &[]);
        let reply = self.call(command::REGION_READ, &payload, &[])?;
        assert_eq!(reply[..payload.len()], payload);
        assert_eq!(reply.len(), payload.len() + count as usize);
        Ok(reply[payload.len()..].to_vec())
    }

    /// Writes to a region.
    pub fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let payload = access(region, offset, u32::try_from(data.len()).unwrap(), data);
        let reply = self.call(command::REGION_WRITE, &payload, &[])?;
        assert_eq!(reply, payload[..RegionAccess::BYTES]);
        Ok(())
    }

    /// The same without a reply.
    pub fn post(&mut self, region: u32, offset: u64, data: &[u8]) {
        let payload = access(region, offset, u32::try_from(data.len()).unwrap(), data);
        self.begin(command::REGION_WRITE, NO_REPLY, &payload, &[]);
    }

    /// Connects, masks or unmasks the interrupt.
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
    server.attach_connection(socket).unwrap();
    front_end
}
