//! Block nodes, their requests, and the I/O context that carries requests to an engine.
//!
//! A [`Node`] is an opened disk: a file, a block device, an image of a Ceph cluster, or a null disk. A [`Request`] is what a
//! device wants of it. An [`IoContext`] belongs to one iothread and submits requests without blocking the loop: to Linux AIO
//! or io_uring where these are asynchronous, to librbd, to worker threads otherwise.
//!
//! The crate knows nothing of guests and devices. Its modules, from the bottom up:
//!
//! | module | has |
//! |---|---|
//! | `aio` | the ways to the kernel, and the choice among them |
//! | `disk_file` | an opened file or block device, with its locks and its blocking I/O |
//! | `throttle` | limits that disks share, and the gates that hold requests back |
//! | `null_disk`, `faults` | null disks; faults that a filter injects |
//! | `rbd` | images of Ceph clusters |
//! | `range_lock`, `lease` | locks of byte ranges; leases on places in a mapping |
//! | `route` | what carries out each operation of a source, with gates, marks and async tasks |
//! | `dirty_bitmap` | what may have changed on a node, and changes of bitmaps at one moment |
//! | `copy` | copies of a disk as it was at one moment, while guests write to it |
//! | `io` | the I/O context: backends, and the submission of requests to them |
//! | `node` | an opened disk, and the interface of drivers |
//! | `drivers` | one file for each kind of node |
//! | `task_share` | room of a backend that is left for tasks |
//! | `source` | the disks of a queue or host adapter, as its device sees them |
//! | `resize` | a change of a disk's size |
//! | [`testing`] | options of files and rules of faults, for tests of this crate and of its users |

mod aio;
mod clock;
mod copy;
pub mod dirty_bitmap;
mod disk_file;
mod drivers;
mod error;
mod faults;
mod io;
#[cfg_attr(not(test), expect(dead_code, reason = "no driver with a mapping yet"))]
mod lease;
mod network;
mod node;
mod null_disk;
mod range_lock;
mod rbd;
mod resize;
mod route;
#[cfg(feature = "simulation")]
mod simulation;
mod source;
mod task_share;
pub mod testing;
mod throttle;
pub mod token;

/// `lease`, `range_lock` and `woken` use this module: the models in `interleavings/` put loom's in its place.
use std::sync;

pub use aio::{Aio, AioChoice, AioProbe};
pub use clock::now_ns as clock_ns;
#[cfg(feature = "simulation")]
pub use clock::simulated as simulated_clock;
pub use copy::{
    BlockCopy, COPY_CLUSTER_BYTES, CopyExtent, CopyFailure, CopyMoment, CopySide,
    MAX_COPY_PIECE_BYTES, MirrorMode, backup_cluster_bytes,
};
pub use disk_file::allocation::Allocation;
pub use disk_file::create::{CreateOutcome, create_sparse_or_check_size};
pub use disk_file::image_id::ImageId;
pub use disk_file::lock::{Locking, set_keep_locks_on_close};
pub use disk_file::lock_out::lock_out_images;
pub use disk_file::new_image::{NewImage, NewImageError, Preallocation};
pub use disk_file::open::FileOptions;
pub use disk_file::partial_blocks::GuestBlockMode;
#[cfg(feature = "simulation")]
pub use disk_file::simulated::SimulatedDisk;
pub use drivers::open::NodeOptions;
pub use drivers::snapshot_access::SNAPSHOT_OVER;
pub use engine::{Op, Request};
pub use error::NodeError;
pub use faults::{FaultAction, FaultRule, FaultRules, Faults, NoHangGuard};
#[cfg(feature = "simulation")]
pub use io::simulated::SimulatedRing;
pub use io::{BackendSettings, BlockingCall, IoContext, SubmitCounts};
pub use node::{DiscardLimits, Geometry, Node};
pub use null_disk::NullOptions;
pub use rbd::{ImageStatus, RbdOptions, WriterLockState};
pub use resize::ResizeError;
pub use route::zero_detection::DetectZeroes;
pub use source::{AllocationQuery, AttachedDisk, DiskCall, DiskIo, SourceIo};
pub use throttle::{
    LimitKind, RateLimit, ThrottleGroup, ThrottleLimits, ThrottleMember, ThrottleStats,
};

/// Whether this was compiled for the simulator, where no disk is real: `cargo build --workspace` does that to all crates.
pub const IS_SIMULATED: bool = cfg!(feature = "simulation");

/// Bytes of a sector, the unit in which virtio and SCSI count whatever the disk's own block is.
pub const SECTOR_BYTES: u64 = 512;
