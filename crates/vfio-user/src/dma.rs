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
mod tests {
    use super::*;

    /// Takes the messages that are to be sent apart.
    fn messages(out: &mut Outgoing) -> Vec<(Header, DmaAccess, Vec<u8>)> {
        let mut rest = out.unsent();
        let mut messages = Vec::new();
        while let Some(header) = Header::decode(rest) {
            let payload = &rest[Header::BYTES..header.size as usize];
            let access = DmaAccess::decode(payload).unwrap();
            messages.push((header, access, payload[DmaAccess::BYTES..].to_vec()));
            rest = &rest[header.size as usize..];
        }
        let all = out.unsent().len();
        out.sent(all);
        messages
    }

    fn reply(header: &Header, access: DmaAccess, data: &[u8]) -> (Header, Vec<u8>) {
        let mut payload = Vec::new();
        access.encode(&mut payload);
        payload.extend_from_slice(data);
        let header = Header {
            flags: wire::TYPE_REPLY,
            ..*header
        };
        (header, payload)
    }

    #[test]
    fn a_long_read_is_cut_and_put_together_in_any_order() {
        let (mut dma, mut out) = (Dma::default(), Outgoing::default());
        let id = dma.begin(Direction::Read, 0x1000, vec![0; 650], 0);
        dma.ask(&mut out, 100);
        let mut asked = messages(&mut out);
        assert_eq!(asked.len(), MAX_ASKED, "a few at a time");
        let mut seen = 0;
        while let Some((header, access, data)) = asked.pop() {
            assert!(data.is_empty());
            let byte = u8::try_from((access.address - 0x1000) / 100).unwrap();
            let data = vec![byte; usize::try_from(access.count).unwrap()];
            let (header, payload) = reply(&header, access, &data);
            dma.answered(&header, &payload).unwrap();
            dma.ask(&mut out, 100);
            asked.extend(messages(&mut out));
            seen += 1;
        }
        assert_eq!(seen, 7);
        let (over, data) = dma.next_over().unwrap();
        let expected: Vec<u8> = (0..650)
            .map(|byte| u8::try_from(byte / 100).unwrap())
            .collect();
        assert_eq!((over, data.unwrap()), (id, expected));
        assert!(dma.next_over().is_none());
    }

    #[test]
    fn a_write_is_acknowledged_with_either_width_of_the_count() {
        for bytes in [12, 16] {
            let (mut dma, mut out) = (Dma::default(), Outgoing::default());
            let id = dma.begin(Direction::Write, 0, vec![7; 10], 0);
            dma.ask(&mut out, 100);
            let (header, access, data) = messages(&mut out).remove(0);
            assert_eq!((header.command, data), (command::DMA_WRITE, vec![7; 10]));
            let (header, payload) = reply(&header, access, &[]);
            dma.answered(&header, &payload[..bytes]).unwrap();
            assert_eq!(dma.next_over(), Some((id, Ok(vec![7; 10]))));
        }
    }

    #[test]
    fn an_error_ends_a_transfer_when_all_its_messages_are_answered() {
        let (mut dma, mut out) = (Dma::default(), Outgoing::default());
        let id = dma.begin(Direction::Read, 0, vec![0; 1000], 0);
        dma.ask(&mut out, 100);
        let mut asked = messages(&mut out);
        let (first, access, _) = asked.remove(0);
        let (first, _) = reply(&first, access, &[]);
        let first = Header {
            flags: wire::TYPE_REPLY | wire::ERROR,
            errno: 14,
            ..first
        };
        dma.answered(&first, &[]).unwrap();
        dma.ask(&mut out, 100);
        assert!(messages(&mut out).is_empty(), "nothing more is asked");
        for (header, access, _) in asked {
            assert!(dma.next_over().is_none());
            let (header, payload) = reply(&header, access, &[0; 100]);
            dma.answered(&header, &payload).unwrap();
        }
        assert_eq!(dma.next_over(), Some((id, Err(Errno::FAULT))));
        let unknown = dma.answered(&first, &[]);
        assert!(matches!(unknown, Err(Violation::NotAsked { .. })));
    }

    #[test]
    fn replies_that_do_not_fit_fail_the_transfer_only() {
        let short = |access: DmaAccess| reply(&Header::default(), access, &[0; 9]).1;
        let other = |access: DmaAccess| {
            let access = DmaAccess { count: 9, ..access };
            reply(&Header::default(), access, &[0; 10]).1
        };
        let none = |_: DmaAccess| Vec::new();
        for wrong in [&short as &dyn Fn(DmaAccess) -> Vec<u8>, &other, &none] {
            let (mut dma, mut out) = (Dma::default(), Outgoing::default());
            let id = dma.begin(Direction::Read, 0, vec![0; 10], 0);
            dma.ask(&mut out, 100);
            let (header, access, _) = messages(&mut out).remove(0);
            dma.answered(&header, &wrong(access)).unwrap();
            assert_eq!(dma.next_over(), Some((id, Err(Errno::PROTO))));
        }
    }

    #[test]
    fn a_front_end_that_does_not_answer_fails_what_waits_and_is_heard_later_without_harm() {
        let (mut dma, mut out) = (Dma::default(), Outgoing::default());
        let id = dma.begin(Direction::Read, 0, vec![0; 10], 5);
        dma.ask(&mut out, 100);
        let (header, access, _) = messages(&mut out).remove(0);
        let deadline_ns = dma.deadline_ns().unwrap();
        assert_eq!(deadline_ns, 5 + DMA_TIMEOUT_NS);
        dma.expire(deadline_ns - 1);
        assert!(dma.next_over().is_none());
        dma.expire(deadline_ns);
        assert_eq!(dma.next_over(), Some((id, Err(Errno::TIMEDOUT))));
        assert_eq!(dma.deadline_ns(), None);
        let (header, payload) = reply(&header, access, &[1; 10]);
        dma.answered(&header, &payload).unwrap();
        assert!(dma.next_over().is_none());
    }

    #[test]
    fn a_front_end_that_does_not_answer_has_so_many_transfers_and_no_more() {
        let mut dma = Dma::default();
        for _ in 0..MAX_TRANSFERS {
            dma.begin(Direction::Write, 0, vec![0; 10], 5);
        }
        assert_eq!(dma.next_over(), None);
        let id = dma.begin(Direction::Write, 0, vec![0; 10], 5);
        assert_eq!(dma.next_over(), Some((id, Err(Errno::BUSY))));
        dma.expire(5 + DMA_TIMEOUT_NS);
        while dma.next_over().is_some() {}
        dma.begin(Direction::Write, 0, vec![0; 10], 6);
        assert_eq!(dma.next_over(), None, "there is room again");
    }

    #[test]
    fn nothing_is_nothing_to_wait_for() {
        let mut dma = Dma::default();
        let id = dma.begin(Direction::Write, 0, Vec::new(), 0);
        assert_eq!(dma.next_over(), Some((id, Ok(Vec::new()))));
    }
}
