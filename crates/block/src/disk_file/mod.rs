//! An opened file or block device, which the drivers `file` and `host_device` share.
//!
//! Linux AIO or a ring carries the requests that it can carry without blocking; worker threads carry the rest with the
//! blocking calls in [`transfer`] and [`discard`].

pub(crate) mod alignment;
pub(crate) mod allocation;
pub(crate) mod clone;
pub(crate) mod create;
pub(crate) mod discard;
pub(crate) mod image_id;
pub(crate) mod lock;
pub(crate) mod lock_out;
pub(crate) mod locked_images;
pub(crate) mod new_image;
pub(crate) mod open;
pub(crate) mod open_file_id;
pub(crate) mod ops_refused_by_ring;
pub(crate) mod partial_blocks;
#[cfg(feature = "simulation")]
pub(crate) mod simulated;
pub(crate) mod transfer;

use std::os::fd::{AsRawFd, RawFd};

use self::alignment::Alignment;
use self::lock::{ImageAccess, LockedFd};
use self::open_file_id::OpenFileId;
use self::ops_refused_by_ring::OpsRefusedByRing;
use self::partial_blocks::PartialBlockMode;
#[cfg(feature = "simulation")]
use self::simulated::SimulatedDisk;
use crate::aio::Aio;

/// An opened file or block device.
pub(crate) struct DiskFile {
    pub fd: LockedFd,
    /// The access for which it is locked, while it is.
    pub access: ImageAccess,
    /// The alignment that direct I/O needs; `None`: I/O through the page cache.
    pub direct: Option<Alignment>,
    /// Bytes of a block device's logical block; `None`: a file.
    pub device_block: Option<u32>,
    /// Its number, the index into tables of iothreads.
    pub id: OpenFileId,
    /// How requests reach the kernel, where the iothread has that engine.
    pub aio: Aio,
    /// Operations that a ring has refused.
    pub unsupported: OpsRefusedByRing,
    /// Requests to this node are submitted as soon as so many wait; 0: the iothread's limit.
    pub aio_max_batch: u32,
    /// Flushes are omitted (`cache.no-flush`): fast, and a crash of the host loses the data.
    pub no_flush: bool,
    pub block_mode: PartialBlockMode,
    /// The simulator's disk, in place of the file.
    #[cfg(feature = "simulation")]
    pub simulated: Option<std::sync::Arc<dyn SimulatedDisk>>,
}

impl DiskFile {
    /// Its descriptor.
    pub fn raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Its number among the disks that share the worker threads of an iothread, see [`engine::Job::disk`].
    pub fn disk_number(&self) -> u64 {
        self.id.as_u32().into()
    }
}
