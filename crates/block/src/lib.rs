//! Block nodes, requests, and their way to an engine.
//!
//! A [`Node`] is an opened disk: a file, a block device, nothing at all. A [`Request`] is what a
//! device wants of it. [`IoContext`] belongs to one iothread and takes requests to whatever can do
//! them without blocking the loop: Linux AIO or io_uring where they are asynchronous, worker threads for
//! the rest.
//!
//! What a guest is and which device asks is not known here.

mod aio;
mod clock;
mod disk_file;
mod drivers;
mod error;
mod faults;
mod io;
#[cfg_attr(not(test), expect(dead_code, reason = "no driver with a mapping yet"))]
mod lease;
mod node;
mod null_disk;
mod range_lock;
mod resize;
mod route;
#[cfg(feature = "simulation")]
mod simulation;
mod source;
#[cfg(test)]
mod testing;
pub mod token;
#[cfg(any(test, feature = "simulation"))]
mod wrapped;

/// The models of `interleavings/` have that of loom here.
use std::sync;

pub use aio::{Aio, AioChoice, AioProbe};
pub use disk_file::allocation::Allocation;
pub use disk_file::create::{Created, create_sparse};
pub use disk_file::lock::{Locking, leave_locks};
pub use disk_file::open::FileOptions;
#[cfg(feature = "simulation")]
pub use disk_file::simulated::SimulatedDisk;
pub use drivers::open::NodeOptions;
pub use engine::{Op, Request};
pub use error::NodeError;
pub use faults::{FaultAction, FaultRule, FaultRules, Faults, Released};
#[cfg(feature = "simulation")]
pub use io::simulated::SimulatedRing;
pub use io::{Call, IoContext, IoSettings, Submits};
pub use node::{DiscardLimits, Geometry, Node};
pub use null_disk::NullOptions;
pub use resize::ResizeError;
pub use source::{AllocationQuery, AttachedDisk, DiskCall, DiskIo, SourceIo};

/// The unit in which virtio and SCSI count: 512 bytes, whatever the disk's own block is.
pub const SECTOR_BYTES: u64 = 512;
