//! Transfers between a device and memory of the front-end by messages: `VFIO_USER_DMA_READ` and `VFIO_USER_DMA_WRITE`.
//!
//! A transfer is split into messages of the size that the front-end accepts, a few of which are in flight at a time.
//! Replies come in any order, or never: then the transfer fails, but its messages stay pending until the front-end
//! disconnects, so that a late reply is not taken for that of another message.

use std::collections::VecDeque;

use rustix::io::Errno;

use crate::device::DmaId;
use crate::error::ProtocolViolation;
use crate::limits::{DMA_TIMEOUT_NS, MAX_PENDING_MESSAGES, MAX_TRANSFERS};
use crate::outgoing::OutgoingBuffer;
use crate::wire::{self, DmaAccess, Header, command};

/// The direction of a transfer, seen from the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DmaDirection {
    Read,
    Write,
}

impl DmaDirection {
    /// The number of the command for a transfer in this direction.
    fn command(self) -> u16 {
        match self {
            DmaDirection::Read => command::DMA_READ,
            DmaDirection::Write => command::DMA_WRITE,
        }
    }
}

/// An unfinished transfer.
struct DmaTransfer {
    id: DmaId,
    direction: DmaDirection,
    address: u64,
    data: Vec<u8>,
    /// Bytes for which messages were sent.
    requested_bytes: usize,
    /// Messages without a reply.
    pending_messages: usize,
    error: Option<Errno>,
    deadline_ns: u64,
}

impl DmaTransfer {
    /// Whether it has failed or all its messages were sent, and all that were sent have a reply.
    fn is_finished(&self) -> bool {
        self.pending_messages == 0
            && (self.error.is_some() || self.requested_bytes == self.data.len())
    }
}

/// A message that was sent and has no reply yet.
struct PendingDmaMessage {
    message_id: u16,
    direction: DmaDirection,
    transfer: DmaId,
    offset: usize,
    len: usize,
}

/// All transfers, in the order in which they began.
#[derive(Default)]
pub(crate) struct DmaTransfers {
    transfers: VecDeque<DmaTransfer>,
    pending: Vec<PendingDmaMessage>,
    finished: VecDeque<(DmaId, Result<Vec<u8>, Errno>)>,
    last_id: u64,
    last_message_id: u16,
}

impl DmaTransfers {
    /// The id for the next transfer.
    fn new_id(&mut self) -> DmaId {
        self.last_id += 1;
        DmaId(self.last_id)
    }

    /// Adds a transfer that fails at once.
    pub fn add_failed_transfer(&mut self, error: Errno) -> DmaId {
        let id = self.new_id();
        self.finished.push_back((id, Err(error)));
        id
    }

    /// Begins a transfer of as many bytes as `data` has.
    pub fn queue_or_fail_transfer(
        &mut self,
        direction: DmaDirection,
        address: u64,
        data: Vec<u8>,
        now_ns: u64,
    ) -> DmaId {
        if self.transfers.len() >= MAX_TRANSFERS {
            return self.add_failed_transfer(Errno::BUSY);
        }
        let id = self.new_id();
        if data.is_empty() {
            self.finished.push_back((id, Ok(data)));
        } else {
            self.transfers.push_back(DmaTransfer {
                id,
                direction,
                address,
                data,
                requested_bytes: 0,
                pending_messages: 0,
                error: None,
                deadline_ns: now_ns.saturating_add(DMA_TIMEOUT_NS),
            });
        }
        id
    }

    /// Sends as many messages as may be pending, with at most `max_bytes` of data each.
    pub fn append_messages_to(&mut self, out: &mut OutgoingBuffer, max_bytes: usize) {
        for transfer in &mut self.transfers {
            while transfer.error.is_none() && transfer.requested_bytes < transfer.data.len() {
                if self.pending.len() >= MAX_PENDING_MESSAGES {
                    return;
                }
                let offset = transfer.requested_bytes;
                let len = max_bytes.min(transfer.data.len() - offset);
                // The next number that no pending message has.
                while {
                    self.last_message_id = self.last_message_id.wrapping_add(1);
                    let same =
                        |message: &PendingDmaMessage| message.message_id == self.last_message_id;
                    self.pending.iter().any(same)
                } {}
                let header = Header {
                    id: self.last_message_id,
                    command: transfer.direction.command(),
                    flags: wire::TYPE_COMMAND,
                    ..Header::default()
                };
                let data: &[u8] = match transfer.direction {
                    DmaDirection::Read => &[],
                    DmaDirection::Write => &transfer.data[offset..offset + len],
                };
                out.begin_message(header, DmaAccess::BYTES + data.len());
                DmaAccess {
                    // The device may access all of it, so none of it is behind the last address.
                    address: transfer.address + offset as u64,
                    count: len as u64,
                }
                .encode(&mut out.bytes);
                out.bytes.extend_from_slice(data);
                transfer.requested_bytes += len;
                transfer.pending_messages += 1;
                self.pending.push(PendingDmaMessage {
                    message_id: header.id,
                    direction: transfer.direction,
                    transfer: transfer.id,
                    offset,
                    len,
                });
            }
        }
    }

