//! The buffer of bytes to send to the front-end: replies, and commands of the device.

use crate::wire::Header;

/// Sent bytes are removed from the buffer when there are so many of them, or no others.
const DRAIN_BYTES: usize = 64 << 10;

/// Encoded messages that the socket has not taken yet.
#[derive(Default)]
pub(crate) struct OutgoingBuffer {
    pub bytes: Vec<u8>,
    sent: usize,
}

impl OutgoingBuffer {
    /// Bytes that are still to be sent.
    pub fn unsent(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    /// Removes the next `count` bytes, which were sent, from [`OutgoingBuffer::unsent`].
    pub fn mark_sent(&mut self, count: usize) {
        self.sent += count;
        if self.sent == self.bytes.len() {
            self.bytes.clear();
            self.sent = 0;
        } else if self.sent >= DRAIN_BYTES {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// Begins a message; as many bytes of payload must follow.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "callers bound the payload by MAX_DATA_BYTES and its fields"
    )]
    pub fn begin_message(&mut self, header: Header, payload: usize) {
        let size = (Header::BYTES + payload) as u32;
        Header { size, ..header }.encode(&mut self.bytes);
    }
}
