//! A vhost-user session: negotiation, memory, and starting and stopping of queues.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::{Shutdown, shutdown};

use super::connection::Connection;
use super::doorbells::{Doorbells, Waiter};
use super::layout::QueuePlace;
use super::memory::SharedMemory;
use super::requests::SECTOR_BYTES;
use super::wire::{
    F_PROTOCOL_FEATURES, PROTOCOL_F_CONFIG, PROTOCOL_F_INFLIGHT_SHMFD, PROTOCOL_F_MQ,
    PROTOCOL_F_REPLY_ACK, Payload, Request,
};
use crate::error::{Error, Result};

/// Virtio features (specification 1.2, sections 2.7.10 and 6), and those of block devices (5.2.3).
const F_RO: u64 = 1 << 5;
const F_BLK_SIZE: u64 = 1 << 6;
const F_FLUSH: u64 = 1 << 9;
const F_MQ: u64 = 1 << 12;
const F_DISCARD: u64 = 1 << 13;
const F_EVENT_IDX: u64 = 1 << 29;
const F_VERSION_1: u64 = 1 << 32;

/// Without these there is no disk to measure: old devices have another byte order, and the disk's
/// size is in the configuration.
const DEMANDED: u64 = F_VERSION_1 | F_PROTOCOL_FEATURES;
const DEMANDED_PROTOCOL: u64 = PROTOCOL_F_CONFIG;
/// Taken where they are offered.
const OPTIONAL: u64 = F_EVENT_IDX;
const OPTIONAL_OF_DISKS: u64 = F_RO | F_BLK_SIZE | F_FLUSH | F_MQ | F_DISCARD;
const OPTIONAL_PROTOCOL: u64 = PROTOCOL_F_MQ | PROTOCOL_F_REPLY_ACK;

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

    /// The disk takes discards.
    #[must_use]
    pub fn discard(&self) -> bool {
        self.features & F_DISCARD != 0
    }

    /// Writes are durable only after a flush.
    #[must_use]
    pub fn flush(&self) -> bool {
        self.features & F_FLUSH != 0
    }
}

/// A front-end that has agreed on features with the server. Dropped, it disconnects.
#[derive(Debug)]
pub struct Session {
    connection: Connection,
    agreed: SessionParameters,
}

impl Session {
    /// Negotiates with a disk over a connected socket; the server can [record](Session::record) what is in flight if that is
    /// demanded.
    ///
    /// # Errors
    /// [`Error::Protocol`] when the server has not what we need; [`Error::Gone`]; [`Error::Io`].
    pub fn negotiate(stream: UnixStream, recorded: bool) -> Result<Self> {
        let more = if recorded {
            PROTOCOL_F_INFLIGHT_SHMFD
        } else {
            0
        };
        let (mut connection, features, num_queues) = agree(
            stream,
            OPTIONAL | OPTIONAL_OF_DISKS,
            DEMANDED_PROTOCOL | more,
        )?;
        let agreed = disk(&mut connection, features, num_queues)?;
        Ok(Session { connection, agreed })
    }

    /// Has the server record what is in flight, so that another one could go on after a crash. Before queues are started.
    ///
    /// # Errors
    /// [`Error::Protocol`] when the server refuses it; [`Error::Gone`]; [`Error::Io`].
    pub fn record(&mut self, num_queues: u16, queue_size: u16) -> Result<()> {
        let wanted = Payload::default()
            .u64(0) // bytes
            .u64(0) // offset
            .u16(num_queues)
            .u16(queue_size)
            .u32(0); // as a structure of C ends
        let connection = &mut self.connection;
        let (record, fd) = connection.get_with_fd(Request::GetInflightFd, &wanted)?;
        let (record, fd) = (Payload::of(record), fd.as_ref().map(AsFd::as_fd));
        connection.set(Request::SetInflightFd, &record, fd)
    }

    /// The same with a SCSI controller. What its disks are like they say themselves.
    ///
    /// # Errors
    /// As for [`Session::negotiate`].
    pub fn negotiate_scsi(stream: UnixStream) -> Result<Self> {
        let (connection, features, num_queues) = agree(stream, OPTIONAL, DEMANDED_PROTOCOL)?;
        let agreed = SessionParameters {
            features,
            capacity_bytes: 0,
            block_bytes: SECTOR_BYTES,
            num_queues,
        };
        Ok(Session { connection, agreed })
    }

    /// What was agreed on.
    #[must_use]
    pub fn agreed(&self) -> &SessionParameters {
        &self.agreed
    }

