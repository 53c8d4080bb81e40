//! vhost-user connection that can send arbitrary messages.
//!
//! Request codes and payloads are those of QEMU's "Vhost-user Protocol" document. Raw messages are not checked: what is wrong with
//! one is the test's intention.

#![allow(missing_docs, reason = "requests have the protocol's names")]

use std::fmt::Display;
use std::io::{IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recvmsg};
use virtqueue::testing::TestMemory;

pub use crate::fds::MOST_FDS;
use crate::fds::send_with_fds;
use crate::sockets::{connect, limited};

pub const GET_FEATURES: u32 = 1;
pub const SET_FEATURES: u32 = 2;
pub const SET_OWNER: u32 = 3;
pub const RESET_OWNER: u32 = 4;
pub const SET_MEM_TABLE: u32 = 5;
pub const SET_LOG_BASE: u32 = 6;
pub const SET_LOG_FD: u32 = 7;
pub const SET_VRING_NUM: u32 = 8;
pub const SET_VRING_ADDR: u32 = 9;
pub const SET_VRING_BASE: u32 = 10;
pub const GET_VRING_BASE: u32 = 11;
pub const SET_VRING_KICK: u32 = 12;
pub const SET_VRING_CALL: u32 = 13;
pub const SET_VRING_ERR: u32 = 14;
pub const GET_PROTOCOL_FEATURES: u32 = 15;
pub const SET_PROTOCOL_FEATURES: u32 = 16;
pub const GET_QUEUE_NUM: u32 = 17;
pub const SET_VRING_ENABLE: u32 = 18;
pub const SET_BACKEND_REQ_FD: u32 = 21;
pub const GET_CONFIG: u32 = 24;
pub const SET_CONFIG: u32 = 25;
pub const GET_INFLIGHT_FD: u32 = 31;
pub const SET_INFLIGHT_FD: u32 = 32;
pub const GPU_SET_SOCKET: u32 = 33;
pub const RESET_DEVICE: u32 = 34;
pub const GET_MAX_MEM_SLOTS: u32 = 36;
pub const ADD_MEM_REG: u32 = 37;
pub const REM_MEM_REG: u32 = 38;
pub const GET_SHARED_OBJECT: u32 = 41;
pub const SET_DEVICE_STATE_FD: u32 = 42;
pub const CHECK_DEVICE_STATE: u32 = 43;
pub const GET_SHMEM_CONFIG: u32 = 44;

/// The version that there is, in a header's flags.
pub const VERSION: u32 = 1;
/// In a header's flags: this is a reply.
pub const REPLY: u32 = 4;
/// In a header's flags: say how it went.
pub const NEED_REPLY: u32 = 8;

/// In the payload of KICK, CALL and ERR: there is no descriptor.
pub const NO_FD: u64 = 0x100;

/// The server has ended, or has closed the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disconnected;

/// A connection.
#[derive(Debug)]
pub struct Wire(UnixStream);

impl Wire {
    /// Connects to a server that listens.
    pub fn connect(path: &Path) -> Self {
        Wire::new(connect(path))
    }

    /// Over a socket that is connected.
    pub fn new(stream: UnixStream) -> Self {
        // A server that neither answers nor hangs up fails the test instead of stopping it.
        Wire(limited(stream))
    }

    /// The socket. Nothing is sent there unasked: readable, it has ended.
    #[must_use]
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Sends bytes with descriptors. A server that has hung up already does not hear them.
    pub fn bytes(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        match send_with_fds(&self.0, bytes, fds, SendFlags::NOSIGNAL) {
            Ok(sent) => assert_eq!(sent, bytes.len()),
            Err(Errno::PIPE | Errno::CONNRESET) => {}
            Err(error) => panic!("the server does not read: {error}"),
        }
    }

    /// Sends a message with flags of any kind.
    pub fn message(&self, request: u32, flags: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) {
        let size = u32::try_from(payload.len()).unwrap();
        self.bytes(&[&header(request, flags, size), payload].concat(), fds);
    }

