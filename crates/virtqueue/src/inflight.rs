//! In-flight region: requests in flight, in memory that outlives this process.
//!
//! A front-end keeps a buffer for us in which each queue has a region (vhost-user, "Inflight I/O
//! tracking"). What the queue takes is recorded there before it is acted on, and struck out after the
//! guest can see that it is done. Whoever starts the queue next, after a crash, reads there what was
//! taken and never given back. Every step is ordered so that a process that ends between any two
//! stores leaves a region from which that can be told.
//!
//! A process that is killed has made all stores up to some point of its program and none after, so
//! what counts is the order of the program; other processors' views of it do not matter.
//!
//! A region may hold anything: the front-end, or somebody else who has its descriptor, may write to it. It is
//! read when a queue starts, and checked then; afterwards it is only written.

mod packed;
mod recorder;
mod region;
mod split;
pub mod steps;
#[cfg(test)]
mod tests;

pub(crate) use recorder::{Recorder, RecoveredChain};
pub use region::InflightRegion;

use packed::PackedRecord;
use split::SplitRecord;

/// Why what is recorded of a queue cannot be used.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum InflightError {
    /// Somebody else's form, or no record at all.
    #[error("the record of requests in flight has version {version}: expected 0 (new) or 1")]
    Version {
        /// What it says.
        version: u16,
    },
    /// The record is of another queue.
    #[error(
        "the record of requests in flight is for {found} descriptors: expected {expected}, as the buffer is laid out"
    )]
    Entries {
        /// What it says.
        found: u16,
        /// As many each region of the buffer has.
        expected: u16,
    },
    /// The queue has more entries than the record.
    #[error(
        "the record of requests in flight has {entries} entries: expected at least the queue size {size}"
    )]
    TooFew {
        /// Those of the record.
        entries: u16,
        /// Those of the queue.
        size: u16,
    },
    /// The rings are not those that the record is of.
    #[error(
        "the used index is {used_idx}, and {recorded} in the record of requests in flight: expected at most \
         the queue size {size} in between; the front-end has to pass a new record after a reset"
    )]
    UsedIndex {
        /// In the used ring.
        used_idx: u16,
        /// In the record.
        recorded: u16,
        /// The queue's size.
        size: u16,
    },
    /// A link leads out of the record, or a position out of the ring.
    #[error("the record of requests in flight names descriptor {index}: expected one below {size}")]
    OutOfRange {
        /// Where it leads.
        index: u16,
        /// As many there are.
        size: u16,
    },
    /// A chain contradicts the others, or is longer than the ring.
    #[error(
        "the record of requests in flight has a chain of {descriptors} descriptors at {entry} that cannot be: \
         expected chains without common descriptors, together at most as long as the ring"
    )]
    Chain {
        /// Where it begins.
        entry: u16,
        /// How long it is said to be.
        descriptors: u16,
    },
}
