//! An opened disk.
//!
//! A node is opened, shared and closed on the control plane; on a request's way it is only read.
//! Requests in flight keep it alive through whoever submitted them.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use rustix::fs::{AtFlags, StatxFlags};

use crate::aio::Aio;
use crate::alignment::Alignment;
use crate::backing_id::BackingId;
use crate::blkdebug::Filter;
use crate::error::NodeError;
use crate::faults::Faults;
use crate::file::{self, FileOptions};
use crate::host_device;
use crate::lock::{LockedFd, Locking};
use crate::null::NullOptions;
use crate::range_lock::RangeLock;
use crate::ring_range::UnsupportedOps;

/// What discard means on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiscardLimits {
    /// Discards smaller than this, or not aligned to it, give no space back. In bytes.
    pub granularity: u32,
    /// The most bytes that one request should discard.
    pub max_bytes: u64,
}

/// The form of a disk, taken from the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes, a multiple of 512.
    pub size: u64,
    /// The smallest block that the disk reads and writes, in bytes.
    pub logical_block_size: u32,
    /// The block that it writes without reading first, in bytes.
    pub physical_block_size: u32,
    /// The smallest request that is efficient, in bytes; 0: not known.
    pub min_io_size: u32,
    /// The best size of a request, in bytes; 0: not known.
    pub opt_io_size: u32,
    /// What discard means; a node without one ignores discards.
    pub discard: DiscardLimits,
}

/// How a node is opened.
#[derive(Clone, Debug)]
pub enum NodeOptions {
    /// A raw image in a file.
    File(FileOptions),
    /// A block device.
    HostDevice(FileOptions),
    /// Nothing: reads and writes succeed.
    Null(NullOptions),
}

/// What stands behind a node, shared by the windows onto it. Which it is is a number of its own: every request compares
/// it, and the compiler's would have to be worked out from the fields of a file.
#[repr(u8)]
pub(crate) enum Backing {
    Fd(FdBacking),
    Null(NullOptions),
    /// Another node, of whose requests not all have their way.
    Filter(Filter),
}

/// A file or a block device.
pub(crate) struct FdBacking {
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

    fn decide(&self, partial: bool) -> bool {
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

impl FdBacking {
    pub fn raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// A place on a disk.
pub(crate) struct Disk<'a> {
    /// Never a filter.
    pub backing: &'a Arc<Backing>,
    /// In bytes.
    pub base: u64,
}

/// What a node shows of its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Span {
    /// All from its first byte on: its size follows the disk's.
    ToEnd,
    /// As much as its options say.
    Fixed,
}

/// An opened disk, or a window onto one.
pub struct Node {
    name: String,
    /// As it was when the node was opened; its size may have changed since.
    geometry: Geometry,
    /// Its size now.
    pub(crate) size: AtomicU64,
    pub(crate) span: Span,
    read_only: bool,
    /// Discards reach the disk; else they are accepted and do nothing.
    unmap: bool,
    /// First byte of the window in the backing.
    base: u64,
    pub(crate) backing: Arc<Backing>,
}

impl Node {
    /// Opens a node. `name` is what other options and messages call it.
    ///
    /// # Errors
    /// [`NodeError`]: what was wrong and what to do about it.
    pub fn open(
        name: &str,
        read_only: bool,
        options: &NodeOptions,
    ) -> Result<Arc<Node>, NodeError> {
        Self::open_with(name, read_only, options, None)
    }

    /// The same of a file or device that another process has opened, with the locks that it has. Its path is not looked
    /// at: something else may stand there by now.
    ///
    /// # Errors
    /// As of [`Node::open`].
    pub fn take_over(
        name: &str,
        read_only: bool,
        options: &NodeOptions,
        opened: OwnedFd,
    ) -> Result<Arc<Node>, NodeError> {
        Self::open_with(name, read_only, options, Some(opened))
    }

