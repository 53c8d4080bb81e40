//! The table of a queue's requests, allocated once; the cookie of a request on the wire has the index of its record.
//!
//! A request is sent in pieces, one after the other, if it is larger than the server takes: each piece has a reply.

use std::sync::Arc;

use engine::{Errno, Op, Request};
use libc::iovec;

use super::disk::{Disk, Features};
use super::handshake::{Negotiated, ReplyStyle};
use super::request_group::RequestGroup;
use super::segments::{append_part, copy_from};
use crate::wire::{self, command, command_flag};

/// Most bytes of a range that is discarded or zeroed in one piece.
const MAX_RANGE_BYTES: u64 = 1 << 30;

/// Most bytes of zeroes that are sent in one piece, to a server that cannot write zeroes itself.
const MAX_SENT_ZEROES: u64 = 1 << 20;

/// Zeroes to send.
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// The most bytes of a header.
const HEADER_BYTES: usize = wire::ExtendedRequest::BYTES;

/// The state of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Not used.
    Free,
    /// Waits for a write that may be carried out late, whose range it overlaps.
    Held,
    /// In the outbox.
    Unsent,
    /// Sent: the server may answer.
    Sent,
    /// The server has answered the piece.
    Answered,
}

/// What is sent for a request: itself, or the flush that makes its data stable at a server without FUA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Request,
    Flush,
}

/// A request.
pub(super) struct Record {
    pub request: Request,
    /// The place of its source.
    pub source: u32,
    /// The job that it is for.
    pub group: Option<Arc<RequestGroup>>,
    pub state: State,
    step: Step,
    /// Bytes of the pieces before this one.
    pub done: u64,
    /// Bytes of the piece.
    pub piece: u64,
    /// Bytes of the piece's data that were received, for a read.
    pub received: u64,
    /// The error of the piece.
    pub error: Option<Errno>,
    /// The number of its sending: the upper half of its cookie.
    serial: u32,
    /// Its place in the order of requests.
    pub order: u64,
    /// The server may carry out what it has not answered, late or a second time: newer writes that overlap it wait for the answer.
    pub is_late_write: bool,
    /// It has completed without an answer of the server, and has no segments. The record stays until the answer.
    pub is_given_up: bool,
    /// Data of a piece that was sent in part when the request was given up.
    kept_data: Vec<u8>,
    /// How many connections broke with it.
    pub losses: u8,
    header: [u8; HEADER_BYTES],
    header_len: usize,
}

impl Record {
    /// Whether the piece is a read, which has data in its reply.
    pub fn is_read(&self) -> bool {
        self.request.op == Op::Read
    }

    /// Whether the request changes the disk's data.
    pub fn changes_data(&self) -> bool {
        !matches!(self.request.op, Op::Read | Op::Flush)
    }

    /// Whether the ranges of two requests overlap.
    pub fn overlaps(&self, other: &Request) -> bool {
        let request = &self.request;
        request.offset < other.offset.saturating_add(other.len)
            && other.offset < request.offset.saturating_add(request.len)
    }

    /// When it fails, if it is cancelled.
    pub fn cancels_at_ns(&self) -> Option<u64> {
        self.group.as_ref()?.cancels_at_ns()
    }

    /// Leaves the request without its submitter, which uses the segments for something else from now on. The rest of a piece that was
    /// sent in part will be sent from a copy.
    ///
    /// # Safety
    /// As for [`segments`](Self::segments), and the segments are valid for reads.
    pub unsafe fn give_up(&mut self, is_partly_sent: bool) {
        if is_partly_sent && self.sends_segments() {
            // SAFETY: our caller promises it.
            let segments = unsafe { self.segments() };
            // SAFETY: likewise; the piece lies within the segments.
            unsafe { copy_from(segments, self.done, self.piece, &mut self.kept_data) };
        }
        self.request.iov = std::ptr::null_mut();
        self.request.iov_count = 0;
        self.group = None;
        self.is_given_up = true;
    }

    /// The first byte of the piece.
    pub fn piece_offset(&self) -> u64 {
        self.request.offset + self.done
    }

    /// The list of segments.
    ///
    /// # Safety
    /// The request has not completed, so that its submitter keeps the list.
    pub unsafe fn segments<'a>(&self) -> &'a [iovec] {
        match self.request.iov_count {
            0 => &[],
            // SAFETY: our caller promises it.
            count => unsafe { std::slice::from_raw_parts(self.request.iov, count as usize) },
        }
    }

