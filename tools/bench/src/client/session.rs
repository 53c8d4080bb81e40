//! A vhost-user session: negotiation, memory, and starting and stopping of queues. The messages are rust-vmm's.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::{Shutdown, shutdown};
use vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserInflight, VhostUserProtocolFeatures,
    VhostUserVirtioFeatures,
};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};

use super::doorbells::{Doorbells, Waiter};
use super::layout::QueuePlace;
use super::memory::SharedMemory;
use super::requests::SECTOR_BYTES;
use crate::error::{Error, Result};

/// A server that does not answer for this long will not.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);

/// Virtio features (specification 1.2, sections 2.7.10 and 6), and those of block devices (5.2.3).
const F_RO: u64 = 1 << 5;
const F_BLK_SIZE: u64 = 1 << 6;
const F_FLUSH: u64 = 1 << 9;
const F_MQ: u64 = 1 << 12;
const F_EVENT_IDX: u64 = 1 << 29;
const F_VERSION_1: u64 = 1 << 32;

/// Without these there is no disk to measure: old devices have another byte order, and the disk's size is in the configuration.
const DEMANDED: u64 = F_VERSION_1 | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();
/// Taken where they are offered.
const OPTIONAL_OF_DISKS: u64 = F_RO | F_BLK_SIZE | F_FLUSH | F_MQ;

/// The negotiated features, and the disk's properties.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionParameters {
    features: u64,
    /// The disk's size.
    pub capacity_bytes: u64,
    /// Smallest unit of a request.
    pub block_bytes: u32,
    /// How many queues the server has.
    pub num_queues: u64,
}

impl SessionParameters {
    /// Kicks and calls are asked for by index, and not by flags.
    #[must_use]
    pub fn event_idx(&self) -> bool {
        self.features & F_EVENT_IDX != 0
    }

    /// The disk refuses writes.
    #[must_use]
    pub fn read_only(&self) -> bool {
        self.features & F_RO != 0
    }

    /// Writes are durable only after a flush.
    #[must_use]
    pub fn flush(&self) -> bool {
        self.features & F_FLUSH != 0
    }
}

/// A front-end that has agreed on features with the server. Dropped, it disconnects.
pub struct Session {
    frontend: Frontend,
    socket: UnixStream,
    /// What was agreed on.
    pub agreed: SessionParameters,
}

impl Session {
    /// Negotiates with a disk over a connected socket; the server can [record](Session::record) what is in flight if that is
    /// demanded.
    ///
    /// # Errors
    /// [`Error::Protocol`] when the server has not what we need; [`Error::Gone`]; [`Error::Io`].
    pub fn negotiate(stream: UnixStream, recorded: bool) -> Result<Self> {
        let mut session = Self::agree(stream, OPTIONAL_OF_DISKS, recorded)?;
        session.read_config()?;
        Ok(session)
    }

    /// The same with a SCSI controller. What its disks are like they say themselves.
    ///
    /// # Errors
    /// As for [`Session::negotiate`].
    pub fn negotiate_scsi(stream: UnixStream) -> Result<Self> {
        Self::agree(stream, 0, false)
    }

    fn agree(stream: UnixStream, optional: u64, recorded: bool) -> Result<Self> {
        use VhostUserProtocolFeatures as Protocol;
        expect_answer(&stream)?;
        let socket = stream.try_clone().map_err(Error::io("clone a socket"))?;
        let mut frontend = Frontend::from_stream(stream, 1);
        let offered = frontend.get_features()?;
        demand("virtio", DEMANDED, offered)?;
        let features = offered & (DEMANDED | F_EVENT_IDX | optional);
        let offered = frontend.get_protocol_features()?;
        let mut demanded = Protocol::CONFIG;
        demanded.set(Protocol::INFLIGHT_SHMFD, recorded);
        demand("protocol", demanded.bits(), offered.bits())?;
        let protocol = offered & (demanded | Protocol::MQ | Protocol::REPLY_ACK);
        frontend.set_protocol_features(protocol)?;
        if protocol.contains(Protocol::REPLY_ACK) {
            frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        }
        frontend.set_owner()?;
        let num_queues = match protocol.contains(Protocol::MQ) {
            true => frontend.get_queue_num()?,
            false => 1,
        };
        frontend.set_features(features)?;
        let agreed = SessionParameters {
            features,
            capacity_bytes: 0,
            block_bytes: SECTOR_BYTES,
            num_queues,
        };
        Ok(Session {
            frontend,
            socket,
            agreed,
        })
    }

    /// Reads the configuration as far as it matters (virtio specification 1.2, section 5.2.4): capacity in sectors, and `blk_size`.
    fn read_config(&mut self) -> Result<()> {
        const BYTES: u32 = 24;
        let flags = VhostUserConfigFlags::empty();
        let (_, config) = self
            .frontend
            .get_config(0, BYTES, flags, &[0; BYTES as usize])?;
        let word = |at: usize| {
            u32::from_le_bytes([config[at], config[at + 1], config[at + 2], config[at + 3]])
        };
        let sectors = u64::from(word(0)) | u64::from(word(4)) << 32;
        self.agreed.capacity_bytes = sectors.saturating_mul(u64::from(SECTOR_BYTES));
        // Servers that have nothing to say say 0.
        if self.agreed.features & F_BLK_SIZE != 0 && word(20) != 0 {
            self.agreed.block_bytes = word(20);
        }
        Ok(())
    }

