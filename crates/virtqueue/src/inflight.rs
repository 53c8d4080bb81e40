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
#[cfg(test)]
mod tests;

pub(crate) use recorder::Recorder;
pub use region::InflightRegion;

use packed::PackedRecord;
use recorder::RecoveredChain;
use split::SplitRecord;
