//! Sends requests: headers and data of many in one call, the data straight from the segments of the requests.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use engine::Errno;
use libc::iovec;

use super::disk::Disk;
use super::handshake::Negotiated;
use super::lost::Lost;
use super::record::State;
use super::records::Records;
use super::socket::Socket;

/// Most segments in one call.
const MAX_SEGMENTS: usize = 1024;

/// Bytes in one call.
const CALL_BYTES: u64 = 1 << 20;

/// Calls in one submit phase: then other sources of the thread have their turn.
const MAX_CALLS: usize = 4;

/// The end of a submit phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendEnd {
    /// Everything is sent.
    Empty,
    /// The socket is full.
    Full,
    /// Others have their turn.
    OutOfBudget,
}

/// Requests to send, in order.
pub(super) struct Outbox {
    slots: VecDeque<u32>,
    /// How many bytes of the first one were sent.
    sent_of_first: u64,
    /// The list for a call.
    iov: Vec<iovec>,
}

impl Outbox {
    pub fn new(capacity: u32) -> Self {
        Outbox {
            slots: VecDeque::with_capacity(capacity as usize),
            sent_of_first: 0,
            iov: Vec::with_capacity(MAX_SEGMENTS),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    pub fn push(&mut self, slot: u32) {
        self.slots.push_back(slot);
    }

    /// The request that was sent in part.
    pub fn partly_sent(&self) -> Option<u32> {
        let first = self.slots.front().copied();
        first.filter(|_| self.sent_of_first > 0)
    }

    /// Removes requests, but for one that was sent in part.
    pub fn remove_unsent(&mut self, slots: &[u32]) {
        let partly_sent = self.partly_sent();
        self.slots
            .retain(|slot| partly_sent == Some(*slot) || !slots.contains(slot));
    }

    /// Begins anew, for another connection, with these requests.
    pub fn restart(&mut self, slots: impl Iterator<Item = u32>) {
        self.slots.clear();
        self.slots.extend(slots);
        self.sent_of_first = 0;
    }

    /// Sends as much as the socket takes. A request whose memory cannot be read is in `answered`, with its error.
    pub fn send(
        &mut self,
        socket: &mut Socket,
        (disk, connection): (&Disk, &Negotiated),
        records: &mut Records,
        answered: &mut Vec<u32>,
    ) -> Result<SendEnd, Lost> {
        let mut most_requests = usize::MAX;
        for _ in 0..MAX_CALLS {
            if self.slots.is_empty() {
                return Ok(SendEnd::Empty);
            }
            let bytes = self.fill_list(disk, connection, records, most_requests);
            let sent = match &mut socket.tls {
                None => send_list(socket.fd.as_fd(), &mut self.iov),
                // SAFETY: the list names headers, zeroes, and segments of requests that have not completed.
                Some(tls) => unsafe { tls.send_list(socket.fd.as_fd(), &self.iov) },
            };
            match sent {
                Ok(sent) => {
                    self.advance(sent, disk, records);
                    if sent < bytes {
                        return Ok(SendEnd::Full);
                    }
                }
                Err(Errno::AGAIN) => return Ok(SendEnd::Full),
                // The memory of one of the requests: which one?
                Err(Errno::FAULT) if most_requests > 1 => most_requests = 1,
                Err(Errno::FAULT) => {
                    most_requests = usize::MAX;
                    self.refuse_first(records, answered)?;
                }
                Err(errno) => return Err(Lost::Io(errno)),
            }
        }
        Ok(match self.slots.is_empty() {
            true => SendEnd::Empty,
            false => SendEnd::OutOfBudget,
        })
    }

    /// Lists what is to be sent in one call, and returns its bytes.
    fn fill_list(
        &mut self,
        disk: &Disk,
        connection: &Negotiated,
        records: &mut Records,
        most_requests: usize,
    ) -> u64 {
        self.iov.clear();
        let (mut bytes, mut skip) = (0, self.sent_of_first);
        for &slot in self.slots.iter().take(most_requests) {
            if bytes >= CALL_BYTES || self.iov.len() + 1 >= MAX_SEGMENTS {
                break;
            }
            let record = records.get_mut(slot);
            if skip == 0 {
                record.encode(slot, disk, connection);
            }
            // SAFETY: a request that is to be sent has not completed.
            bytes += unsafe {
                record.append_message(disk.features(), skip, &mut self.iov, MAX_SEGMENTS)
            };
            skip = 0;
        }
        bytes
    }

    /// Notes that so many bytes were sent.
    fn advance(&mut self, sent: u64, disk: &Disk, records: &mut Records) {
        let mut rest = self.sent_of_first + sent;
        // A message whose turn has not come has no length yet.
        while rest > 0
            && let Some(&slot) = self.slots.front()
        {
            let record = records.get_mut(slot);
            let len = record.wire_len(disk.features());
            if rest < len {
                break;
            }
            rest -= len;
            record.state = State::Sent;
            self.slots.pop_front();
        }
        self.sent_of_first = rest;
    }

    /// Fails the first request, whose memory cannot be read. If its header was sent the connection is of no more use.
    fn refuse_first(&mut self, records: &mut Records, answered: &mut Vec<u32>) -> Result<(), Lost> {
        let Some(slot) = self.slots.pop_front() else {
            return Ok(());
        };
        let record = records.get_mut(slot);
        record.error = Some(Errno::FAULT);
        record.state = State::Answered;
        answered.push(slot);
        match std::mem::take(&mut self.sent_of_first) {
            0 => Ok(()),
            _ => Err(Lost::UnreadableMemory),
        }
    }
}

/// Sends a list, and returns the bytes that the socket has taken.
fn send_list(socket: BorrowedFd<'_>, iov: &mut [iovec]) -> Result<u64, Errno> {
    // SAFETY: all zeroes are a valid `msghdr`.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = iov.as_mut_ptr();
    message.msg_iovlen = iov.len() as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    loop {
        // SAFETY: the list names headers, zeroes, and segments of requests that have not completed.
        let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &message, flags) };
        if let Ok(sent) = u64::try_from(sent) {
            return Ok(sent);
        }
        match Errno::from_io_error(&std::io::Error::last_os_error()) {
            Some(Errno::INTR) => {}
            Some(Errno::NOBUFS | Errno::NOMEM) => return Err(Errno::AGAIN),
            errno => return Err(errno.unwrap_or(Errno::IO)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use engine::{Op, Request};

    use super::*;
    use crate::client::handshake::{BlockSizes, ReplyStyle};
    use crate::client::segments::to_usize;
    use crate::client::{ClientOptions, ServerAddress};

    /// The socket takes all of a call, which ends behind a write of its size.
    #[test]
    fn a_request_behind_a_full_call_is_not_taken_for_sent() {
        let negotiated = Negotiated {
            size: 1 << 30,
            flags: 0,
            blocks: BlockSizes {
                minimum: 1,
                preferred: 4096,
                maximum: 32 << 20,
            },
            replies: ReplyStyle::Simple,
        };
        let options = ClientOptions {
            server: ServerAddress::Unix {
                path: "/no/server".into(),
            },
            export: String::new(),
            reconnect_delay: Duration::ZERO,
            open_timeout: Duration::ZERO,
            attempt_timeout: Duration::ZERO,
            stop_timeout: Duration::ZERO,
            tls: None,
        };
        let (socket, _peer) = UnixStream::pair().expect("sockets");
        let disk = Disk::of_socket(options, socket.into(), negotiated).expect("a launcher");
        let mut records = Records::new(2);
        let mut outbox = Outbox::new(2);
        let mut data = vec![0_u8; to_usize(CALL_BYTES)];
        let mut segment = iovec {
            iov_base: data.as_mut_ptr().cast(),
            iov_len: data.len(),
        };
        let write = Request {
            iov: &raw mut segment,
            iov_count: 1,
            ..Request::without_data(Op::Write, 0, CALL_BYTES, 0)
        };
        let flush = Request::without_data(Op::Flush, 0, 0, 1);
        for (order, request) in (0..).zip([write, flush]) {
            let slot = records.take(&request, 0, None, order).expect("a place");
            records.get_mut(slot).begin_piece(&disk);
            outbox.push(slot);
        }
        let bytes = outbox.fill_list(&disk, &negotiated, &mut records, usize::MAX);
        outbox.advance(bytes, &disk, &mut records);
        assert_eq!(outbox.slots, [1]);
        let bytes = outbox.fill_list(&disk, &negotiated, &mut records, usize::MAX);
        outbox.advance(bytes, &disk, &mut records);
        assert!(outbox.is_empty());
        assert_eq!(records.get(1).state, State::Sent);
    }
}
