//! Virtqueues, split and packed, as the device sees them, over guest memory whose every address is checked.
//!
//! The guest and the device share a queue in the guest's own memory: the guest may write anything
//! there, at any time, also while we read it. This crate is the trust boundary. Its callers get a request as a
//! list of host ranges that are known to be mapped, with lengths that are known to add up; nothing that
//! the guest wrote is trusted before. A malformed queue is an error of that queue and nothing else.
//!
//! - [`Queue`]: a virtqueue, as devices use it: pop, push, publish, kicks.
//! - [`split`] and [`packed`]: its two formats.
//! - [`InflightRegion`]: the record of requests in flight, for recovery after a crash.
//! - [`DirtyLog`]: a bitmap of written pages, for live migration.
//! - [`memory`]: the regions that the front-end shared, and the translation of guest addresses.
//! - [`chain`]: the host ranges of one descriptor chain.
//! - [`queue_setup`]: set-up of a queue, and commands for one that runs.
//! - [`testing`]: the guest's side of a queue, for tests of this crate and of its users.
//!
//! Devices interpret the bytes of a request; iothreads wait for kicks and signal the guest.
//!
//! Sections are those of the Virtual I/O Device (VIRTIO) specification, version 1.2.

mod access;
mod any_ring;
mod buffers;
pub mod chain;
mod descriptor;
mod dirty_log;
mod dirty_tracker;
mod error;
mod guest_u32_access;
mod inflight;
mod layout;
pub mod memory;
#[cfg(feature = "observer")]
mod observer;
pub mod packed;
mod queue;
pub mod queue_setup;
pub mod split;
pub mod store_hook;
pub mod testing;

pub use chain::{Chain, ChainId, MAX_SEGMENTS};
pub use dirty_log::{DirtyLog, LOG_PAGE_BYTES};
pub use dirty_tracker::QueueDirtyLog;
pub use error::{InflightError, RingError, RingPart};
pub use guest_u32_access::GuestU32Access;
pub use inflight::InflightRegion;
pub use layout::{MAX_CHAIN_DESCRIPTORS, MAX_QUEUE_SIZE, RingFeatures, RingLayout};
pub use memory::{GuestMemory, MemoryError, Region};
#[cfg(feature = "observer")]
pub use observer::QueueObserver;
pub use packed::PackedRing;
pub use queue::Queue;
pub use split::SplitRing;