    /// Whether the data of the piece is in the segments.
    fn sends_segments(&self) -> bool {
        self.step == Step::Request && self.request.op == Op::Write
    }

    /// Whether the data of the piece is zeroes, which the server cannot write itself.
    fn sends_zeroes(&self, features: Features) -> bool {
        self.step == Step::Request
            && matches!(self.request.op, Op::WriteZeroes { .. })
            && !features.write_zeroes
    }

    /// Begins a piece, also of a request that is sent again.
    pub fn begin_piece(&mut self, disk: &Disk) {
        let features = disk.features();
        let most = match self.request.op {
            _ if self.sends_zeroes(features) => MAX_SENT_ZEROES.min(max_payload(disk)),
            Op::Read | Op::Write => max_payload(disk),
            Op::Flush | Op::Discard | Op::WriteZeroes { .. } => MAX_RANGE_BYTES,
        };
        self.piece = match self.step {
            Step::Request => (self.request.len - self.done).min(most),
            Step::Flush => 0,
        };
        self.received = 0;
        self.error = None;
        self.serial = self.serial.wrapping_add(1);
        self.state = State::Unsent;
    }

    /// After the successful end of a piece: prepares the next one; false if the request is done.
    pub fn advance(&mut self, features: Features) -> bool {
        if self.step == Step::Flush {
            return false;
        }
        if self.done + self.piece < self.request.len {
            self.done += self.piece;
            return true;
        }
        if self.request.fua && self.changes_data() && !features.fua && features.flush {
            self.step = Step::Flush;
            return true;
        }
        false
    }

    /// Writes the header of the piece. `slot` is the index of the record.
    pub fn encode(&mut self, slot: u32, disk: &Disk, connection: &Negotiated) {
        let features = disk.features();
        let sends_zeroes = self.sends_zeroes(features);
        let (command, mut flags) = match (self.step, self.request.op) {
            (Step::Flush, _) | (_, Op::Flush) => (command::FLUSH, 0),
            (_, Op::Read) => (command::READ, 0),
            (_, Op::Write) => (command::WRITE, 0),
            (_, Op::Discard) => (command::TRIM, 0),
            (_, Op::WriteZeroes { .. }) if sends_zeroes => (command::WRITE, 0),
            (_, Op::WriteZeroes { unmap: true }) => (command::WRITE_ZEROES, 0),
            (_, Op::WriteZeroes { unmap: false }) => (command::WRITE_ZEROES, command_flag::NO_HOLE),
        };
        let is_stable = self.request.fua && features.fua;
        if is_stable && matches!(command, command::WRITE | command::WRITE_ZEROES) {
            flags |= command_flag::FUA;
        }
        let cookie = u64::from(self.serial) << 32 | u64::from(slot);
        let offset = match command {
            command::FLUSH => 0,
            _ => self.piece_offset(),
        };
        if connection.replies == ReplyStyle::Extended {
            if command == command::WRITE {
                flags |= command_flag::PAYLOAD_LEN;
            }
            let header = wire::ExtendedRequest {
                magic: wire::EXTENDED_REQUEST_MAGIC,
                flags,
                command,
                cookie,
                offset,
                length: self.piece,
            };
            self.header = header.encode();
            self.header_len = wire::ExtendedRequest::BYTES;
        } else {
            let header = wire::Request {
                magic: wire::REQUEST_MAGIC,
                flags,
                command,
                cookie,
                offset,
                // Pieces are smaller.
                length: u32::try_from(self.piece).unwrap_or(u32::MAX),
            };
            self.header[..wire::Request::BYTES].copy_from_slice(&header.encode());
            self.header_len = wire::Request::BYTES;
        }
    }

    /// Bytes of the piece on the wire.
    pub fn wire_len(&self, features: Features) -> u64 {
        let payload = match self.request.op {
            _ if self.sends_segments() || self.sends_zeroes(features) => self.piece,
            _ => 0,
        };
        self.header_len as u64 + payload
    }

