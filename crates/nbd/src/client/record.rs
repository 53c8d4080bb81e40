//! A request of a queue: its state, and the pieces in which it is sent.
//!
//! It has several pieces, one after the other, if it is larger than the server takes: each piece has a reply.

use std::sync::Arc;

use engine::{Errno, Op, Request};
use libc::iovec;

use super::disk::Disk;
use super::features::Features;
use super::request_group::RequestGroup;
use super::segments::copy_from;
use crate::wire::ExtendedRequest;

/// Most bytes of a range that is discarded or zeroed in one piece.
const MAX_RANGE_BYTES: u64 = 1 << 30;

/// Most bytes of zeroes that are sent in one piece, to a server that cannot write zeroes itself.
const MAX_SENT_ZEROES: u64 = 1 << 20;

/// The most bytes of a header.
const HEADER_BYTES: usize = ExtendedRequest::BYTES;

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
pub(super) enum Step {
    Request,
    Flush,
}

/// A request.
pub(super) struct Record {
    pub request: Request,
    /// The index of its source.
    pub source_index: u32,
    /// The job that it is for.
    pub group: Option<Arc<RequestGroup>>,
    pub state: State,
    pub step: Step,
    /// Bytes of the pieces before this one.
    pub done: u64,
    /// Bytes of the piece.
    pub piece: u64,
    /// Bytes of the piece's data that were received, for a read.
    pub received: u64,
    /// The error of the piece.
    pub error: Option<Errno>,
    /// The number of its sending: the upper half of its cookie.
    pub serial: u32,
    /// Its place in the order of requests.
    pub order: u64,
    /// The server may carry out what it has not answered, late or a second time: newer writes that overlap it wait for the answer.
    pub is_late_write: bool,
    /// It has completed without an answer of the server, and has no segments. The record stays until the answer.
    pub is_given_up: bool,
    /// Data of a piece that was sent in part when the request was given up.
    pub kept_data: Vec<u8>,
    /// How many connections broke with it.
    pub losses: u8,
    pub header: [u8; HEADER_BYTES],
    pub header_len: usize,
}

impl Record {
    /// One that is not used.
    pub fn free() -> Self {
        Record {
            request: Request::without_data(Op::Flush, 0, 0, 0),
            source_index: 0,
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
        }
    }

    /// Begins to be used for a request of the source with this index.
    pub fn begin(
        &mut self,
        request: &Request,
        source_index: u32,
        group: Option<&Arc<RequestGroup>>,
        order: u64,
    ) {
        *self = Record {
            request: *request,
            source_index,
            group: group.cloned(),
            step: Step::Request,
            done: 0,
            order,
            is_late_write: false,
            is_given_up: false,
            kept_data: Vec::new(),
            losses: 0,
            state: State::Held,
            ..*self
        };
    }

    /// Whether the piece is a read, which has data in its reply.
    pub fn is_read(&self) -> bool {
        self.request.op == Op::Read
    }

    /// Whether the data of the piece is in the segments.
    pub fn sends_segments(&self) -> bool {
        self.step == Step::Request && self.request.op == Op::Write
    }

    /// Whether the data of the piece is zeroes, which the server cannot write itself.
    pub fn sends_zeroes(&self, features: Features) -> bool {
        self.step == Step::Request
            && matches!(self.request.op, Op::WriteZeroes { .. })
            && !features.write_zeroes
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

    /// Begins again, on another connection: a read with the piece that has not ended, and what changes data with its first piece. The
    /// server may have lost what it has answered but not flushed.
    pub fn begin_again(&mut self, disk: &Disk) {
        if self.changes_data() {
            (self.step, self.done) = (Step::Request, 0);
        }
        self.begin_piece(disk);
    }

    /// Begins a piece.
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
        if self.ends_with_flush(features) {
            self.step = Step::Flush;
            return true;
        }
        false
    }

    /// Whether a flush makes its data stable, at a server without FUA.
    fn ends_with_flush(&self, features: Features) -> bool {
        self.request.fua && self.changes_data() && !features.fua && features.flush
    }
}

/// Most bytes of a read or write.
fn max_payload(disk: &Disk) -> u64 {
    u64::from(disk.negotiated().blocks.maximum)
}
