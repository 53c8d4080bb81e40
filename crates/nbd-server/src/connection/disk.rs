//! Requests to the disk, and their completions.

use block::{DiskIo, Op, Request, token};
use iothread::{Completion, Errno};
use nbd::server::{Operation, Refusal};
use nbd::wire::NbdErrno;

use super::slots::{ReplyTail, Slot};
use super::{Connection, DISK};

impl Slot {
    /// The operation of the next part of the request; `None`: it does not need the disk.
    fn next_op(&self) -> Option<Op> {
        match self.operation {
            _ if self.is_flushing => Some(Op::Flush),
            Operation::Flush => Some(Op::Flush),
            _ if self.len == 0 => None,
            Operation::Read => Some(Op::Read),
            Operation::Write => Some(Op::Write),
            Operation::Trim => Some(Op::Discard),
            Operation::WriteZeroes { may_unmap, .. } => Some(Op::WriteZeroes { unmap: may_unmap }),
            Operation::Cache | Operation::BlockStatus { .. } => None,
        }
    }

    /// The bytes of its buffer that the next part transfers.
    fn set_segment(&mut self) {
        let Some(buffer) = &self.buffer else { return };
        self.iovec = libc::iovec {
            iov_base: buffer.as_ptr().cast(),
            #[allow(clippy::cast_possible_truncation, reason = "at most 32 MiB")]
            iov_len: self.len as usize,
        };
    }
}

impl Connection {
    /// Answers a complete request that does not need the disk. Others are submitted when there is room.
    pub(super) fn answer_or_make_ready(&mut self, number: u16) {
        let slot = self.slots.get(number);
        match slot.operation {
            Operation::WriteZeroes {
                only_if_fast: true, ..
            } => {
                let text = "zeroes may take as long as a write";
                let errno = NbdErrno::NotSup;
                self.refuse(number, Refusal { errno, text });
            }
            Operation::BlockStatus { .. } => self.slots.ready.push_back(number),
            _ if slot.next_op().is_none() => self.succeed(number),
            _ => self.slots.ready.push_back(number),
        }
    }

    /// Submits requests while there is room. False: some wait.
    pub(super) fn submit_requests(&mut self, io: &mut dyn DiskIo) -> bool {
        let mut has_submitted = false;
        while let Some(&number) = self.slots.ready.front() {
            if io.room(DISK) == 0 {
                self.counter.count_turn(has_submitted);
                return false;
            }
            self.slots.ready.pop_front();
            has_submitted |= self.submit_or_answer(number, io);
        }
        self.counter.count_turn(has_submitted);
        // What was answered without the disk is sent at once: no completion follows.
        self.send_replies();
        true
    }

    /// Submits the next part of a request, for which there is room, or answers it. True: it was submitted.
    fn submit_or_answer(&mut self, number: u16, io: &mut dyn DiskIo) -> bool {
        let size = self.usable_size();
        let slot = self.slots.get_mut(number);
        // The disk may have shrunk since the request was parsed.
        if slot.offset + slot.len > size {
            let errno = match slot.operation {
                Operation::Write | Operation::WriteZeroes { .. } => NbdErrno::NoSpc,
                _ => NbdErrno::Inval,
            };
            let text = "the range reaches beyond the end of the export";
            self.refuse(number, Refusal { errno, text });
            return false;
        }
        if let Operation::BlockStatus { .. } = slot.operation {
            let begins = self.slots.begin_query_or_wait(number);
            if begins {
                self.submit_status_query(number, io);
            }
            return begins;
        }
        let Some(op) = slot.next_op() else {
            unreachable!("it was answered without the disk");
        };
        let is_transfer = matches!(op, Op::Read | Op::Write);
        let left = slot.len - slot.done;
        slot.part = match op {
            Op::Flush => 0,
            Op::Read | Op::Write => left,
            Op::Discard | Op::WriteZeroes { .. } => left.min(self.max_range_bytes),
        };
        slot.set_segment();
        let request = Request {
            op,
            fua: slot.fua && matches!(op, Op::Write | Op::WriteZeroes { .. }),
            offset: match op {
                Op::Flush => 0,
                _ => slot.offset + slot.done,
            },
            len: slot.part,
            iov: &raw mut slot.iovec,
            iov_count: is_transfer.into(),
            token: token::new(0, number.into()),
        };
        if slot.done == 0 && !slot.is_flushing {
            self.counter.count_submitted(number.into(), &request);
        }
        self.slots.count_submitted();
        // SAFETY: the slot keeps segment and buffer until the completion, and accesses neither before.
        unsafe { io.submit(DISK, request) };
        true
    }

