//! Errors that break a queue.

use virtqueue::RingError;

use crate::wire::HEADER_BYTES;

/// A chain that is no request at all: there is nowhere to put an answer. The queue is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// Too short for header and CDB.
    #[error(
        "a command with {found} device-readable bytes, expected a header of {HEADER_BYTES} and a CDB of {cdb}"
    )]
    ShortHeader {
        /// Bytes that there are.
        found: u64,
        /// Bytes of a CDB.
        cdb: usize,
    },
    /// Too short for the response.
    #[error("a command with room for {found} bytes of answer, expected {expected}")]
    ShortResponse {
        /// Bytes that there are.
        found: u64,
        /// Bytes of a response with its sense data.
        expected: usize,
    },
    /// The guest made a descriptor available again whose request was not finished.
    #[error("more requests in flight than the ring of {0} has entries")]
    TooMany(u16),
    /// Neither a task management function nor about events.
    #[error("a control request of type {0}, expected 0 to 2")]
    UnknownControl(u32),
    /// Too short for its type.
    #[error(
        "a control request of {readable} bytes with room for {writable} bytes of answer is too short"
    )]
    ShortControl {
        /// Bytes that there are.
        readable: u64,
        /// Bytes of room.
        writable: u64,
    },
    /// Too short for an event.
    #[error("a buffer of {0} bytes for an event, expected 16")]
    ShortEvent(u64),
}

/// The guest broke the queue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdmitError {
    /// The ring itself.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// What stood in it.
    #[error(transparent)]
    Request(#[from] RequestError),
}
