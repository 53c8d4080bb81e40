//! Errors that break a queue: malformed rings and requests of a guest.

use virtqueue::RingError;

use crate::wire::HEADER_BYTES;

/// Malformed chain that leaves no room for a response: the queue is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// Too short for header and CDB.
    #[error(
        "a command with {found} device-readable bytes, expected a header of {HEADER_BYTES} and a CDB of {cdb}"
    )]
    ShortHeader {
        /// Bytes of the chain.
        found: u64,
        /// Bytes of a CDB, as configured.
        cdb: usize,
    },
    /// Too short for the response.
    #[error("a command with room for {found} bytes of response, expected {expected}")]
    ShortResponse {
        /// Bytes of the chain.
        found: u64,
        /// Bytes of a response with its sense data.
        expected: usize,
    },
    /// The guest made a descriptor available again whose request was not finished.
    #[error("more requests in flight than the ring of {0} has entries")]
    TooMany(u16),
    /// Control request of unknown type.
    #[error("a control request of type {0}, expected 0 to 2")]
    UnknownControl(u32),
    /// Control request that is too short for its type.
    #[error(
        "a control request of {readable} bytes with room for {writable} bytes of response is too short"
    )]
    ShortControl {
        /// Bytes of the chain.
        readable: u64,
        /// Bytes for the response.
        writable: u64,
    },
    /// Too short for an event.
    #[error("a buffer of {0} bytes for an event, expected 16")]
    ShortEvent(u64),
}

/// Error of a guest that broke the queue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdmitError {
    /// Malformed ring.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// Malformed request.
    #[error(transparent)]
    Request(#[from] RequestError),
}
