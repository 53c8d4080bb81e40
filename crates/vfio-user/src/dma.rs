//! Memory by messages: `VFIO_USER_DMA_READ` and `VFIO_USER_DMA_WRITE`.
//!
//! A transfer is cut into messages of the size that the front-end takes, a few of which are under way at a time.
//! Replies come in any order, or never: then the transfer fails, and its messages stay known until the front-end
//! goes, so that no late reply is taken for another one's.

use std::collections::VecDeque;

use rustix::io::Errno;

use crate::device::DmaId;
use crate::error::Violation;
use crate::limits::{DMA_TIMEOUT_NS, MAX_ASKED, MAX_TRANSFERS};
use crate::outgoing::Outgoing;
use crate::wire::{self, DmaAccess, Header, command};

/// Which way data go, seen from the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write,
}

impl Direction {
    fn command(self) -> u16 {
        match self {
            Direction::Read => command::DMA_READ,
            Direction::Write => command::DMA_WRITE,
        }
    }
}

struct Transfer {
    id: DmaId,
    direction: Direction,
    address: u64,
    data: Vec<u8>,
    /// Bytes that were asked for, or sent.
    asked: usize,
    /// Messages without a reply.
    unanswered: usize,
    error: Option<Errno>,
    deadline_ns: u64,
}

impl Transfer {
    fn is_over(&self) -> bool {
        self.unanswered == 0 && (self.error.is_some() || self.asked == self.data.len())
    }
}

/// A message that waits for its reply.
struct Asked {
    message_id: u16,
    direction: Direction,
    transfer: DmaId,
    offset: usize,
    len: usize,
}

/// All transfers, in the order in which they were begun.
#[derive(Default)]
pub(crate) struct Dma {
    transfers: VecDeque<Transfer>,
    asked: Vec<Asked>,
    over: VecDeque<(DmaId, Result<Vec<u8>, Errno>)>,
    last_id: u64,
    last_message_id: u16,
}

impl Dma {
    fn new_id(&mut self) -> DmaId {
        self.last_id += 1;
        DmaId(self.last_id)
    }

    /// A transfer that fails.
    pub fn refuse(&mut self, error: Errno) -> DmaId {
        let id = self.new_id();
        self.over.push_back((id, Err(error)));
        id
    }

    /// Begins a transfer, of as many bytes as `data` has.
    pub fn begin(
        &mut self,
        direction: Direction,
        address: u64,
        data: Vec<u8>,
        now_ns: u64,
    ) -> DmaId {
        if self.transfers.len() >= MAX_TRANSFERS {
            return self.refuse(Errno::BUSY);
        }
        let id = self.new_id();
        if data.is_empty() {
            self.over.push_back((id, Ok(data)));
        } else {
            self.transfers.push_back(Transfer {
                id,
                direction,
                address,
                data,
                asked: 0,
                unanswered: 0,
                error: None,
                deadline_ns: now_ns.saturating_add(DMA_TIMEOUT_NS),
            });
        }
        id
    }

    /// Asks for as much as may be under way, in messages with at most `max_bytes` of data.
    pub fn ask(&mut self, out: &mut Outgoing, max_bytes: usize) {
        for transfer in &mut self.transfers {
            while transfer.error.is_none() && transfer.asked < transfer.data.len() {
                if self.asked.len() >= MAX_ASKED {
                    return;
                }
                let offset = transfer.asked;
                let len = max_bytes.min(transfer.data.len() - offset);
                // No other message that is under way has the same: they are few.
                while {
                    self.last_message_id = self.last_message_id.wrapping_add(1);
                    let same = |asked: &Asked| asked.message_id == self.last_message_id;
                    self.asked.iter().any(same)
                } {}
                let header = Header {
                    id: self.last_message_id,
                    command: transfer.direction.command(),
                    flags: wire::TYPE_COMMAND,
                    ..Header::default()
                };
                let data: &[u8] = match transfer.direction {
                    Direction::Read => &[],
                    Direction::Write => &transfer.data[offset..offset + len],
                };
                out.begin(header, DmaAccess::BYTES + data.len());
                DmaAccess {
                    // The device may access all of it, so none of it is behind the last address.
                    address: transfer.address + offset as u64,
                    count: len as u64,
                }
                .encode(&mut out.bytes);
                out.bytes.extend_from_slice(data);
                transfer.asked += len;
                transfer.unanswered += 1;
                self.asked.push(Asked {
                    message_id: header.id,
                    direction: transfer.direction,
                    transfer: transfer.id,
                    offset,
                    len,
                });
            }
        }
    }

