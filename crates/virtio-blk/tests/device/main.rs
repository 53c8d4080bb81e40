//! The device as a guest's driver sees it, with a ring in memory and a disk that is a list.
//!
//! - `status`: what is answered to which request.
//! - `framing`: how a request may be cut into descriptors.
//! - `flow`: batches, room, broken queues.
//! - `merging`: adjacent requests become one.
//! - `model`: random batches against a model disk.
//! - `stats`: what is counted of it.
//! - `garbage`: random bytes as requests.

#![allow(clippy::unwrap_used, reason = "a test ends when it surprises")]

mod flow;
mod framing;
mod garbage;
mod harness;
mod merging;
mod model;
mod stats;
mod status;
