//! An opened disk.
//!
//! A node is opened, shared and closed on the control plane; on a request's way it is only read.
//! Requests in flight keep it alive through whoever submitted them.

mod attach;
mod driver;

pub(crate) use attach::AttachContext;
pub(crate) use driver::Driver;

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::Errno;
use rustix::fs::{AtFlags, StatxFlags};

use crate::aio::Aio;
use crate::disk_file::DiskFile;
use crate::disk_file::allocation::Allocation;
use crate::disk_file::lock::Locking;
use crate::error::NodeError;
use crate::faults::Faults;

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

/// What a node shows of its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Span {
    /// All from its first byte on: its size follows the disk's.
    ToEnd,
    /// As much as its options say.
    Fixed,
}

/// An opened disk, or a node in front of one.
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
    pub(crate) driver: Box<dyn Driver>,
}

impl Node {
    pub(crate) fn new(
        name: &str,
        geometry: Geometry,
        read_only: bool,
        unmap: bool,
        driver: Box<dyn Driver>,
    ) -> Arc<Node> {
        Arc::new(Node {
            name: name.to_owned(),
            size: AtomicU64::new(geometry.size),
            span: Span::ToEnd,
            geometry,
            read_only,
            unmap,
            driver,
        })
    }

    /// A node in front of another one, which has what that has but for the size.
    pub(crate) fn above(
        name: &str,
        below: &Node,
        (size, span): (u64, Span),
        read_only: bool,
        unmap: bool,
        driver: Box<dyn Driver>,
    ) -> Arc<Node> {
        Arc::new(Node {
            name: name.to_owned(),
            geometry: below.geometry,
            size: AtomicU64::new(size),
            span,
            read_only: read_only || below.read_only,
            unmap: unmap && below.unmap,
            driver,
        })
    }

    /// The file or device behind it, for another process to take it over.
    #[must_use]
    pub fn opened(&self) -> Option<BorrowedFd<'_>> {
        self.driver.opened()
    }

    /// The faults of a filter.
    #[must_use]
    pub fn faults(&self) -> Option<&Arc<Faults>> {
        self.driver.faults()
    }

    /// The faults of all filters below it.
    pub fn filters_below(&self) -> impl Iterator<Item = &Arc<Faults>> {
        let nodes = std::iter::successors(Some(self), |node| {
            let (below, _) = node.driver.below()?;
            Some(below)
        });
        nodes.skip(1).filter_map(Node::faults)
    }

    /// The disk that its requests end up at, whatever nodes are in between, and where it begins there, in bytes.
    pub(crate) fn disk(&self) -> (&Node, u64) {
        let (mut node, mut base) = (self, 0);
        while let Some((below, offset)) = node.driver.below() {
            node = below;
            base += offset;
        }
        (node, base)
    }

    /// The file or device that its requests end up at, whatever nodes are in between; `None`: a null disk.
    pub(crate) fn file(&self) -> Option<&Arc<DiskFile>> {
        self.disk().0.driver.file()
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

    /// How its requests reach the kernel, as far as that takes them; `None` for a null disk.
    #[must_use]
    pub fn aio(&self) -> Option<Aio> {
        self.file().map(|file| file.aio)
    }

    /// Whether its requests go around the host's page cache.
    #[must_use]
    pub fn direct(&self) -> bool {
        self.file().is_some_and(|file| file.direct.is_some())
    }

    /// Bytes that its file has of the file system, as far as this host knows: a server that hangs is not waited for. 0
    /// for what is no file, `None` if the kernel does not say.
    #[must_use]
    pub fn allocated_bytes(&self) -> Option<u64> {
        let Some(file) = self.file() else {
            return Some(0);
        };
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let stat = rustix::fs::statx(&file.fd, c"", flags, StatxFlags::BLOCKS).ok()?;
        // The kernel counts in 512 bytes, whatever the file system's own blocks are.
        stat.stx_blocks.checked_mul(512)
    }

    /// What is known about `len` bytes at `offset`, in at most `most` pieces, which may be less than all. It may wait
    /// for the disk. A block device does not say, and counts as having space, as a null disk does.
    ///
    /// # Errors
    /// What `lseek(2)` says, but for that it cannot.
    pub fn allocations(
        &self,
        offset: u64,
        len: u64,
        most: usize,
    ) -> Result<Vec<Allocation>, Errno> {
        let known = self.driver.allocations(offset, len, most)?;
        let allocated = true;
        Ok(known.unwrap_or_else(|| vec![Allocation { len, allocated }]))
    }

    /// Whether discards reach the disk.
    #[must_use]
    pub fn unmap(&self) -> bool {
        self.unmap
    }

    /// Takes the image locks of a file or device that was opened with [`Locking::Off`]. Other nodes have none.
    ///
    /// # Errors
    /// [`NodeError::Locked`]: another program has it, or another node, in a way that leaves no place for this one.
    pub fn lock(&self, path: &Path, locking: Locking) -> Result<(), NodeError> {
        let file = self.driver.file();
        file.map_or(Ok(()), |file| file.fd.lock(path, locking, self.read_only))
    }

    /// Lets its image locks go.
    pub fn unlock(&self) {
        if let Some(file) = self.driver.file() {
            file.fd.release();
        }
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
        let (Some(new), Some(old)) = (self.file(), from.file()) else {
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
        let Some(file) = self.file() else {
            return Ok(());
        };
        let disk_block = file.direct.map_or(1, |direct| direct.offset);
        if file.block_mode.decide(logical_block_size < disk_block) {
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
        match self.file() {
            Some(file) if !self.read_only => Ok(file.flush()?),
            _ => Ok(()),
        }
    }
}