    /// Takes a reply.
    ///
    /// # Errors
    /// [`Violation::NotAsked`].
    pub fn answered(&mut self, header: &Header, payload: &[u8]) -> Result<(), Violation> {
        let asked = self.asked.iter().position(|asked| {
            (asked.message_id, asked.direction.command()) == (header.id, header.command)
        });
        let Some(asked) = asked.map(|index| self.asked.swap_remove(index)) else {
            return Err(Violation::NotAsked {
                id: header.id,
                command: header.command,
            });
        };
        let index = self
            .transfers
            .iter()
            .position(|transfer| transfer.id == asked.transfer);
        // It may have timed out.
        if let Some(index) = index {
            let transfer = &mut self.transfers[index];
            transfer.unanswered -= 1;
            let to = &mut transfer.data[asked.offset..asked.offset + asked.len];
            if let Err(error) = take_reply(header, payload, &asked, to) {
                transfer.error.get_or_insert(error);
            }
            if transfer.is_over() {
                self.end(index);
            }
        }
        Ok(())
    }

    fn end(&mut self, index: usize) {
        if let Some(transfer) = self.transfers.remove(index) {
            let result = transfer.error.map_or(Ok(transfer.data), Err);
            self.over.push_back((transfer.id, result));
        }
    }

    /// When [`Dma::expire`] has something to do.
    pub fn deadline_ns(&self) -> Option<u64> {
        // Each has the same time, so the first one's ends first.
        self.transfers.front().map(|transfer| transfer.deadline_ns)
    }

    /// What has waited too long fails.
    pub fn expire(&mut self, now_ns: u64) {
        while self
            .deadline_ns()
            .is_some_and(|deadline| deadline <= now_ns)
        {
            self.transfers[0].error = Some(Errno::TIMEDOUT);
            self.end(0);
        }
    }

    /// The front-end has gone: all fails.
    pub fn disconnect(&mut self) {
        self.asked.clear();
        while let Some(transfer) = self.transfers.front_mut() {
            transfer.error = Some(Errno::NOTCONN);
            self.end(0);
        }
    }

    /// How many the device has to hear of.
    pub fn count_over(&self) -> usize {
        self.over.len()
    }

    /// The next of them.
    pub fn next_over(&mut self) -> Option<(DmaId, Result<Vec<u8>, Errno>)> {
        self.over.pop_front()
    }
}

fn take_reply(header: &Header, payload: &[u8], asked: &Asked, to: &mut [u8]) -> Result<(), Errno> {
    if header.flags & wire::ERROR != 0 {
        let errno = i32::try_from(header.errno).unwrap_or(0);
        return Err(match errno {
            1..4096 => Errno::from_raw_os_error(errno),
            _ => Errno::IO,
        });
    }
    match asked.direction {
        Direction::Read => {
            let access = DmaAccess::decode(payload).ok_or(Errno::PROTO)?;
            let data = &payload[DmaAccess::BYTES..];
            if access.count != asked.len as u64 || data.len() != asked.len {
                return Err(Errno::PROTO);
            }
            to.copy_from_slice(data);
        }
        Direction::Write => {
            // The specification's count has 4 bytes in this reply; QEMU's has 8.
            let count = match *payload.get(8..).unwrap_or(&[]) {
                [a, b, c, d] => u64::from(u32::from_ne_bytes([a, b, c, d])),
                _ => DmaAccess::decode(payload).ok_or(Errno::PROTO)?.count,
            };
            if count != asked.len as u64 {
                return Err(Errno::PROTO);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