    fn open_with(
        name: &str,
        read_only: bool,
        options: &NodeOptions,
        opened: Option<OwnedFd>,
    ) -> Result<Arc<Node>, NodeError> {
        let (backing, geometry, unmap) = match options {
            NodeOptions::File(options) => {
                let (backing, geometry) = file::open(options, read_only, opened)?;
                (Backing::Fd(backing), geometry, options.unmap)
            }
            NodeOptions::HostDevice(options) => {
                let (backing, geometry) = host_device::open(options, read_only, opened)?;
                (Backing::Fd(backing), geometry, options.unmap)
            }
            NodeOptions::Null(options) => (Backing::Null(*options), options.geometry(), false),
        };
        Ok(Node::of(name, geometry, read_only, unmap, backing))
    }

    pub(crate) fn of(
        name: &str,
        geometry: Geometry,
        read_only: bool,
        unmap: bool,
        backing: Backing,
    ) -> Arc<Node> {
        Arc::new(Node {
            name: name.to_owned(),
            size: AtomicU64::new(geometry.size),
            span: Span::ToEnd,
            geometry,
            read_only,
            unmap,
            base: 0,
            backing: Arc::new(backing),
        })
    }

    /// The file or device behind it, for another process to take it over.
    #[must_use]
    pub fn opened(&self) -> Option<BorrowedFd<'_>> {
        match &*self.backing {
            Backing::Fd(backing) => Some(backing.fd.as_fd()),
            Backing::Null(_) | Backing::Filter(_) => None,
        }
    }

    /// A window of `size` bytes (`None`: to the end) at `offset` of another node: what the `raw`
    /// driver does. Discards are passed on if `unmap`.
    ///
    /// # Errors
    /// [`NodeError::Window`] when it has no byte or does not lie within the node, when its offset is not
    /// a multiple of the node's block, or its size not one of 512.
    pub fn window(
        name: &str,
        below: &Arc<Node>,
        offset: u64,
        size: Option<u64>,
        read_only: bool,
        unmap: bool,
    ) -> Result<Arc<Node>, NodeError> {
        let available = below.size();
        let align = below.geometry.logical_block_size;
        let span = match (size, below.span) {
            (None, Span::ToEnd) => Span::ToEnd,
            _ => Span::Fixed,
        };
        let size = size.unwrap_or(available.saturating_sub(offset));
        let fits = offset.checked_add(size).is_some_and(|end| end <= available);
        if !fits
            || size == 0
            || !offset.is_multiple_of(u64::from(align))
            || !size.is_multiple_of(crate::SECTOR_BYTES)
        {
            let node = below.name.clone();
            return Err(NodeError::Window {
                node,
                offset,
                size,
                available,
                align,
            });
        }
        Ok(Arc::new(Node {
            name: name.to_owned(),
            geometry: below.geometry,
            size: AtomicU64::new(size),
            span,
            read_only: read_only || below.read_only,
            unmap: unmap && below.unmap,
            base: below.base + offset,
            backing: below.backing.clone(),
        }))
    }

    /// A filter in front of another node, with these faults: what the `blkdebug` driver does. Discards are passed on if
    /// `unmap`.
    #[must_use]
    pub fn filtered(
        name: &str,
        below: &Arc<Node>,
        faults: Arc<Faults>,
        read_only: bool,
        unmap: bool,
    ) -> Arc<Node> {
        Arc::new(Node {
            name: name.to_owned(),
            geometry: below.geometry,
            size: AtomicU64::new(below.size()),
            span: below.span,
            read_only: read_only || below.read_only,
            unmap: unmap && below.unmap,
            base: 0,
            backing: Arc::new(Backing::Filter(Filter {
                below: below.clone(),
                faults,
            })),
        })
    }

    /// The faults of a filter.
    #[must_use]
    pub fn faults(&self) -> Option<&Arc<Faults>> {
        match &*self.backing {
            Backing::Filter(filter) => Some(&filter.faults),
            Backing::Fd(_) | Backing::Null(_) => None,
        }
    }