    /// Handles a reply.
    ///
    /// # Errors
    /// [`ProtocolViolation::UnknownReply`].
    pub fn handle_reply(
        &mut self,
        header: &Header,
        payload: &[u8],
    ) -> Result<(), ProtocolViolation> {
        let message = self.pending.iter().position(|message| {
            (message.message_id, message.direction.command()) == (header.id, header.command)
        });
        let Some(message) = message.map(|index| self.pending.swap_remove(index)) else {
            return Err(ProtocolViolation::UnknownReply {
                id: header.id,
                command: header.command,
            });
        };
        let index = self
            .transfers
            .iter()
            .position(|transfer| transfer.id == message.transfer);
        // The transfer may have timed out.
        if let Some(index) = index {
            let transfer = &mut self.transfers[index];
            transfer.pending_messages -= 1;
            let to = &mut transfer.data[message.offset..message.offset + message.len];
            if let Err(error) = check_reply_and_store_data(header, payload, &message, to) {
                transfer.error.get_or_insert(error);
            }
            if transfer.is_finished() {
                self.remove_and_queue_result(index);
            }
        }
        Ok(())
    }

    /// Removes a transfer from the list, and queues its result for the device.
    fn remove_and_queue_result(&mut self, index: usize) {
        if let Some(transfer) = self.transfers.remove(index) {
            let result = transfer.error.map_or(Ok(transfer.data), Err);
            self.finished.push_back((transfer.id, result));
        }
    }

    /// When the next transfer times out: call [`DmaTransfers::fail_timed_out`] then.
    pub fn deadline_ns(&self) -> Option<u64> {
        // All have the same timeout, so the first one ends first.
        self.transfers.front().map(|transfer| transfer.deadline_ns)
    }

    /// Fails transfers that have timed out.
    pub fn fail_timed_out(&mut self, now_ns: u64) {
        while self
            .deadline_ns()
            .is_some_and(|deadline| deadline <= now_ns)
        {
            self.transfers[0].error = Some(Errno::TIMEDOUT);
            self.remove_and_queue_result(0);
        }
    }

    /// Fails all transfers, since the front-end has disconnected.
    pub fn fail_all(&mut self) {
        self.pending.clear();
        while let Some(transfer) = self.transfers.front_mut() {
            transfer.error = Some(Errno::NOTCONN);
            self.remove_and_queue_result(0);
        }
    }

    /// The number of finished transfers that were not passed to the device yet.
    pub fn finished_count(&self) -> usize {
        self.finished.len()
    }

    /// The next finished transfer.
    pub fn take_next_finished(&mut self) -> Option<(DmaId, Result<Vec<u8>, Errno>)> {
        self.finished.pop_front()
    }
}

/// Checks a reply, and stores the data that were read in `to`.
fn check_reply_and_store_data(
    header: &Header,
    payload: &[u8],
    message: &PendingDmaMessage,
    to: &mut [u8],
) -> Result<(), Errno> {
    if header.flags & wire::ERROR != 0 {
        let errno = i32::try_from(header.errno).unwrap_or(0);
        return Err(match errno {
            1..4096 => Errno::from_raw_os_error(errno),
            _ => Errno::IO,
        });
    }
    match message.direction {
        DmaDirection::Read => {
            let access = DmaAccess::decode(payload).ok_or(Errno::PROTO)?;
            let data = &payload[DmaAccess::BYTES..];
            if access.count != message.len as u64 || data.len() != message.len {
                return Err(Errno::PROTO);
            }
            to.copy_from_slice(data);
        }
        DmaDirection::Write => {
            // The specification's count has 4 bytes in this reply; QEMU's has 8.
            let count = match *payload.get(8..).unwrap_or(&[]) {
                [a, b, c, d] => u64::from(u32::from_ne_bytes([a, b, c, d])),
                _ => DmaAccess::decode(payload).ok_or(Errno::PROTO)?.count,
            };
            if count != message.len as u64 {
                return Err(Errno::PROTO);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
