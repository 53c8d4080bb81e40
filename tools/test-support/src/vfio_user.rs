//! Front-ends of vfio-user: messages of any form, a connection that waits for replies, and a server driven on the test's thread.

pub mod connection;
pub mod rig;

use std::fs::File;
use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use vfio_user::wire::{self, DmaMap, DmaUnmap, Header, RegionAccess, SetIrqs};

/// A message with its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The header.
    pub header: Header,
    /// What follows it.
    pub payload: Vec<u8>,
}

impl Message {
    /// A command, or with these flags a reply.
    #[must_use]
    pub fn command(id: u16, command: u16, flags: u32, payload: &[u8]) -> Self {
        let header = Header {
            id,
            command,
            size: Header::SIZE + u32_len(payload),
            flags,
            errno: 0,
        };
        let payload = payload.to_vec();
        Message { header, payload }
    }

    /// As it is sent.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.header.encode(&mut bytes);
        bytes.extend_from_slice(&self.payload);
        bytes
    }
}

fn u32_len(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap()
}

/// The payload of a reply, which must be one to this command, or its error.
///
/// # Errors
/// The reply's.
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

/// Payload of `REGION_READ`, and of `REGION_WRITE` with its data.
#[must_use]
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

/// Payload of `DEVICE_SET_IRQS`.
#[must_use]
pub fn set_irqs(index: u32, flags: u32, count: u32, booleans: &[u8]) -> Vec<u8> {
    let mut payload = Vec::new();
    SetIrqs {
        argsz: SetIrqs::SIZE + u32_len(booleans),
        flags,
        index,
        start: 0,
        count,
    }
    .encode(&mut payload);
    payload.extend_from_slice(booleans);
    payload
}

/// Payload of `DMA_MAP`: memory that is read and written, from the beginning of its file on.
#[must_use]
pub fn map(address: u64, size: u64) -> Vec<u8> {
    let mut payload = Vec::new();
    DmaMap {
        argsz: DmaMap::SIZE,
        flags: wire::DMA_READ_ALLOWED | wire::DMA_WRITE_ALLOWED,
        offset: 0,
        address,
        size,
    }
    .encode(&mut payload);
    payload
}

/// Payload of `DMA_UNMAP`.
#[must_use]
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
#[must_use]
pub fn memory(bytes: u64) -> OwnedFd {
    let memory = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&memory, bytes).unwrap();
    memory
}

/// The same as a file.
#[must_use]
pub fn file(fd: &OwnedFd) -> File {
    fd.try_clone().unwrap().into()
}