    /// The socket: readable, it says that the server has ended, since nothing else is sent unasked.
    #[must_use]
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }

    /// The process that listens, if the kernel knows it (`SO_PEERCRED`, unix(7)).
    #[must_use]
    pub fn server_pid(&self) -> Option<u32> {
        let credentials = rustix::net::sockopt::socket_peercred(self.connection.as_fd()).ok()?;
        u32::try_from(credentials.pid.as_raw_nonzero().get()).ok()
    }

    /// Returns once the server has handled all messages: the way to wait for them where it
    /// does not acknowledge.
    ///
    /// # Errors
    /// [`Error::Gone`] when it closed the connection over something; [`Error::Io`].
    pub fn settle(&mut self) -> Result<()> {
        self.connection.get_u64(Request::GetFeatures).map(drop)
    }

    /// Ends the connection, and waits until the server has closed its end, at most a second. qemu-storage-daemon 7.2 hangs
    /// when it is stopped before, and refuses the next front-end when that connects before.
    ///
    /// # Errors
    /// [`Error::Io`] when descriptors have run out.
    pub fn disconnect(self) -> Result<()> {
        const CLOSE_LIMIT: Duration = Duration::from_secs(1);
        // An error says that the server has closed its end already.
        let _ = shutdown(self.socket(), Shutdown::Write);
        match Waiter::new([], self.socket())?.wait(CLOSE_LIMIT) {
            Ok(_) | Err(Error::Gone) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Gives the server the guest's memory: all of it, as one region.
    ///
    /// # Errors
    /// [`Error::Protocol`] when the server refuses it; [`Error::Io`].
    pub fn share(&mut self, memory: &SharedMemory) -> Result<()> {
        let payload = Payload::default()
            .u32(1) // regions
            .u32(0) // padding
            .u64(0) // guest address
            .u64(memory.len() as u64)
            .u64(memory.user_addr(0))
            .u64(0); // offset in the descriptor
        self.connection
            .set(Request::SetMemTable, &payload, Some(memory.fd()))
    }

    /// Starts the queue `index`, whose rings are at `place` and empty.
    ///
    /// # Errors
    /// [`Error::Protocol`] when the server refuses it; [`Error::Io`].
    pub fn start_queue(
        &mut self,
        index: u8,
        memory: &SharedMemory,
        place: QueuePlace,
        doorbells: &Doorbells,
    ) -> Result<()> {
        let vring = |value: u32| Payload::default().u32(u32::from(index)).u32(value);
        let with_fd = Payload::default().u64(u64::from(index));
        let addresses = vring(0) // flags: nothing is logged
            .u64(memory.user_addr(place.desc))
            .u64(memory.user_addr(place.used))
            .u64(memory.user_addr(place.avail))
            .u64(0); // address of the log
        let connection = &mut self.connection;
        connection.set(Request::SetVringNum, &vring(u32::from(place.size)), None)?;
        connection.set(Request::SetVringBase, &vring(0), None)?;
        connection.set(Request::SetVringAddr, &addresses, None)?;
        let call = Some(doorbells.call_fd());
        connection.set(Request::SetVringCall, &with_fd, call)?;
        let kick = Some(doorbells.kick_fd());
        connection.set(Request::SetVringKick, &with_fd, kick)?;
        connection.set(Request::SetVringEnable, &vring(1), None)
    }

    /// Stops the queue `index` once its requests have completed.
    ///
    /// # Errors
    /// [`Error::Protocol`] when the server refuses it; [`Error::Io`].
    pub fn stop_queue(&mut self, index: u8) -> Result<()> {
        let payload = Payload::default().u32(u32::from(index)).u32(0);
        self.connection.get(Request::GetVringBase, &payload)?;
        Ok(())
    }
}

/// Features, of the virtio ones those that are demanded and `optional` ones, of the protocol's the `demanded` ones; and how
/// many queues there are.
fn agree(stream: UnixStream, optional: u64, demanded: u64) -> Result<(Connection, u64, u64)> {
    let mut connection = Connection::new(stream)?;
    let offered = connection.get_u64(Request::GetFeatures)?;
    demand("virtio", DEMANDED, offered)?;
    let features = offered & (DEMANDED | optional);
    let offered = connection.get_u64(Request::GetProtocolFeatures)?;
    demand("protocol", demanded, offered)?;
    let protocol = offered & (demanded | OPTIONAL_PROTOCOL);
    let payload = Payload::default().u64(protocol);
    connection.set(Request::SetProtocolFeatures, &payload, None)?;
    connection.acknowledged = protocol & PROTOCOL_F_REPLY_ACK != 0;
    connection.set(Request::SetOwner, &Payload::default(), None)?;
    let num_queues = if protocol & PROTOCOL_F_MQ == 0 {
        1
    } else {
        connection.get_u64(Request::GetQueueNum)?
    };
    let payload = Payload::default().u64(features);
    connection.set(Request::SetFeatures, &payload, None)?;
    Ok((connection, features, num_queues))
}

fn demand(kind: &str, wanted: u64, offered: u64) -> Result<()> {
    match wanted & !offered {
        0 => Ok(()),
        missing => Err(Error::Protocol(format!(
            "the server lacks {kind} features that we need: {missing:#x}"
        ))),
    }
}

/// Reads the configuration as far as it matters (virtio specification 1.2, section 5.2.4):
/// capacity in sectors, and `blk_size`.
fn disk(connection: &mut Connection, features: u64, num_queues: u64) -> Result<SessionParameters> {
    const CONFIG_BYTES: u32 = 24;
    /// Of a `CONFIG` message, before the bytes: offset, size, flags.
    const BEFORE: usize = 12;
    let request = Payload::default()
        .u32(0) // offset
        .u32(CONFIG_BYTES)
        .u32(0) // flags
        .zeroes(CONFIG_BYTES as usize);
    let config = connection.get(Request::GetConfig, &request)?;
    let config = config
        .get(BEFORE..BEFORE + CONFIG_BYTES as usize)
        .ok_or_else(|| Error::Protocol("the server did not tell the disk's size".to_owned()))?;
    let word = |at: usize| {
        u32::from_le_bytes([config[at], config[at + 1], config[at + 2], config[at + 3]])
    };
    let sectors = u64::from(word(0)) | u64::from(word(4)) << 32;
    let block_bytes = match features & F_BLK_SIZE {
        0 => 0,
        _ => word(20),
    };
    Ok(SessionParameters {
        features,
        capacity_bytes: sectors.saturating_mul(u64::from(SECTOR_BYTES)),
        // Servers that have nothing to say say 0.
        block_bytes: if block_bytes == 0 {
            SECTOR_BYTES
        } else {
            block_bytes
        },
        num_queues,
    })
}
