//! Block nodes, requests, and their way to an engine.
//!
//! A [`Node`] is an opened disk: a file, a block device, nothing at all. A [`Request`] is what a
//! device wants of it. [`IoContext`] belongs to one iothread and takes requests to whatever can do
//! them without blocking the loop: Linux AIO or io_uring where they are asynchronous, worker threads for
//! the rest.
//!
//! What a guest is and which device asks is not known here.

mod aio;
mod allocation;
mod drivers;
mod error;
mod gate;
mod io;
#[cfg_attr(not(test), expect(dead_code, reason = "no driver with a mapping yet"))]
mod lease;
mod mark;
mod node;
mod range_lock;
mod resize;
mod route;
#[cfg(feature = "simulation")]
mod simulation;
mod task;
#[cfg(test)]
mod testing;
#[cfg(any(test, feature = "simulation"))]
mod wrapped;

/// The models of `interleavings/` have that of loom here.
use std::sync;

pub use aio::{Aio, AioChoice, AioProbe};
pub use allocation::Allocation;
pub use drivers::blkdebug::faults::{FaultAction, FaultRule, FaultRules, Faults, Released};
pub use drivers::disk_file::create::{Created, create_sparse};
pub use drivers::disk_file::lock::{Locking, leave_locks};
pub use drivers::file::FileOptions;
pub use drivers::null_co::NullOptions;
pub use engine::{Op, Request};
pub use error::NodeError;
pub use io::{
    AllocationQuery, AttachedDisk, Call, DiskCall, DiskIo, IoContext, IoSettings, SourceIo,
    Submits, token,
};
pub use node::{DiscardLimits, Geometry, Node, NodeOptions};
pub use resize::ResizeError;
#[cfg(feature = "simulation")]
pub use simulation::{SimulatedDisk, SimulatedRing};

/// The unit in which virtio and SCSI count: 512 bytes, whatever the disk's own block is.
pub const SECTOR_BYTES: u64 = 512;
