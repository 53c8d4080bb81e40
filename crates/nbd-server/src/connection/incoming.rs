//! Requests from the socket: headers through a buffer of the connection, the data of large writes directly into theirs.

use std::io::IoSliceMut;

use nbd::server::{IncomingRequest, Operation, Refusal, RequestKind};
use rustix::io::Errno;

use super::slots::ReplyTail;
use super::{Connection, MAX_BYTES_PER_TURN};

/// Bytes of the buffer for headers and the data of small writes.
const INPUT_BYTES: usize = 64 << 10;

/// Room for headers beside the data of a write that is at least so large: what follows it is most likely another one, whose data is not
/// to be copied.
const LARGE_WRITE_BYTES: u64 = 16 << 10;
const INPUT_BYTES_AFTER_LARGE_WRITE: usize = 4 << 10;

/// Bytes that were received and not parsed yet, and what they are.
pub(super) struct Input {
    bytes: Box<[u8; INPUT_BYTES]>,
    begin: usize,
    end: usize,
    expected: Expected,
    last_write_was_large: bool,
    /// The next request waits for a slot or a buffer.
    is_blocked: bool,
}

/// What the next bytes are.
#[derive(Clone, Copy)]
enum Expected {
    Header,
    /// The data of a write: so many bytes are there.
    Data {
        slot: u16,
        filled: usize,
    },
    /// The data of a refused request, whose reply follows.
    Skipped {
        slot: u16,
        left: u32,
    },
}

impl Input {
    /// Begins with bytes that were received already.
    pub fn new(received: &[u8]) -> Self {
        let mut bytes = Box::new([0; INPUT_BYTES]);
        let end = received.len().min(INPUT_BYTES);
        bytes[..end].copy_from_slice(&received[..end]);
        Input {
            bytes,
            begin: 0,
            end,
            expected: Expected::Header,
            last_write_was_large: false,
            is_blocked: false,
        }
    }

    /// Whether nothing is to be read, since the next request waits.
    pub fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// Whether there is no room for more.
    pub fn is_full(&self) -> bool {
        self.begin == 0 && self.end == INPUT_BYTES
    }

    fn unparsed(&self) -> &[u8] {
        &self.bytes[self.begin..self.end]
    }

    /// The free part of the buffer.
    fn free_part(&mut self) -> &mut [u8] {
        if self.begin == self.end {
            (self.begin, self.end) = (0, 0);
        } else if self.begin > 0 {
            // Part of a header.
            self.bytes.copy_within(self.begin..self.end, 0);
            self.end -= self.begin;
            self.begin = 0;
        }
        let most = match self.last_write_was_large {
            true => self.end + INPUT_BYTES_AFTER_LARGE_WRITE,
            false => INPUT_BYTES,
        };
        let end = self.end;
        &mut self.bytes[end..most.min(INPUT_BYTES)]
    }
}

impl Connection {
    /// Reads from the socket once. True: it had bytes.
    pub(super) fn read_socket(&mut self) -> bool {
        let expected = self.input.expected;
        let data: &mut [u8] = match expected {
            Expected::Data { slot, filled } => {
                let slot = self.slots.get_mut(slot);
                #[allow(clippy::cast_possible_truncation, reason = "at most 32 MiB")]
                let len = slot.len as usize;
                match &mut slot.buffer {
                    // SAFETY: the request was not submitted.
                    Some(buffer) => unsafe { &mut buffer.as_mut_slice()[filled..len] },
                    None => &mut [],
                }
            }
            _ => &mut [],
        };
        let data_len = data.len().min(MAX_BYTES_PER_TURN);
        let input = match data_len < data.len() {
            true => &mut [][..],
            false => self.input.free_part(),
        };
        let offered = data_len + input.len();
        if offered == 0 {
            // What was read is parsed first. (Nothing would be read, as at the end.)
            return false;
        }
        let mut pieces = [
            IoSliceMut::new(&mut data[..data_len]),
            IoSliceMut::new(input),
        ];
        let received = match self.socket.client.receive(&mut pieces) {
            Ok(0) => {
                self.socket.has_read_all = true;
                self.socket.may_be_readable = false;
                return true;
            }
            Ok(received) => received,
            Err(Errno::AGAIN) => {
                self.socket.may_be_readable = false;
                return false;
            }
            Err(Errno::INTR) => return false,
            Err(_) => {
                self.break_off();
                return true;
            }
        };
        // With fewer bytes than there was room for, the socket is empty.
        self.socket.may_be_readable = received == offered || self.socket.client.has_more_to_read();
        let of_data = received.min(data_len);
        self.input.end += received - of_data;
        if let Expected::Data { slot, filled } = expected {
            let filled = filled + of_data;
            self.input.expected = Expected::Data { slot, filled };
        }
        true
    }

    /// Parses what has been received, as far as there are slots and buffers.
    pub(super) fn parse_input(&mut self) {
        self.input.is_blocked = false;
        self.has_freed = false;
        while !self.socket.is_broken {
            let has_progressed = match self.input.expected {
                Expected::Header => self.parse_header(),
                Expected::Data { slot, filled } => self.fill_data(slot, filled),
                Expected::Skipped { slot, left } => self.skip_data(slot, left),
            };
            if !has_progressed {
                break;
            }
        }
        if self.socket.has_read_all && !self.input.is_blocked {
            self.drop_incomplete_request();
        }
    }

