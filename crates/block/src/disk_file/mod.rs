//! An opened file or block device, which the drivers `file` and `host_device` share.
//!
//! Linux AIO or a ring carries the requests that it can carry without blocking; worker threads carry the rest with the
//! blocking calls in [`transfer`] and [`discard`].

pub(crate) mod alignment;
pub(crate) mod allocation;
pub(crate) mod backing_id;
pub(crate) mod create;
pub(crate) mod discard;
pub(crate) mod lock;
mod locked_images;
pub(crate) mod open;
#[cfg(feature = "simulation")]
pub(crate) mod simulated;
pub(crate) mod transfer;
pub(crate) mod unsupported_ops;

use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicU8, Ordering};

use self::alignment::Alignment;
use self::backing_id::BackingId;
use self::lock::LockedFd;
#[cfg(feature = "simulation")]
use self::simulated::SimulatedDisk;
use self::unsupported_ops::UnsupportedOps;
use crate::aio::Aio;
use crate::range_lock::RangeLock;

/// An opened file or block device.
pub(crate) struct DiskFile {
    pub fd: LockedFd,
    /// What direct I/O wants of addresses, offsets and lengths; `None`: through the page cache.
    pub direct: Option<Alignment>,
    /// Bytes of a block device's own block; `None`: a file.
    pub device_block: Option<u32>,
    /// Its own, for tables of iothreads.
    pub id: BackingId,
    /// How requests reach the kernel: what an iothread tries to have for it.
    pub aio: Aio,
    /// What is known not to work in a ring.
    pub unsupported: UnsupportedOps,
    /// Requests to this node are submitted as soon as so many wait; 0: as the iothread says.
    pub aio_max_batch: u32,
    /// Flushes are left out (`cache.no-flush`): fast, and all is lost with the host.
    pub no_flush: bool,
    pub block_mode: BlockMode,
    pub ranges: RangeLock,
    /// What is there instead of a file.
    #[cfg(feature = "simulation")]
    pub simulated: Option<std::sync::Arc<dyn SimulatedDisk>>,
}

/// Whether guests use blocks smaller than direct I/O's. If so every write goes through the range
/// lock, since a small write rewrites its neighbours.
#[derive(Default)]
pub(crate) struct BlockMode(AtomicU8);

const UNDECIDED: u8 = 0;
const WHOLE_BLOCKS: u8 = 1;
const PARTIAL_BLOCKS: u8 = 2;

impl BlockMode {
    pub fn partial(&self) -> bool {
        self.0.load(Ordering::Relaxed) == PARTIAL_BLOCKS
    }

    /// The first one decides; false if that was another one.
    pub fn decide(&self, partial: bool) -> bool {
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
    pub fn raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}