    /// Handles requests that are done: answers them, or has their next part submitted.
    pub(super) fn complete_requests(&mut self, done: &[Completion]) {
        for completion in done {
            #[allow(clippy::cast_possible_truncation, reason = "less than DEPTH")]
            let number = token::request_number(completion.token) as u16;
            self.slots.count_completed();
            if let Operation::BlockStatus { .. } = self.slots.get(number).operation {
                self.slots.end_query();
            }
            match completion.result {
                Ok(_) => self.complete_part(number),
                Err(errno) => self.fail(number, errno),
            }
        }
    }

    /// Handles that a part of a request has succeeded.
    fn complete_part(&mut self, number: u16) {
        let slot = self.slots.get_mut(number);
        if let Operation::BlockStatus { one } = slot.operation {
            return self.reply_with_status(number, one);
        }
        slot.done += slot.part;
        slot.part = 0;
        let is_discard = slot.operation == Operation::Trim;
        if slot.done < slot.len && slot.next_op() != Some(Op::Flush) {
            return self.continue_with_next_part(number);
        }
        if is_discard && slot.fua && !slot.is_flushing {
            slot.is_flushing = true;
            return self.continue_with_next_part(number);
        }
        let (op, len, admitted_at) = (slot.counted_op(), slot.len, slot.admitted_at);
        self.counter
            .count_succeeded(number.into(), op, len, admitted_at);
        self.succeed(number);
    }

    /// Has the next part of a request submitted, unless the connection ends.
    fn continue_with_next_part(&mut self, number: u16) {
        let socket = &self.socket;
        if socket.is_broken {
            let op = self.slots.get(number).counted_op();
            self.counter.count_failed(number.into(), op);
            return self.release_slot(number);
        }
        self.slots.ready.push_back(number);
    }

    /// Replies with the success of a request.
    fn succeed(&mut self, number: u16) {
        let slot = self.slots.get_mut(number);
        let (cookie, offset) = (slot.cookie, slot.offset);
        if slot.operation == Operation::Read {
            #[allow(clippy::cast_possible_truncation, reason = "at most 32 MiB")]
            let len = slot.len as u32;
            slot.header = self.transmission.read_reply(cookie, offset, len);
            slot.tail = ReplyTail::Data(len);
        } else {
            slot.header = self.transmission.success_reply(cookie, offset);
        }
        self.queue_reply(number);
    }

    /// Replies with an error of the disk, and reports it to monitors.
    fn fail(&mut self, number: u16, errno: Errno) {
        let slot = self.slots.get(number);
        if !matches!(slot.operation, Operation::BlockStatus { .. }) {
            let op = slot.counted_op();
            self.counter.count_failed(number.into(), op);
            self.reports
                .report_error_sent_to_guest(op == Op::Read, errno);
        }
        let errno = NbdErrno::from_linux(errno.raw_os_error());
        let text = match errno {
            NbdErrno::NoSpc => "the disk is full",
            _ => "the disk has failed the request",
        };
        self.reply_with_error(number, Refusal { errno, text });
    }

    /// Replies with an error that a check before the disk has found.
    fn refuse(&mut self, number: u16, refusal: Refusal) {
        let slot = self.slots.get(number);
        match slot.done > 0 || slot.is_flushing {
            true => self.counter.count_failed(number.into(), slot.counted_op()),
            false => self.counter.count_invalid(slot.counted_op()),
        }
        self.reply_with_error(number, refusal);
    }

    fn reply_with_error(&mut self, number: u16, refusal: Refusal) {
        let slot = self.slots.get_mut(number);
        slot.set_refusal(&self.transmission, refusal);
        self.queue_reply(number);
    }

    /// Queues the reply of a request; the buffer of a write is free from here on.
    pub(super) fn queue_reply(&mut self, number: u16) {
        if self.socket.is_broken {
            return self.release_slot(number);
        }
        let slot = self.slots.get_mut(number);
        if !matches!(slot.tail, ReplyTail::Data(_))
            && let Some(buffer) = slot.buffer.take()
        {
            self.has_freed = true;
            self.buffers.put(buffer);
        }
        self.replies.push(number);
    }
}

impl Slot {
    /// The operation as which the request is counted.
    fn counted_op(&self) -> Op {
        match self.operation {
            Operation::Read | Operation::Cache | Operation::BlockStatus { .. } => Op::Read,
            Operation::Write => Op::Write,
            Operation::Flush => Op::Flush,
            Operation::Trim => Op::Discard,
            Operation::WriteZeroes { may_unmap, .. } => Op::WriteZeroes { unmap: may_unmap },
        }
    }
}
