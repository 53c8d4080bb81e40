//! Receives replies: headers into a buffer, data of reads as far as it is not in the buffer already straight into the segments of
//! the request.
//!
//! Nothing that the server sends leads outside of the segments of a request that waits for it: the range of each piece of data
//! is checked before the first byte is stored.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use engine::Errno;
use libc::iovec;

use super::handshake::ReplyStyle;
use super::lost::Lost;
use super::record::State;
use super::records::Records;
use super::reply::{MAX_REPLY_BYTES, Reply, ReplyContent, Violation};
use super::segments::{append_part, copy_into, to_usize, zero_part};
use super::socket::Socket;
use crate::wire::NbdErrno;

/// Bytes of the buffer: as much data as may be copied in order to receive several replies in one call.
const BUFFER_BYTES: usize = 16 << 10;

const _: () = assert!(BUFFER_BYTES > 2 * MAX_REPLY_BYTES);

/// Bytes after which other sources of the thread have their turn.
const BUDGET_BYTES: usize = 4 << 20;

/// The same with TLS, which takes longer.
const TLS_BUDGET_BYTES: usize = 512 << 10;

/// Most segments in one call.
const MAX_SEGMENTS: usize = 1024;

/// What the next bytes are.
#[derive(Clone, Copy)]
enum Expected {
    /// A reply.
    Reply,
    /// Data of a read.
    Data {
        slot: u32,
        /// Where it belongs, from the beginning of the request's segments.
        skip: u64,
        rest: u64,
        is_last: bool,
        /// The segments cannot be written, or are not the request's any more: the data is dropped.
        is_dropped: bool,
    },
}

/// The receiving side of a connection.
pub(super) struct Inbox {
    buffer: Box<[u8]>,
    /// The bytes that were received and not used yet.
    begin: usize,
    end: usize,
    expected: Expected,
    /// The list for a call.
    iov: Vec<iovec>,
    /// The last call found nothing more.
    is_drained: bool,
}

impl Inbox {
    pub fn new() -> Self {
        Inbox {
            buffer: vec![0; BUFFER_BYTES].into(),
            begin: 0,
            end: 0,
            expected: Expected::Reply,
            iov: Vec::with_capacity(MAX_SEGMENTS),
            is_drained: false,
        }
    }

    /// Whether the last reply was received to its end, and nothing behind it.
    pub fn is_empty(&self) -> bool {
        self.begin == self.end && matches!(self.expected, Expected::Reply)
    }

    /// Whether the socket had nothing more at the last call. Only then an event announces the next bytes.
    pub fn is_drained(&self) -> bool {
        self.is_drained
    }

    /// Receives replies, and appends the requests whose piece was answered to `answered`.
    ///
    /// # Errors
    /// [`Lost`]; what was answered before counts.
    pub fn receive(
        &mut self,
        socket: &mut Socket,
        style: ReplyStyle,
        records: &mut Records,
        answered: &mut Vec<u32>,
    ) -> Result<(), Lost> {
        let mut budget = match &mut socket.tls {
            None => BUDGET_BYTES,
            Some(tls) => {
                tls.begin_turn();
                TLS_BUDGET_BYTES
            }
        };
        loop {
            let (asked, received) = match self.fill(socket, records) {
                Ok(filled) => filled,
                Err(Errno::AGAIN) => {
                    self.is_drained = true;
                    return Ok(());
                }
                // TLS has taken its share of this turn, and more may be there.
                Err(Errno::INTR) => {
                    self.is_drained = false;
                    return Ok(());
                }
                Err(Errno::FAULT) if self.drop_data(records) => continue,
                Err(errno) => return Err(Lost::Io(errno)),
            };
            self.is_drained = false;
            if received == 0 {
                return Err(Lost::Closed);
            }
            self.parse(style, records, answered)?;
            budget = budget.saturating_sub(received);
            if received < asked || budget == 0 {
                return Ok(());
            }
        }
    }

    /// Reads once, data first. Returns how many bytes were asked for, and received.
    fn fill(&mut self, socket: &mut Socket, records: &Records) -> Result<(usize, usize), Errno> {
        self.buffer.copy_within(self.begin..self.end, 0);
        self.end -= self.begin;
        self.begin = 0;
        if let Some(tls) = &mut socket.tls {
            // Data is copied from there.
            let free = &mut self.buffer[self.end..];
            let received = tls.read(socket.fd.as_fd(), free)?;
            self.end += received;
            // Whether the socket has more is known when it has nothing.
            return Ok((received, received));
        }
        let socket = socket.fd.as_fd();
        self.iov.clear();
        let mut direct = 0;
        if let Expected::Data {
            slot,
            skip,
            rest,
            is_dropped: false,
            ..
        } = self.expected
        {
            // SAFETY: the request waits for this data, so it has not completed.
            let segments = unsafe { records.get(slot).segments() };
            direct = append_part(segments, skip, rest, &mut self.iov, MAX_SEGMENTS - 1);
            debug_assert!(self.end == 0, "data in the buffer was used before");
            if direct < rest {
                return self.read(socket, direct);
            }
        }
        let free = &mut self.buffer[self.end..];
        self.iov.push(iovec {
            iov_base: free.as_mut_ptr().cast(),
            iov_len: free.len(),
        });
        self.read(socket, direct)
    }

