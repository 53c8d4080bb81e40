//! From a connection to started queues, and back.

use std::os::unix::net::UnixStream;

use super::connection::Connection;
use super::doorbells::Doorbells;
use super::layout::QueuePlace;
use super::memory::SharedMemory;
use super::wire::{
    F_PROTOCOL_FEATURES, PROTOCOL_F_CONFIG, PROTOCOL_F_MQ, PROTOCOL_F_REPLY_ACK, Payload, Request,
};
use crate::error::{Error, Result};

/// Virtio features (specification 1.2, sections 2.7.10 and 6).
const F_EVENT_IDX: u64 = 1 << 29;
const F_VERSION_1: u64 = 1 << 32;

/// Sectors of virtio-blk.
const SECTOR_BYTES: u64 = 512;

/// A front-end that has agreed on features with the server. Dropped, it disconnects.
#[derive(Debug)]
pub struct Session {
    connection: Connection,
    sectors: u64,
    num_queues: u64,
}

impl Session {
    /// Negotiates over a connected socket.
    ///
    /// # Errors
    /// [`Error::Protocol`] when the server has not what we need; [`Error::Io`].
    pub fn negotiate(stream: UnixStream) -> Result<Self> {
        let mut connection = Connection::new(stream)?;
        let wanted = F_VERSION_1 | F_EVENT_IDX | F_PROTOCOL_FEATURES;
        let offered = connection.get_u64(Request::GetFeatures)?;
        demand("virtio", wanted, offered)?;
        let protocol = PROTOCOL_F_MQ | PROTOCOL_F_REPLY_ACK | PROTOCOL_F_CONFIG;
        let offered = connection.get_u64(Request::GetProtocolFeatures)?;
        demand("protocol", protocol, offered)?;
        let payload = Payload::default().u64(protocol);
        connection.set(Request::SetProtocolFeatures, &payload, None)?;
        connection.acknowledged = true;
        connection.set(Request::SetOwner, &Payload::default(), None)?;
        let num_queues = connection.get_u64(Request::GetQueueNum)?;
        let sectors = capacity(&mut connection)?;
        let payload = Payload::default().u64(wanted);
        connection.set(Request::SetFeatures, &payload, None)?;
        Ok(Session {
            connection,
            sectors,
            num_queues,
        })
    }

    /// The disk's size in bytes.
    #[must_use]
    pub fn capacity_bytes(&self) -> u64 {
        self.sectors * SECTOR_BYTES
    }

    /// How many queues the server has.
    #[must_use]
    pub fn num_queues(&self) -> u64 {
        self.num_queues
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

fn demand(kind: &str, wanted: u64, offered: u64) -> Result<()> {
    match wanted & !offered {
        0 => Ok(()),
        missing => Err(Error::Protocol(format!(
            "the server lacks {kind} features that we need: {missing:#x}"
        ))),
    }
}

/// The first field of the configuration (virtio specification 1.2, section 5.2.4), in sectors.
fn capacity(connection: &mut Connection) -> Result<u64> {
    const CAPACITY_BYTES: u32 = 8;
    let request = Payload::default()
        .u32(0) // offset
        .u32(CAPACITY_BYTES)
        .u32(0) // flags
        .zeroes(CAPACITY_BYTES as usize);
    let config = connection.get(Request::GetConfig, &request)?;
    let capacity = config.get(12..20).and_then(|bytes| bytes.try_into().ok());
    capacity
        .map(u64::from_le_bytes)
        .ok_or_else(|| Error::Protocol("the server did not tell the disk's capacity".to_owned()))
}