    /// The next reply's payload; `None` when the server has hung up.
    #[track_caller]
    pub fn reply(&self, request: u32) -> Option<Vec<u8>> {
        let mut head = [0; 12];
        let what = format_args!("a reply to request {request}");
        self.fill(&mut head, what)?;
        assert_eq!(
            head[..4],
            request.to_ne_bytes(),
            "a reply to something else"
        );
        assert_eq!(
            head[4..8],
            (VERSION | REPLY).to_ne_bytes(),
            "flags of a reply"
        );
        let mut payload = vec![0; u32_at(&head, 8) as usize];
        self.fill(&mut payload, what)?;
        Some(payload)
    }

    #[track_caller]
    fn fill(&self, bytes: &mut [u8], what: impl Display) -> Option<()> {
        use std::io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
        match (&self.0).read_exact(bytes) {
            Ok(()) => Some(()),
            // A reset says that the server did not read all that we sent.
            Err(error) if [UnexpectedEof, ConnectionReset, BrokenPipe].contains(&error.kind()) => {
                None
            }
            Err(error) => panic!("neither {what} nor an end: {error}"),
        }
    }

    /// Sends a message and waits for its reply.
    #[track_caller]
    pub fn ask(&self, request: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) -> Option<Vec<u8>> {
        self.message(request, VERSION | NEED_REPLY, payload, fds);
        self.reply(request)
    }

    /// Sends a message that succeeds.
    ///
    /// # Errors
    /// [`Disconnected`].
    #[track_caller]
    pub fn must(
        &self,
        request: u32,
        payload: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), Disconnected> {
        let answer = self.ask(request, payload, fds).ok_or(Disconnected)?;
        assert_eq!(answer, u64s(&[0]), "request {request}");
        Ok(())
    }

    /// Sends a message with a reply of its own, and waits for that.
    ///
    /// # Errors
    /// [`Disconnected`].
    #[track_caller]
    pub fn query(&self, request: u32, payload: &[u8]) -> Result<Vec<u8>, Disconnected> {
        self.message(request, VERSION, payload, &[]);
        self.reply(request).ok_or(Disconnected)
    }

    /// The same for a reply with a descriptor.
    ///
    /// # Errors
    /// [`Disconnected`].
    #[track_caller]
    pub fn query_file(
        &self,
        request: u32,
        payload: &[u8],
    ) -> Result<(Vec<u8>, OwnedFd), Disconnected> {
        self.message(request, VERSION, payload, &[]);
        let mut head = [0; 12];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = rustix::io::retry_on_intr(|| {
            let flags = RecvFlags::CMSG_CLOEXEC;
            let mut bytes = [IoSliceMut::new(&mut head)];
            recvmsg(&self.0, &mut bytes, &mut ancillary, flags)
        });
        let file = ancillary.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut files) => files.next(),
            _ => None,
        });
        let what = format_args!("a descriptor in reply to request {request}");
        // One that neither answers nor hangs up is not gone.
        if let Err(Errno::AGAIN) = received {
            panic!("neither {what} nor an end");
        }
        let (Ok(_), Some(file)) = (received, file) else {
            return Err(Disconnected);
        };
        let mut payload = vec![0; u32_at(&head, 8) as usize];
        self.fill(&mut payload, what).ok_or(Disconnected)?;
        Ok((payload, file))
    }

    /// The server's features.
    ///
    /// # Errors
    /// [`Disconnected`].
    pub fn offered_features(&self) -> Result<u64, Disconnected> {
        let reply = self.query(GET_FEATURES, &[])?;
        Ok(u64::from_ne_bytes(reply.try_into().unwrap()))
    }

    /// Begins a session: owner, features of the server, protocol features, of which `REPLY_ACK` must be one for [`Wire::must`].
    /// Features of the device are chosen afterwards, so that the server acknowledges them.
    ///
    /// # Errors
    /// [`Disconnected`].
    pub fn begin_session(&self, protocol_features: u64) -> Result<(), Disconnected> {
        self.message(SET_OWNER, VERSION, &[], &[]);
        // Servers refuse a choice before the offer was read.
        self.offered_features()?;
        let payload = u64s(&[protocol_features]);
        self.message(SET_PROTOCOL_FEATURES, VERSION, &payload, &[]);
        Ok(())
    }

    /// Shares all of a guest's memory.
    ///
    /// # Errors
    /// [`Disconnected`].
    #[track_caller]
    pub fn share_memory(&self, memory: &TestMemory) -> Result<(), Disconnected> {
        let regions = mem_regions(memory);
        let files: Vec<_> = (0..regions.len())
            .map(|index| memory.region_file(index))
            .collect();
        self.must(SET_MEM_TABLE, &mem_table(&regions), &files)
    }

    /// Lets a queue be read, or not.
    ///
    /// # Errors
    /// [`Disconnected`].
    #[track_caller]
    pub fn enable(&self, index: u32, enabled: bool) -> Result<(), Disconnected> {
        self.must(SET_VRING_ENABLE, &u32s(&[index, enabled.into()]), &[])
    }

    /// Stops a queue, of which all requests that were taken are answered then; returns where it continues.
    ///
    /// # Errors
    /// [`Disconnected`].
    pub fn stop(&self, index: u32) -> Result<u32, Disconnected> {
        let reply = self.query(GET_VRING_BASE, &u32s(&[index, 0]))?;
        Ok(u32_at(&reply, 4))
    }

    /// The first bytes of the device's configuration space.
    ///
    /// # Errors
    /// [`Disconnected`].
    pub fn config<const N: usize>(&self) -> Result<[u8; N], Disconnected> {
        let len = u32::try_from(N).unwrap();
        let reply = self.query(GET_CONFIG, &config(0, len, 0, &[0; N]))?;
        Ok(reply[12..].try_into().unwrap())
    }

    /// Whether the server still answers.
    pub fn is_connected(&self) -> bool {
        self.offered_features().is_ok()
    }

    /// Waits until the server closes the connection.
    #[track_caller]
    pub fn wait_for_hang_up(&self) {
        let mut byte = [0];
        let ended = self.fill(&mut byte, "a message");
        assert_eq!(ended, None, "still connected: {byte:?}");
    }

    /// Says that nothing more will come.
    pub fn end_of_messages(&self) {
        self.0.shutdown(Shutdown::Write).unwrap();
    }
}