    /// Appends header and data of the piece, without the first `skip` bytes, until `out` has `most` entries. Returns the bytes
    /// that were appended.
    ///
    /// # Safety
    /// As for [`segments`](Self::segments). The list is valid until the record changes or the request completes.
    pub unsafe fn append_message(
        &self,
        features: Features,
        skip: u64,
        out: &mut Vec<iovec>,
        most: usize,
    ) -> u64 {
        let header = iovec {
            iov_base: self.header.as_ptr().cast_mut().cast(),
            iov_len: self.header_len,
        };
        let header_len = self.header_len as u64;
        let mut bytes = append_part(&[header], skip, header_len.saturating_sub(skip), out, most);
        let payload = self.wire_len(features) - header_len;
        let skip = skip.saturating_sub(header_len);
        if payload == 0 {
        } else if self.sends_zeroes(features) {
            let zeroes = iovec {
                iov_base: ZEROES.as_ptr().cast_mut().cast(),
                iov_len: ZEROES.len(),
            };
            let mut rest = payload - skip;
            while rest > 0 && out.len() < most {
                let part = append_part(&[zeroes], 0, rest.min(ZEROES.len() as u64), out, most);
                rest -= part;
                bytes += part;
            }
        } else if self.is_given_up {
            let kept = iovec {
                iov_base: self.kept_data.as_ptr().cast_mut().cast(),
                iov_len: self.kept_data.len(),
            };
            bytes += append_part(&[kept], skip, payload - skip, out, most);
        } else {
            // SAFETY: our caller promises it.
            let segments = unsafe { self.segments() };
            bytes += append_part(segments, self.done + skip, payload - skip, out, most);
        }
        bytes
    }
}

/// Most bytes of a read or write.
fn max_payload(disk: &Disk) -> u64 {
    u64::from(disk.negotiated().blocks.maximum)
}

/// The records of a queue.
pub(super) struct Records {
    /// Never changes its length, so that headers do not move while they are sent.
    slots: Box<[Record]>,
    /// Indices of free ones; last in, first out.
    free: Vec<u32>,
}

impl Records {
    pub fn new(count: u32) -> Self {
        let empty = |_| Record {
            request: Request::without_data(Op::Flush, 0, 0, 0),
            source: 0,
            group: None,
            state: State::Free,
            step: Step::Request,
            done: 0,
            piece: 0,
            received: 0,
            error: None,
            serial: 0,
            order: 0,
            is_late_write: false,
            is_given_up: false,
            kept_data: Vec::new(),
            losses: 0,
            header: [0; HEADER_BYTES],
            header_len: 0,
        };
        Records {
            slots: (0..count).map(empty).collect(),
            free: (0..count).rev().collect(),
        }
    }

    /// How many are free.
    pub fn room(&self) -> usize {
        self.free.len()
    }

    /// How many are used.
    pub fn used(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Takes a record for a request of the source at this place.
    pub fn take(
        &mut self,
        request: &Request,
        source: u32,
        group: Option<&Arc<RequestGroup>>,
        order: u64,
    ) -> Option<u32> {
        let slot = self.free.pop()?;
        let record = self.get_mut(slot);
        *record = Record {
            request: *request,
            source,
            group: group.cloned(),
            step: Step::Request,
            done: 0,
            order,
            is_late_write: false,
            is_given_up: false,
            kept_data: Vec::new(),
            losses: 0,
            state: State::Held,
            ..*record
        };
        Some(slot)
    }

    /// Frees a record.
    pub fn release(&mut self, slot: u32) {
        let record = self.get_mut(slot);
        record.state = State::Free;
        record.group = None;
        record.kept_data = Vec::new();
        self.free.push(slot);
    }

    pub fn get(&self, slot: u32) -> &Record {
        &self.slots[slot as usize]
    }

    pub fn get_mut(&mut self, slot: u32) -> &mut Record {
        &mut self.slots[slot as usize]
    }

    /// The request that waits for a reply with this cookie.
    pub fn find_sent(&mut self, cookie: u64) -> Option<u32> {
        let [slot, serial] = [cookie & u64::from(u32::MAX), cookie >> 32];
        let slot = u32::try_from(slot).ok()?;
        let record = self.slots.get(slot as usize)?;
        (record.state == State::Sent && u64::from(record.serial) == serial).then_some(slot)
    }

    /// All that are used, with their indices.
    pub fn iter_used(&self) -> impl Iterator<Item = (u32, &Record)> {
        let numbered = (0..).zip(self.slots.iter());
        numbered.filter(|(_, record)| record.state != State::Free)
    }
}
