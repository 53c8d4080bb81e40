//! Replies to the socket: many in one call, each a header and its data from where that is.

use std::collections::VecDeque;
use std::io::IoSlice;

use rustix::io::Errno;

use super::{Connection, DEPTH, MAX_BYTES_PER_TURN};

/// Most replies that are sent by one call: two pieces each.
const MAX_BATCH: usize = 64;

/// Replies that are ready, in the order in which they are sent.
pub(super) struct Replies {
    slots: VecDeque<u16>,
    /// Bytes of the first one that were sent.
    sent: usize,
}

impl Default for Replies {
    fn default() -> Self {
        Replies {
            slots: VecDeque::with_capacity(DEPTH.into()),
            sent: 0,
        }
    }
}

impl Replies {
    pub fn push(&mut self, slot: u16) {
        self.slots.push_back(slot);
    }

    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }
}

impl Connection {
    /// Sends replies until the socket is full, or enough for a turn. True: some are left.
    pub(super) fn send_replies(&mut self) -> bool {
        let mut left = MAX_BYTES_PER_TURN;
        while self.has_unsent() && !self.socket.is_full && left > 0 {
            match self.send_batch(left) {
                Ok(sent) => {
                    left = left.saturating_sub(sent);
                    self.release_sent(sent);
                }
                Err(Errno::AGAIN) => self.socket.is_full = true,
                Err(Errno::INTR) => {}
                // The client is gone.
                Err(_) => self.break_off(),
            }
        }
        self.has_unsent()
    }

    /// Sends the first replies, about `most` bytes, by one call.
    fn send_batch(&mut self, most: usize) -> rustix::io::Result<usize> {
        let mut pieces = [IoSlice::new(&[]); 2 * MAX_BATCH];
        let (mut count, mut bytes) = (0, 0);
        let mut skipped = self.replies.sent;
        for slot in self.replies.slots.iter().take(MAX_BATCH) {
            // SAFETY: its request has completed.
            for piece in unsafe { self.slots.get(*slot).reply() } {
                let begin = skipped.min(piece.len());
                skipped -= begin;
                let piece = &piece[begin..];
                let piece = &piece[..piece.len().min(most - bytes)];
                if !piece.is_empty() {
                    pieces[count] = IoSlice::new(piece);
                    (count, bytes) = (count + 1, bytes + piece.len());
                }
            }
            if bytes == most {
                break;
            }
        }
        self.socket.client.send(&pieces[..count])
    }

    /// Frees the slots of replies that were sent.
    fn release_sent(&mut self, sent: usize) {
        self.replies.sent += sent;
        while let Some(&first) = self.replies.slots.front() {
            // SAFETY: its request has completed.
            let [header, tail] = unsafe { self.slots.get(first).reply() };
            let bytes = header.len() + tail.len();
            if self.replies.sent < bytes {
                break;
            }
            self.replies.sent -= bytes;
            self.replies.slots.pop_front();
            self.release_slot(first);
        }
    }

    /// Frees the slots of all replies, which are not sent.
    pub(super) fn drop_replies(&mut self) {
        while let Some(slot) = self.replies.slots.pop_front() {
            self.release_slot(slot);
        }
        self.replies.sent = 0;
    }
}
