//! Modules of the in-flight region: the record of a queue's requests in flight, in memory that outlives this process, for
//! recovery after a crash.
//!
//! A front-end keeps a buffer in which each queue has a region (vhost-user, "Inflight I/O
//! tracking"). A chain is recorded there when it is popped, before it is processed, and removed after the guest can see its used
//! entry. The process that starts the queue after a crash finds there the chains that were popped and not published. Every step is
//! ordered so that a process that ends between any two stores leaves a consistent region.
//!
//! A process that is killed has made all stores up to some point of its program and none after, so program order is what counts;
//! other processors' views of it do not matter.
//!
//! A region may contain anything: the front-end, or another process that has its descriptor, may write to it. It is
//! read when a queue starts, and checked then; afterwards it is only written.

mod packed;
mod recorder;
mod recovered_chain;
mod region;
mod split;
#[cfg(test)]
mod tests;

pub(crate) use recorder::InflightRecorder;
pub use region::InflightRegion;

use packed::PackedRecord;
use recovered_chain::RecoveredChain;
use split::SplitRecord;
