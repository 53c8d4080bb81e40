//! An opened file or block device, which the drivers `file` and `host_device` share.
//!
//! Linux AIO or a ring carries the requests that it can carry without blocking; worker threads carry the rest with the
//! blocking calls in [`transfer`] and [`discard`].

pub(crate) mod alignment;
pub(crate) mod allocation;
pub(crate) mod clone;
pub(crate) mod create;
pub(crate) mod discard;
pub(crate) mod lock;
pub(crate) mod lock_out;
pub(crate) mod locked_images;
pub(crate) mod new_image;
pub(crate) mod open;
pub(crate) mod open_file_id;
pub(crate) mod ops_refused_by_ring;
#[cfg(feature = "simulation")]
pub(crate) mod simulated;
pub(crate) mod transfer;

use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicU8, Ordering};

use self::alignment::Alignment;
use self::lock::{ImageAccess, LockedFd};
use self::open_file_id::OpenFileId;
use self::ops_refused_by_ring::OpsRefusedByRing;
#[cfg(feature = "simulation")]
use self::simulated::SimulatedDisk;
use crate::aio::Aio;
use crate::range_lock::RangeLock;

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
    pub range_lock: RangeLock,
    /// The simulator's disk, in place of the file.
    #[cfg(feature = "simulation")]
    pub simulated: Option<std::sync::Arc<dyn SimulatedDisk>>,
}

/// Whether guests use blocks smaller than those of direct I/O. If so every write takes the range lock, since a small write
/// rewrites the whole block around it.
#[derive(Default)]
pub(crate) struct PartialBlockMode(AtomicU8);

const UNDECIDED: u8 = 0;
const WHOLE_BLOCKS: u8 = 1;
const PARTIAL_BLOCKS: u8 = 2;

impl PartialBlockMode {
    /// Whether guests write parts of the blocks of direct I/O.
    pub fn has_partial_blocks(&self) -> bool {
        self.0.load(Ordering::Relaxed) == PARTIAL_BLOCKS
    }

    /// Sets the mode. False: it was set to the other one before.
    pub fn try_set_partial(&self, partial: bool) -> bool {
        let wanted = if partial {
            PARTIAL_BLOCKS
        } else {
            WHOLE_BLOCKS
        };
        match self
            .0
            .compare_exchange(UNDECIDED, wanted, Ordering::Relaxed, Ordering::Relaxed)
        {
            Ok(_) => true,
            Err(decided) => decided == wanted,
        }
    }
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
