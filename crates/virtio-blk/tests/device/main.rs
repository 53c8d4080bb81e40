//! The device as a guest's driver sees it, with a ring in memory and a disk that is a list.
//!
//! - `status`: what is answered to which request.
//! - `framing`: how a request may be cut into descriptors.
//! - `flow`: batches, room, broken queues.
//! - `merging`: adjacent requests become one.
//! - `stats`: what is counted of it.
//!
//! Random bytes as requests are those of a fuzz target, `virtio-blk` of `tools/fuzz-targets`; random batches with their data are those of
//! the simulator.

#![allow(clippy::unwrap_used, reason = "a test ends when it surprises")]
#![allow(
    clippy::cast_possible_truncation,
    reason = "a test's numbers are small"
)]

mod flow;
mod framing;
mod harness;
mod merging;
mod stats;
mod status;