pub fn header(request: u32, flags: u32, size: u32) -> Vec<u8> {
    u32s(&[request, flags, size])
}

pub fn u32s(numbers: &[u32]) -> Vec<u8> {
    numbers
        .iter()
        .flat_map(|number| number.to_ne_bytes())
        .collect()
}

pub fn u64s(numbers: &[u64]) -> Vec<u8> {
    numbers
        .iter()
        .flat_map(|number| number.to_ne_bytes())
        .collect()
}

pub fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_ne_bytes(bytes[offset..offset + 4].try_into().unwrap())
}

/// A memory region as messages describe it.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    pub guest_addr: u64,
    pub len: u64,
    pub user_addr: u64,
    pub offset: u64,
}

impl Region {
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        u64s(&[self.guest_addr, self.len, self.user_addr, self.offset])
    }
}

/// The regions of a guest's memory.
pub fn mem_regions(memory: &TestMemory) -> Vec<Region> {
    let memory = memory.guest_memory();
    let regions = memory.regions().iter().map(|region| Region {
        guest_addr: region.guest_addr,
        len: region.len,
        user_addr: region.user_addr,
        offset: 0,
    });
    regions.collect()
}

/// Payload of `SET_MEM_TABLE`.
pub fn mem_table(regions: &[Region]) -> Vec<u8> {
    let mut payload = u32s(&[u32::try_from(regions.len()).unwrap(), 0]);
    payload.extend(regions.iter().flat_map(Region::bytes));
    payload
}

/// Payload of `ADD_MEM_REG` and `REM_MEM_REG`.
pub fn single_region(region: Region) -> Vec<u8> {
    [u64s(&[0]), region.bytes()].concat()
}

/// Payload of `SET_VRING_ADDR`.
pub fn vring_addr(index: u32, flags: u32, desc: u64, avail: u64, used: u64) -> Vec<u8> {
    [u32s(&[index, flags]), u64s(&[desc, used, avail, 0])].concat()
}

/// Payload of `GET_CONFIG` and `SET_CONFIG`.
pub fn config(offset: u32, size: u32, flags: u32, bytes: &[u8]) -> Vec<u8> {
    [u32s(&[offset, size, flags]), bytes.to_vec()].concat()
}