    /// Has the server record what is in flight, so that another one could go on after a crash. Before queues are started.
    ///
    /// # Errors
    /// [`Error::Protocol`] when the server refuses it; [`Error::Gone`].
    pub fn record(&mut self, num_queues: u16, queue_size: u16) -> Result<()> {
        let wanted = VhostUserInflight::new(0, 0, num_queues, queue_size);
        let (record, file) = self.frontend.get_inflight_fd(&wanted)?;
        Ok(self.frontend.set_inflight_fd(&record, file.as_raw_fd())?)
    }

    /// The socket: readable, it says that the server has ended, since nothing else is sent unasked.
    #[must_use]
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The process that listens, if the kernel knows it (`SO_PEERCRED`, unix(7)).
    #[must_use]
    pub fn server_pid(&self) -> Option<u32> {
        let credentials = rustix::net::sockopt::socket_peercred(&self.socket).ok()?;
        u32::try_from(credentials.pid.as_raw_nonzero().get()).ok()
    }

    /// Returns once the server has handled all messages: the way to wait for them where it does not acknowledge.
    ///
    /// # Errors
    /// [`Error::Gone`] when it closed the connection over something.
    pub fn settle(&mut self) -> Result<()> {
        Ok(self.frontend.get_features().map(drop)?)
    }

    /// Ends the connection, and waits until the server has closed its end, at most a second. qemu-storage-daemon 7.2 hangs
    /// when it is stopped before, and refuses the next front-end when that connects before.
    ///
    /// # Errors
    /// [`Error::Io`] when descriptors have run out.
    pub fn disconnect(self) -> Result<()> {
        const CLOSE_LIMIT: Duration = Duration::from_secs(1);
        // An error says that the server has closed its end already.
        let _ = shutdown(&self.socket, Shutdown::Write);
        match Waiter::new([], Some(self.socket()))?.wait(CLOSE_LIMIT) {
            Ok(_) | Err(Error::Gone) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Gives the server the guest's memory: all of it, as one region.
    ///
    /// # Errors
    /// [`Error::Protocol`] when the server refuses it.
    pub fn share(&mut self, memory: &SharedMemory) -> Result<()> {
        let region = VhostUserMemoryRegionInfo {
            guest_phys_addr: 0,
            memory_size: memory.len as u64,
            userspace_addr: user_addr(memory, 0),
            mmap_offset: 0,
            mmap_handle: memory.fd().as_raw_fd(),
        };
        Ok(self.frontend.set_mem_table(&[region]).map(drop)?)
    }

    /// Starts the queue `index`, whose rings are at `place` and empty.
    ///
    /// # Errors
    /// [`Error::Protocol`] when the server refuses it.
    pub fn start_queue(
        &mut self,
        index: u8,
        memory: &SharedMemory,
        place: QueuePlace,
        doorbells: &Doorbells,
    ) -> Result<()> {
        let (queue, frontend) = (usize::from(index), &mut self.frontend);
        frontend.set_vring_num(queue, place.size)?;
        frontend.set_vring_base(queue, 0)?;
        let addresses = VringConfigData {
            desc_table_addr: user_addr(memory, place.desc),
            used_ring_addr: user_addr(memory, place.used),
            avail_ring_addr: user_addr(memory, place.avail),
            ..VringConfigData::default()
        };
        frontend.set_vring_addr(queue, &addresses)?;
        frontend.set_vring_call(queue, &doorbells.call)?;
        frontend.set_vring_kick(queue, &doorbells.kick)?;
        Ok(frontend.set_vring_enable(queue, true)?)
    }

    /// Stops the queue `index` once its requests have completed.
    ///
    /// # Errors
    /// [`Error::Protocol`] when the server refuses it.
    pub fn stop_queue(&mut self, index: u8) -> Result<()> {
        Ok(self.frontend.get_vring_base(index.into()).map(drop)?)
    }
}

/// Asks for the features with a limit on the time, which rust-vmm's front-end does not have: a server that serves another front-end
/// does not answer.
fn expect_answer(mut stream: &UnixStream) -> Result<()> {
    // GET_FEATURES of version 1 without a payload; the reply is a number behind such a header.
    let message = [1_u32, 1, 0].map(u32::to_ne_bytes).concat();
    let answered = stream
        .set_read_timeout(Some(ANSWER_LIMIT))
        .and_then(|()| stream.write_all(&message))
        .and_then(|()| stream.read_exact(&mut [0; 20]))
        .and_then(|()| stream.set_read_timeout(None));
    answered.map_err(|error| match error.kind() {
        ErrorKind::WouldBlock => Error::Protocol(format!(
            "no answer within {ANSWER_LIMIT:?}: does another front-end use this disk?"
        )),
        ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => {
            Error::Gone
        }
        _ => Error::io("ask for the server's features")(error),
    })
}

fn user_addr(memory: &SharedMemory, guest_addr: usize) -> u64 {
    memory.host_pointer(guest_addr, 1) as u64
}

fn demand(kind: &str, wanted: u64, offered: u64) -> Result<()> {
    match wanted & !offered {
        0 => Ok(()),
        missing => Err(Error::Protocol(format!(
            "the server lacks {kind} features that we need: {missing:#x}"
        ))),
    }
}
