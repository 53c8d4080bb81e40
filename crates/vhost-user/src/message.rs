//! Encoding of messages as a front-end sends them, in bytes and descriptors: in a live upgrade a connection's state is handed over
//! as the messages that restore it.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use vhost::vhost_user::message::{VhostUserInflight, VhostUserMemoryRegion};

use crate::vring::RingAddresses;

/// A message of a front-end.
#[derive(Debug)]
pub struct Message {
    /// Header and payload.
    pub bytes: Vec<u8>,
    /// The descriptors that it passes.
    pub fds: Vec<OwnedFd>,
}

/// Requests, see QEMU's "Vhost-user Protocol".
#[derive(Clone, Copy)]
#[repr(u32)]
pub(crate) enum RequestCode {
    GetFeatures = 1,
    SetFeatures = 2,
    SetMemTable = 5,
    SetVringNum = 8,
    SetVringAddr = 9,
    SetVringBase = 10,
    SetVringKick = 12,
    SetVringCall = 13,
    SetVringErr = 14,
    GetProtocolFeatures = 15,
    SetProtocolFeatures = 16,
    SetVringEnable = 18,
    SetBackendReqFd = 21,
    SetInflightFd = 32,
    AddMemReg = 37,
}

/// The flags of a message that wants no answer.
const VERSION_1: u32 = 1;
/// In a message that sets a queue's descriptor: there is none.
const NO_FD: u64 = 1 << 8;
/// Most descriptors of a message.
const MAX_FDS: usize = 32;

impl Message {
    /// A message with this payload, in parts, and duplicates of these descriptors.
    fn new(request: RequestCode, payload: &[&[u8]], fds: &[BorrowedFd<'_>]) -> io::Result<Self> {
        let payload = payload.concat();
        let size = u32::try_from(payload.len()).map_err(io::Error::other)?;
        let header = [request as u32, VERSION_1, size].map(u32::to_ne_bytes);
        let fds = fds.iter().map(|fd| fd.try_clone_to_owned());
        Ok(Message {
            bytes: [header.concat(), payload].concat(),
            fds: fds.collect::<io::Result<_>>()?,
        })
    }

    /// A message without a payload.
    pub(crate) fn encode_without_payload(request: RequestCode) -> io::Result<Self> {
        Self::new(request, &[], &[])
    }

    /// A message with a number.
    pub(crate) fn encode_with_number(request: RequestCode, number: u64) -> io::Result<Self> {
        Self::new(request, &[&number.to_ne_bytes()], &[])
    }

    /// A message with a number for one queue.
    pub(crate) fn encode_with_queue_number(
        request: RequestCode,
        index: u16,
        number: u32,
    ) -> io::Result<Self> {
        let index = u32::from(index).to_ne_bytes();
        Self::new(request, &[&index, &number.to_ne_bytes()], &[])
    }

    /// A message with a descriptor for one queue, or that it has none.
    pub(crate) fn encode_with_queue_fd(
        request: RequestCode,
        index: u16,
        fd: Option<BorrowedFd<'_>>,
    ) -> io::Result<Self> {
        let index = u64::from(index) | if fd.is_none() { NO_FD } else { 0 };
        Self::new(request, &[&index.to_ne_bytes()], fd.as_slice())
    }

    /// `SET_VRING_ADDR`: the addresses of a queue's rings.
    pub(crate) fn encode_set_vring_addr(index: u16, rings: RingAddresses) -> io::Result<Self> {
        let RingAddresses { desc, avail, used } = rings;
        let head = [u32::from(index), 0].map(u32::to_ne_bytes).concat();
        let rings = [desc, used, avail, 0].map(u64::to_ne_bytes).concat();
        Self::new(RequestCode::SetVringAddr, &[&head, &rings], &[])
    }

    /// `ADD_MEM_REG`: one memory region.
    pub(crate) fn encode_add_mem_reg(
        region: &VhostUserMemoryRegion,
        file: BorrowedFd<'_>,
    ) -> io::Result<Self> {
        let padding = 0u64.to_ne_bytes();
        Self::new(
            RequestCode::AddMemReg,
            &[&padding, &encode_region(region)],
            &[file],
        )
    }

    /// `SET_MEM_TABLE`: all memory regions.
    pub(crate) fn encode_set_mem_table(
        regions: &[VhostUserMemoryRegion],
        files: &[BorrowedFd<'_>],
    ) -> io::Result<Self> {
        let count = u64::try_from(regions.len()).map_err(io::Error::other)?;
        let regions: Vec<u8> = regions.iter().flat_map(encode_region).collect();
        let count = count.to_ne_bytes();
        Self::new(RequestCode::SetMemTable, &[&count, &regions], files)
    }

    /// `SET_INFLIGHT_FD`: the file with the in-flight regions.
    pub(crate) fn encode_set_inflight_fd(
        description: &VhostUserInflight,
        file: BorrowedFd<'_>,
    ) -> io::Result<Self> {
        let VhostUserInflight {
            mmap_size,
            mmap_offset,
            num_queues,
            queue_size,
        } = *description;
        let bytes = [mmap_size, mmap_offset].map(u64::to_ne_bytes);
        let queues = [num_queues, queue_size, 0, 0].map(u16::to_ne_bytes);
        let payload = [bytes.concat(), queues.concat()];
        Self::new(RequestCode::SetInflightFd, &[&payload.concat()], &[file])
    }

    /// `SET_BACKEND_REQ_FD`: the socket for messages to the front-end.
    pub(crate) fn encode_set_backend_req_fd(socket: BorrowedFd<'_>) -> io::Result<Self> {
        Self::new(RequestCode::SetBackendReqFd, &[], &[socket])
    }

    /// Sends the message as a front-end does.
    pub(crate) fn send(&self, to: impl AsFd) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds: Vec<BorrowedFd<'_>> = self.fds.iter().map(AsFd::as_fd).collect();
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&fds)) {
            return Err(io::Error::other(
                "a message with more descriptors than there may be",
            ));
        }
        let slices = [IoSlice::new(&self.bytes)];
        let sent = sendmsg(to, &slices, &mut control, SendFlags::NOSIGNAL)?;
        match sent == self.bytes.len() {
            true => Ok(()),
            false => Err(io::Error::other("a message that was sent in pieces")),
        }
    }
}

/// A memory region as messages have it.
fn encode_region(region: &VhostUserMemoryRegion) -> Vec<u8> {
    let VhostUserMemoryRegion {
        guest_phys_addr,
        memory_size,
        user_addr,
        mmap_offset,
    } = *region;
    let numbers = [guest_phys_addr, memory_size, user_addr, mmap_offset];
    numbers.map(u64::to_ne_bytes).concat()
}
