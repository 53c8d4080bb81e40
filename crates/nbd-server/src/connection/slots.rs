//! Slots: the requests of a connection, from their header to the last byte of their reply.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use block::Allocation;
use block::dirty_bitmap::DirtyExtent;
use nbd::server::{Operation, ReplyHeader};

use super::DEPTH;
use crate::buffers::Buffer;

/// A request.
pub(super) struct Slot {
    pub cookie: u64,
    /// First byte of the request, for its reply.
    pub offset: u64,
    /// Bytes of the request.
    pub len: u64,
    pub operation: Operation,
    /// Its data is stable when it completes.
    pub fua: bool,
    /// Bytes that are done: large ranges are submitted in parts.
    pub done: u64,
    /// The part that is in flight.
    pub part: u64,
    /// What is in flight is the flush after a discard with FUA.
    pub is_flushing: bool,
    /// Data of a read or write, or of the reply.
    pub buffer: Option<Buffer>,
    /// The segment of the buffer, while it is in flight.
    pub iovec: libc::iovec,
    /// Where a query of the block status puts its results.
    pub status: Option<StatusResults>,
    /// When it was admitted, in ticks.
    pub admitted_at: u64,
    pub header: ReplyHeader,
    /// What follows the header.
    pub tail: ReplyTail,
}

/// The place for the results of a query of the block status.
#[derive(Default)]
pub(super) struct StatusResults {
    pub allocations: Arc<Mutex<Vec<Allocation>>>,
    /// For each bitmap that the client has chosen, in their order.
    pub dirty: Arc<Mutex<Vec<Vec<DirtyExtent>>>>,
}

/// What follows the header of a reply.
pub(super) enum ReplyTail {
    Nothing,
    /// So many bytes of the buffer.
    Data(u32),
    /// A text for people.
    Text(&'static str),
    /// Status chunks, with their headers.
    Status(Vec<u8>),
}

impl Slot {
    fn new() -> Self {
        Slot {
            cookie: 0,
            offset: 0,
            len: 0,
            operation: Operation::Cache,
            fua: false,
            done: 0,
            part: 0,
            is_flushing: false,
            buffer: None,
            iovec: libc::iovec {
                iov_base: std::ptr::null_mut(),
                iov_len: 0,
            },
            status: None,
            admitted_at: 0,
            header: ReplyHeader::default(),
            tail: ReplyTail::Nothing,
        }
    }

    /// The bytes of the reply, in two pieces.
    ///
    /// # Safety
    /// The request is not in flight any more.
    pub unsafe fn reply(&self) -> [&[u8]; 2] {
        let tail: &[u8] = match (&self.tail, &self.buffer) {
            // SAFETY: the caller promises that no request uses the buffer.
            (ReplyTail::Data(len), Some(buffer)) => unsafe { &buffer.as_slice()[..*len as usize] },
            (ReplyTail::Text(text), _) => text.as_bytes(),
            (ReplyTail::Status(chunks), _) => chunks,
            (ReplyTail::Nothing | ReplyTail::Data(_), _) => &[],
        };
        [self.header.as_bytes(), tail]
    }
}

/// All slots of a connection.
pub(super) struct Slots {
    slots: Box<[Slot]>,
    free: Vec<u16>,
    /// Requests that are received and not in flight: none, or not all, of their parts were submitted. In their order.
    pub ready: VecDeque<u16>,
    /// Queries of the block status that wait for the one in flight, in their order.
    waiting_queries: VecDeque<u16>,
    has_query_in_flight: bool,
    in_flight: usize,
}

// SAFETY: the pointers of the segments lead to buffers that the slots own.
unsafe impl Send for Slots {}

impl Slots {
    pub fn new() -> Self {
        Slots {
            slots: (0..DEPTH).map(|_| Slot::new()).collect(),
            free: (0..DEPTH).rev().collect(),
            ready: VecDeque::with_capacity(DEPTH.into()),
            waiting_queries: VecDeque::new(),
            has_query_in_flight: false,
            in_flight: 0,
        }
    }

    pub fn get(&self, slot: u16) -> &Slot {
        &self.slots[usize::from(slot)]
    }

    pub fn get_mut(&mut self, slot: u16) -> &mut Slot {
        &mut self.slots[usize::from(slot)]
    }

    pub fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    pub fn are_all_free(&self) -> bool {
        self.free.len() == usize::from(DEPTH)
    }

    /// Takes a free slot.
    pub fn take(&mut self) -> Option<u16> {
        self.free.pop()
    }

    /// Returns a slot, with its buffer if it has one.
    pub fn put(&mut self, slot: u16) -> Option<Buffer> {
        self.free.push(slot);
        let slot = self.get_mut(slot);
        slot.tail = ReplyTail::Nothing;
        slot.buffer.take()
    }

    /// Begins a query of the block status, or has it wait for the one in flight: each takes a worker thread for some milliseconds,
    /// which other connections and disks of the iothread use too. False: it waits.
    pub fn begin_query_or_wait(&mut self, slot: u16) -> bool {
        if self.has_query_in_flight {
            self.waiting_queries.push_back(slot);
            return false;
        }
        self.has_query_in_flight = true;
        true
    }

    /// Ends the query in flight. All that wait are ready: the first one that is not refused begins, and the others wait again.
    pub fn end_query(&mut self) {
        self.has_query_in_flight = false;
        self.ready.extend(self.waiting_queries.drain(..));
    }

    /// Takes a request that is received and not in flight: none, or not all, of its parts were submitted.
    pub fn pop_not_in_flight(&mut self) -> Option<u16> {
        let ready = self.ready.pop_front();
        ready.or_else(|| self.waiting_queries.pop_front())
    }

    /// Number of requests in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    pub fn count_submitted(&mut self) {
        self.in_flight += 1;
    }

    pub fn count_completed(&mut self) {
        self.in_flight -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_after_a_refused_one_begins() {
        let mut slots = Slots::new();
        let begun = [0, 1, 2].map(|slot| slots.begin_query_or_wait(slot));
        assert_eq!(begun, [true, false, false]);
        slots.end_query();
        assert_eq!(slots.ready, [1, 2]);
        slots.ready.clear();
        // Query 1 reaches beyond the end of a disk that has shrunk: it is refused before it begins.
        assert!(slots.begin_query_or_wait(2));
    }
}
