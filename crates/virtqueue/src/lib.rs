//! Virtqueues over checked guest memory.
//!
//! The guest and the device share a queue in the guest's own memory: the guest may write anything
//! there, at any time, also while we read it. This crate is the border. Behind it, a request is a
//! list of host ranges that are known to be mapped, with lengths that are known to add up; in front
//! of it, nothing is believed. A malformed queue is an error value of that queue, never more.
//!
//! - [`memory`]: the regions that the front-end shared, and the way from a guest address to ours.
//! - [`chain`]: the host ranges of one descriptor chain.
//! - [`split`]: the split virtqueue itself: pop, push, publish, kicks.
//! - [`packed`]: the packed virtqueue, which does the same in another form.
//! - [`queue`]: one of either form.
//! - [`InflightRegion`]: where a queue of either form records what it has taken, for whoever starts it
//!   after a crash; [`TrackedQueue`]: a queue that does.
//! - [`DirtyLog`]: which pages were written, for live migration; [`LoggedQueue`]: a queue that says so.
//! - [`virtqueue`]: what a device needs of a queue of either form.
//! - [`testing`]: the guest's side of a queue, for tests of this crate and of its users.
//!
//! What the bytes of a request mean, who kicks and who calls is not decided here.
//!
//! Sections are those of the Virtual I/O Device (VIRTIO) specification, version 1.2.

mod access;
mod buffers;
pub mod chain;
mod descriptor;
mod dirty_log;
mod error;
mod inflight;
mod logged;
pub mod memory;
pub mod packed;
pub mod planted;
pub mod queue;
mod ring;
pub mod split;
pub mod testing;
mod tracked;
pub mod virtqueue;
mod walk;
mod words;

pub use chain::{Chain, MAX_SEGMENTS};
pub use dirty_log::{DirtyLog, LOG_PAGE_BYTES};
pub use error::{Ring, RingError};
#[cfg(feature = "simulation")]
pub use inflight::steps;
pub use inflight::{InflightError, InflightRegion};
pub use logged::{LoggedQueue, QueueLog};
pub use memory::{GuestMemory, MemoryError, Region};
pub use packed::PackedQueue;
pub use queue::Queue;
pub use split::{RingFeatures, RingLayout, SplitQueue};
pub use tracked::{TrackedPacked, TrackedQueue, TrackedSplit};
pub use virtqueue::{ChainId, Virtqueue};
pub use walk::MAX_CHAIN_DESCRIPTORS;
pub use words::Words;