    /// Reads into the list, whose first `direct` bytes are segments of the request that data is expected for.
    fn read(&mut self, socket: BorrowedFd<'_>, direct: u64) -> Result<(usize, usize), Errno> {
        let asked = self.iov.iter().map(|part| part.iov_len).sum();
        let count = i32::try_from(self.iov.len()).unwrap_or(i32::MAX);
        // SAFETY: the list names free parts of the buffer, and segments of a request that waits for data, which its submitter
        // keeps valid for writes.
        let received = unsafe { libc::readv(socket.as_raw_fd(), self.iov.as_ptr(), count) };
        let Ok(received) = usize::try_from(received) else {
            let error = Errno::from_io_error(&std::io::Error::last_os_error());
            return match error {
                Some(Errno::INTR) => self.read(socket, direct),
                error => Err(error.unwrap_or(Errno::IO)),
            };
        };
        let stored = received.min(to_usize(direct));
        if let Expected::Data { skip, rest, .. } = &mut self.expected {
            *skip += stored as u64;
            *rest -= stored as u64;
        }
        self.end += received - stored;
        Ok((asked, received))
    }

    /// Has the rest of the expected data dropped, since guest memory is gone; false if none is expected.
    fn drop_data(&mut self, records: &mut Records) -> bool {
        let Expected::Data {
            slot, is_dropped, ..
        } = &mut self.expected
        else {
            return false;
        };
        records.get_mut(*slot).error.get_or_insert(Errno::FAULT);
        !std::mem::replace(is_dropped, true)
    }

    /// Has data for this request dropped, if any is expected.
    pub fn drop_data_of(&mut self, given_up: u32) {
        if let Expected::Data {
            slot, is_dropped, ..
        } = &mut self.expected
            && *slot == given_up
        {
            *is_dropped = true;
        }
    }

    /// Uses what is in the buffer.
    fn parse(
        &mut self,
        style: ReplyStyle,
        records: &mut Records,
        answered: &mut Vec<u32>,
    ) -> Result<(), Lost> {
        loop {
            let bytes = &self.buffer[self.begin..self.end];
            match &mut self.expected {
                Expected::Data {
                    slot,
                    skip,
                    rest,
                    is_last,
                    is_dropped,
                } => {
                    let part = bytes.len().min(to_usize(*rest));
                    if !*is_dropped {
                        // SAFETY: the request waits for this data, whose range was checked.
                        unsafe {
                            copy_into(records.get(*slot).segments(), *skip, &bytes[..part]);
                        }
                    }
                    *skip += part as u64;
                    *rest -= part as u64;
                    self.begin += part;
                    if *rest > 0 {
                        return Ok(());
                    }
                    let (slot, is_last) = (*slot, *is_last);
                    self.expected = Expected::Reply;
                    end_chunk(slot, is_last, records, answered)?;
                }
                Expected::Reply => {
                    let Some((reply, len)) = Reply::parse(style, bytes)? else {
                        return Ok(());
                    };
                    self.begin += len;
                    self.expected = handle_reply(&reply, style, records, answered)?;
                }
            }
        }
    }
}

/// Applies a reply or chunk to its request, and returns what follows.
fn handle_reply(
    reply: &Reply,
    style: ReplyStyle,
    records: &mut Records,
    answered: &mut Vec<u32>,
) -> Result<Expected, Lost> {
    let slot = records.find_sent(reply.cookie);
    let slot = slot.ok_or(Violation::Cookie(reply.cookie))?;
    let record = records.get_mut(slot);
    let is_dropped = record.is_given_up;
    let data = |skip, rest| Expected::Data {
        slot,
        skip,
        rest,
        is_last: reply.is_last,
        is_dropped,
    };
    match reply.content {
        ReplyContent::Success if record.is_read() => {
            if style == ReplyStyle::Structured {
                return Err(Violation::SimpleReplyToRead.into());
            }
            record.received = record.piece;
            return Ok(data(record.done, record.piece));
        }
        ReplyContent::Success | ReplyContent::Nothing => {}
        ReplyContent::Data { offset, len } | ReplyContent::Hole { offset, len } => {
            if !record.is_read() {
                return Err(Violation::DataForOther.into());
            }
            let (begin, wanted) = (record.piece_offset(), record.piece);
            let inside = offset.checked_sub(begin);
            let inside = inside.filter(|at| at.checked_add(len).is_some_and(|end| end <= wanted));
            let Some(inside) = inside else {
                return Err(Violation::DataOutside {
                    offset,
                    len,
                    begin,
                    wanted,
                }
                .into());
            };
            let found = record.received + len;
            if found > wanted {
                return Err(Violation::DataTooLong { found, wanted }.into());
            }
            record.received = found;
            let skip = record.done + inside;
            if let ReplyContent::Data { .. } = reply.content {
                return Ok(data(skip, len));
            }
            if !is_dropped {
                // SAFETY: the request waits for its reply, and the range was checked.
                unsafe { zero_part(record.segments(), skip, len) };
            }
        }
        ReplyContent::Error(NbdErrno::Shutdown) => return Err(Lost::ServerEnds),
        ReplyContent::Error(error) => {
            let errno = Errno::from_raw_os_error(error.to_linux());
            record.error.get_or_insert(errno);
        }
    }
    end_chunk(slot, reply.is_last, records, answered)?;
    Ok(Expected::Reply)
}

/// Ends a chunk. With the last one the piece is answered.
fn end_chunk(
    slot: u32,
    is_last: bool,
    records: &mut Records,
    answered: &mut Vec<u32>,
) -> Result<(), Lost> {
    let record = records.get_mut(slot);
    if !is_last {
        return Ok(());
    }
    if record.is_read() && record.error.is_none() && record.received != record.piece {
        return Err(Violation::DataTooShort {
            found: record.received,
            wanted: record.piece,
        }
        .into());
    }
    record.state = State::Answered;
    answered.push(slot);
    Ok(())
}