    /// The disk that its requests end up at, whatever filters there are, and where it begins there.
    pub(crate) fn disk(&self) -> Disk<'_> {
        match &*self.backing {
            Backing::Filter(filter) => {
                let Disk { backing, base } = filter.below.disk();
                let base = base + self.base;
                Disk { backing, base }
            }
            Backing::Fd(_) | Backing::Null(_) => Disk {
                backing: &self.backing,
                base: self.base,
            },
        }
    }

    /// What other options call it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its size now, in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    /// Its form now.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        Geometry {
            size: self.size(),
            ..self.geometry
        }
    }

    /// Whether it was opened for reading only.
    #[must_use]
    pub fn read_only(&self) -> bool {
        self.read_only
    }

    /// Whether one request costs less than two for neighbours: not where none costs anything.
    #[inline]
    #[must_use]
    pub fn merging_helps(&self) -> bool {
        matches!(&*self.backing, Backing::Fd(_))
    }

    /// How its requests reach the kernel, as far as that takes them; `None` for a null disk.
    #[must_use]
    pub fn aio(&self) -> Option<Aio> {
        match &**self.disk().backing {
            Backing::Fd(backing) => Some(backing.aio),
            Backing::Null(_) | Backing::Filter(_) => None,
        }
    }

    /// Whether its requests go around the host's page cache.
    #[must_use]
    pub fn direct(&self) -> bool {
        matches!(&**self.disk().backing, Backing::Fd(backing) if backing.direct.is_some())
    }

    /// Bytes that its file has of the file system, as far as this host knows: a server that hangs is not waited for. 0
    /// for what is no file, `None` if the kernel does not say.
    #[must_use]
    pub fn allocated_bytes(&self) -> Option<u64> {
        match &**self.disk().backing {
            // The kernel counts in 512 bytes, whatever the file system's own blocks are.
            Backing::Fd(backing) => {
                let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
                let stat = rustix::fs::statx(&backing.fd, c"", flags, StatxFlags::BLOCKS).ok()?;
                stat.stx_blocks.checked_mul(512)
            }
            Backing::Null(_) | Backing::Filter(_) => Some(0),
        }
    }

    /// Whether discards reach the disk.
    #[must_use]
    pub fn unmap(&self) -> bool {
        self.unmap
    }

    /// First byte of the window in the backing.
    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    /// Takes over the image locks of another node, which is the same file, opened before. That is left without,
    /// unless this fails. `locking` is ours and that one's.
    ///
    /// # Errors
    /// [`NodeError::Locked`]: somebody else has it in a way that leaves no place for this one.
    pub fn take_locks(
        &self,
        from: &Node,
        path: &Path,
        locking: [Locking; 2],
    ) -> Result<(), NodeError> {
        let (Backing::Fd(new), Backing::Fd(old)) = (&**self.disk().backing, &**from.disk().backing)
        else {
            return Ok(());
        };
        let read_only = [self.read_only, from.read_only];
        new.fd.take_over(&old.fd, path, locking, read_only)
    }

    /// An export announces the block size that its guests will use, before its first request.
    ///
    /// # Errors
    /// [`NodeError::MixedBlockSizes`] when another export of this disk decided otherwise.
    pub fn use_block_size(&self, logical_block_size: u32) -> Result<(), NodeError> {
        let Backing::Fd(backing) = &**self.disk().backing else {
            return Ok(());
        };
        let disk_block = backing.direct.map_or(1, |direct| direct.offset);
        if backing.block_mode.decide(logical_block_size < disk_block) {
            return Ok(());
        }
        Err(NodeError::MixedBlockSizes {
            node: self.name.clone(),
            disk_block,
        })
    }

    /// Makes all completed writes stable, waiting for it: for the orderly end of the daemon.
    ///
    /// # Errors
    /// What `fdatasync(2)` says.
    pub fn flush_blocking(&self) -> std::io::Result<()> {
        match &**self.disk().backing {
            Backing::Fd(backing) if !self.read_only => Ok(backing.flush()?),
            _ => Ok(()),
        }
    }
}
