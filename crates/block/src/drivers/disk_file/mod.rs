//! A file or block device that was opened: what the drivers `file` and `host_device` share.
//!
//! Requests reach it by Linux AIO or a ring where these can do them without blocking, and by worker threads else: the
//! blocking ways are here ([`transfer`], [`discard`]).

pub(crate) mod alignment;
pub(crate) mod backing_id;
pub(crate) mod create;
pub(crate) mod discard;
mod held_locks;
pub(crate) mod lock;
pub(crate) mod no_wait;
pub(crate) mod open;
pub(crate) mod ring_range;
pub(crate) mod transfer;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use engine::Errno;

use self::alignment::Alignment;
use self::backing_id::BackingId;
use self::lock::LockedFd;
use self::ring_range::{RingRanges, UnsupportedOps};
use crate::aio::Aio;
use crate::allocation::Allocation;
use crate::drivers::Driver;
use crate::io::AttachContext;
use crate::node::Node;
use crate::range_lock::RangeLock;
use crate::route::{Carrier, Path, Route, Target};
use crate::task::TaskNode;

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
    pub simulated: Option<Arc<dyn crate::SimulatedDisk>>,
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

impl Driver for Arc<DiskFile> {
    fn file(&self) -> Option<&Arc<DiskFile>> {
        Some(self)
    }

    fn opened(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.as_fd())
    }

    fn allocations(
        &self,
        offset: u64,
        len: u64,
        most: usize,
    ) -> Result<Option<Vec<Allocation>>, Errno> {
        if self.device_block.is_some() {
            return Ok(None);
        }
        match self.pieces(offset, offset + len, most) {
            Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(None),
            pieces => pieces.map(Some),
        }
    }

    fn attach(&self, node: &Node, cx: &mut AttachContext<'_>) -> Route {
        let carrier = cx.attach_file(self);
        let target = Target {
            file: self.clone(),
            carrier,
            base: 0,
            unmap: node.unmap(),
        };
        let path = || Path::File(target.clone());
        let ranges: Option<Rc<dyn TaskNode>> = match carrier {
            Carrier::Ring(_) => Some(Rc::new(RingRanges {
                target: target.clone(),
            })),
            Carrier::Native | Carrier::Workers => None,
        };
        let range = || ranges.clone().map_or_else(path, Path::Task);
        let has_cache = !self.no_flush && !node.read_only();
        Route {
            read: path(),
            write: path(),
            zeroes: range(),
            discard: if node.unmap() { range() } else { Path::Nothing },
            flush: match has_cache {
                true => Path::File(Target {
                    carrier: cx.carrier_of_flushes(carrier),
                    ..target.clone()
                }),
                false => Path::Nothing,
            },
            files: vec![self.clone()],
            merging_helps: true,
            disk: Some(target.clone()),
        }
    }
}