    /// Parses a header. False: it is incomplete, or has to wait.
    fn parse_header(&mut self) -> bool {
        if self.input.begin == self.input.end {
            return false;
        }
        let size = self.usable_size();
        let request = match self.transmission.parse_request(self.input.unparsed(), size) {
            Ok(Some(request)) => request,
            Ok(None) => return false,
            Err(error) => {
                tracing::warn!(
                    export = self.export, uid = self.peer.uid(), host = self.peer.host(), %error,
                    "an NBD client is disconnected"
                );
                self.break_off();
                return false;
            }
        };
        if request.kind == RequestKind::Disconnect {
            self.socket.has_read_all = true;
            self.input.begin = self.input.end;
            return false;
        }
        if !self.slots.has_free() {
            self.input.is_blocked = true;
            return false;
        }
        let buffer = match needed_buffer_bytes(&request) {
            0 => None,
            bytes => {
                let buffer = self.buffers.take(bytes);
                self.input.is_blocked = buffer.is_none();
                if self.input.is_blocked {
                    return false;
                }
                buffer
            }
        };
        let Some(slot) = self.slots.take() else {
            return false;
        };
        self.input.begin += self.transmission.request_header_bytes();
        self.slots.get_mut(slot).buffer = buffer;
        self.begin_request(slot, &request);
        true
    }

    /// Puts a request into its slot.
    fn begin_request(&mut self, number: u16, request: &IncomingRequest) {
        let now = self.counter.now_ticks();
        let slot = self.slots.get_mut(number);
        slot.cookie = request.cookie;
        slot.offset = request.offset;
        slot.admitted_at = now;
        let RequestKind::Valid {
            operation,
            len,
            fua,
        } = request.kind
        else {
            if let RequestKind::Refused(refusal) = request.kind {
                slot.set_refusal(&self.transmission, refusal);
            }
            let left = request.payload;
            self.input.expected = Expected::Skipped { slot: number, left };
            return;
        };
        slot.operation = operation;
        slot.len = len;
        slot.fua = fua || self.write_through;
        slot.done = 0;
        slot.is_flushing = false;
        if operation == Operation::Write {
            self.input.last_write_was_large = len >= LARGE_WRITE_BYTES;
            self.input.expected = Expected::Data {
                slot: number,
                filled: 0,
            };
        } else {
            self.answer_or_make_ready(number);
        }
    }

    /// Copies the data of a write that has come with its header. False: more has to be read.
    fn fill_data(&mut self, number: u16, filled: usize) -> bool {
        let slot = self.slots.get_mut(number);
        #[allow(clippy::cast_possible_truncation, reason = "at most 32 MiB")]
        let len = slot.len as usize;
        let Input {
            bytes, begin, end, ..
        } = &mut self.input;
        let copied = (len - filled).min(*end - *begin);
        if let Some(buffer) = slot.buffer.as_mut().filter(|_| copied > 0) {
            // SAFETY: the request was not submitted.
            let to = unsafe { &mut buffer.as_mut_slice()[filled..filled + copied] };
            to.copy_from_slice(&bytes[*begin..*begin + copied]);
            *begin += copied;
        }
        let filled = filled + copied;
        if filled < len {
            self.input.expected = Expected::Data {
                slot: number,
                filled,
            };
            return false;
        }
        self.input.expected = Expected::Header;
        self.answer_or_make_ready(number);
        true
    }

    /// Skips the data of a refused request, and then queues its reply. False: more has to be read.
    fn skip_data(&mut self, slot: u16, left: u32) -> bool {
        let skipped = self.input.unparsed().len().min(left as usize);
        self.input.begin += skipped;
        #[allow(clippy::cast_possible_truncation, reason = "at most `left`")]
        let left = left - skipped as u32;
        if left > 0 {
            self.input.expected = Expected::Skipped { slot, left };
            return false;
        }
        self.input.expected = Expected::Header;
        self.replies.push(slot);
        true
    }

    /// Frees the slot of a request whose data will never come.
    fn drop_incomplete_request(&mut self) {
        if let Expected::Data { slot, .. } | Expected::Skipped { slot, .. } = self.input.expected {
            self.input.expected = Expected::Header;
            self.release_slot(slot);
        }
        self.input.begin = self.input.end;
    }
}

/// Bytes of the buffer that a request needs.
fn needed_buffer_bytes(request: &IncomingRequest) -> u32 {
    match request.kind {
        RequestKind::Valid {
            operation: Operation::Read | Operation::Write,
            len,
            ..
        } => u32::try_from(len).unwrap_or(u32::MAX),
        _ => 0,
    }
}

impl super::slots::Slot {
    /// Makes the reply an error that a check has found.
    pub(super) fn set_refusal(
        &mut self,
        transmission: &nbd::server::Transmission,
        refusal: Refusal,
    ) {
        let Refusal { errno, text } = refusal;
        self.header = transmission.error_reply(self.cookie, self.offset, errno, text);
        self.tail = match transmission.has_error_texts() {
            true => ReplyTail::Text(text),
            false => ReplyTail::Nothing,
        };
    }
}
