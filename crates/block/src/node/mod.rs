//! Nodes: opened disks, and filters and windows in front of them.
//!
//! A node is opened, shared and closed on the control plane; the request path only reads it. The source of a request keeps
//! the node open while the request is in flight.

mod attach;
mod copy_filter;
mod driver;

pub(crate) use attach::AttachContext;
pub(crate) use driver::Driver;

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use engine::Errno;
use rustix::fs::{AtFlags, StatxFlags};

use self::copy_filter::CopyFilterSlot;
use crate::aio::Aio;
use crate::dirty_bitmap::{ImageStamp, NodeBitmaps};
use crate::disk_file::DiskFile;
use crate::disk_file::allocation::Allocation;
use crate::disk_file::image_id::ImageId;
use crate::disk_file::lock::Locking;
use crate::disk_file::partial_blocks::GuestBlockMode;
use crate::error::NodeError;
use crate::faults::Faults;
use crate::rbd::{ImageStatus, RbdDisk};
use crate::route::zero_detection::DetectZeroes;
use crate::throttle::ThrottleMember;

/// The limits of discards on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiscardLimits {
    /// Bytes; discards smaller than this, or not aligned to it, free no space.
    pub granularity: u32,
    /// The most bytes that one request should discard.
    pub max_bytes: u64,
}

/// Size and block sizes of a disk, as its kernel or cluster has them.
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
    /// The limits of discards.
    pub discard: DiscardLimits,
}

/// Whether the size of a node follows that of its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SizePolicy {
    /// The node reaches from its first byte to the end of the disk, so its size follows the disk's.
    ToEnd,
    /// A fixed size, which its options set.
    Fixed,
}

/// An opened disk, or a node in front of one.
pub struct Node {
    name: String,
    /// The geometry when the node was opened; the size may have changed since.
    geometry: Geometry,
    /// Its size now.
    pub(crate) size: AtomicU64,
    pub(crate) size_policy: SizePolicy,
    read_only: bool,
    /// Discards reach the disk. Otherwise they are accepted and do nothing.
    passes_discards: bool,
    /// What becomes of writes of zeroes, if they are detected.
    detect_zeroes: OnceLock<DetectZeroes>,
    bitmaps: OnceLock<Arc<NodeBitmaps>>,
    copy_filter: CopyFilterSlot,
    pub(crate) driver: Box<dyn Driver>,
}

impl Node {
    /// A node that has its disk, or shows all of the one below: its size follows the disk's.
    pub(crate) fn new(
        name: &str,
        geometry: Geometry,
        read_only: bool,
        passes_discards: bool,
        driver: Box<dyn Driver>,
    ) -> Arc<Node> {
        Arc::new(Node {
            name: name.to_owned(),
            size: AtomicU64::new(geometry.size),
            size_policy: SizePolicy::ToEnd,
            geometry,
            read_only,
            passes_discards,
            detect_zeroes: OnceLock::new(),
            bitmaps: OnceLock::new(),
            copy_filter: CopyFilterSlot::default(),
            driver,
        })
    }

    /// A node in front of another one, with the geometry of that one except for the size.
    pub(crate) fn new_above(
        name: &str,
        below: &Node,
        (size, size_policy): (u64, SizePolicy),
        read_only: bool,
        passes_discards: bool,
        driver: Box<dyn Driver>,
    ) -> Arc<Node> {
        Arc::new(Node {
            name: name.to_owned(),
            geometry: below.geometry,
            size: AtomicU64::new(size),
            size_policy,
            read_only: read_only || below.read_only,
            passes_discards: passes_discards && below.passes_discards,
            detect_zeroes: OnceLock::new(),
            bitmaps: OnceLock::new(),
            copy_filter: CopyFilterSlot::default(),
            driver,
        })
    }

    /// Turns on the detection of writes of zeroes, before the first source attaches.
    pub fn set_detect_zeroes(&self, mode: DetectZeroes) {
        let first = self.detect_zeroes.set(mode);
        debug_assert!(first.is_ok(), "a node has one mode");
    }

    /// Its dirty bitmaps.
    #[must_use]
    pub fn bitmaps(&self) -> &Arc<NodeBitmaps> {
        self.bitmaps.get_or_init(Arc::default)
    }

    /// Takes over the dirty bitmaps of the node that it replaces, before its first route is made.
    pub fn share_bitmaps_of(&self, old: &Node) {
        let set = self.bitmaps.set(old.bitmaps().clone());
        assert!(set.is_ok(), "a node that was just opened has no bitmaps");
    }

    /// Whether requests to it reach that node, which is itself or one below it.
    #[must_use]
    pub fn leads_through(&self, node: &Node) -> bool {
        self.chain().any(|below| std::ptr::eq(below, node))
    }

    /// Whether one of both is the other, or above it.
    #[must_use]
    pub fn is_on_same_path_as(&self, other: &Node) -> bool {
        self.leads_through(other) || other.leads_through(self)
    }

    /// The descriptor of its file or device, for another process to take over.
    #[must_use]
    pub fn fd_for_handover(&self) -> Option<BorrowedFd<'_>> {
        self.driver.fd_for_handover()
    }

    /// The image of a node that is a file or device.
    #[must_use]
    pub fn image_id(&self) -> Option<ImageId> {
        Some(self.driver.file()?.fd.image)
    }

    /// The faults of a filter.
    #[must_use]
    pub fn faults(&self) -> Option<&Arc<Faults>> {
        self.driver.faults()
    }

    /// The membership in a throttle group of a node that throttles.
    #[must_use]
    pub fn throttle(&self) -> Option<&Arc<ThrottleMember>> {
        self.driver.throttle()
    }

    /// The faults of all filters below it.
    pub fn faults_below(&self) -> impl Iterator<Item = &Arc<Faults>> {
        self.chain().skip(1).filter_map(Node::faults)
    }

    /// The nodes that throttle its requests, from the top: itself, and those below it, each with its membership.
    pub fn throttles(&self) -> impl Iterator<Item = (&Node, &Arc<ThrottleMember>)> {
        self.chain()
            .filter_map(|node| Some((node, node.throttle()?)))
    }

    /// The node and those below it.
    fn chain(&self) -> impl Iterator<Item = &Node> {
        std::iter::successors(Some(self), |node| {
            let (below, _) = node.driver.below()?;
            Some(below)
        })
    }

    /// The disk below all filters and windows, and the byte of it at which this node begins.
    pub(crate) fn disk_and_offset(&self) -> (&Node, u64) {
        let (mut node, mut base) = (self, 0);
        while let Some((below, offset)) = node.driver.below() {
            node = below;
            base += offset;
        }
        (node, base)
    }

    /// The file or device below all filters and windows, if there is one.
    pub(crate) fn underlying_file(&self) -> Option<&Arc<DiskFile>> {
        self.disk_and_offset().0.driver.file()
    }

    /// The image of a Ceph cluster below all filters and windows, if there is one.
    pub(crate) fn underlying_image(&self) -> Option<&Arc<RbdDisk>> {
        self.disk_and_offset().0.driver.image()
    }

    /// The export of an NBD server below all filters and windows, if there is one.
    #[must_use]
    pub fn underlying_nbd(&self) -> Option<&Arc<nbd::client::Disk>> {
        self.disk_and_offset().0.driver.nbd()
    }

    /// The target of the backup of which the node is a snapshot: it is read as well.
    #[must_use]
    pub fn snapshot_target(&self) -> Option<&Arc<Node>> {
        self.driver.snapshot_target()
    }

    /// Its `node-name`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its current size in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    /// Its current geometry.
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

    /// How those of its requests reach the kernel that need no worker thread; `None` without a file or device.
    #[must_use]
    pub fn aio(&self) -> Option<Aio> {
        self.underlying_file().map(|file| file.aio)
    }

    /// The state of the image of a Ceph cluster below all filters and windows, if there is one. It does not wait.
    #[must_use]
    pub fn image_status(&self) -> Option<ImageStatus> {
        self.underlying_image().map(|image| image.status())
    }

    /// Whether its requests go around the host's page cache.
    #[must_use]
    pub fn uses_direct_io(&self) -> bool {
        self.underlying_file()
            .is_some_and(|file| file.direct.is_some())
    }

    /// Bytes that the file system has allocated to its file, as far as this host knows without asking a file server, which
    /// might hang. 0 for devices and null disks, `None` if the kernel does not say, and for disks behind a network.
    #[must_use]
    pub fn allocated_bytes(&self) -> Option<u64> {
        let Some(file) = self.underlying_file() else {
            // librbd would have to ask for every object, and NBD servers do not say.
            let is_remote = self.underlying_image().is_some() || self.underlying_nbd().is_some();
            return (!is_remote).then_some(0);
        };
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let stat = rustix::fs::statx(&file.fd, c"", flags, StatxFlags::BLOCKS).ok()?;
        // The kernel counts in 512 bytes, whatever the file system's own blocks are.
        stat.stx_blocks.checked_mul(512)
    }

    /// The image file at this moment; of other disks nothing is known. It waits for the server of a network file system.
    #[must_use]
    pub fn image_stamp(&self) -> ImageStamp {
        let Some(file) = self
            .underlying_file()
            .filter(|file| file.device_block.is_none())
        else {
            return ImageStamp::default();
        };
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
        let wanted = StatxFlags::INO | StatxFlags::MTIME;
        let Ok(stat) = rustix::fs::statx(&file.fd, c"", flags, wanted) else {
            return ImageStamp::default();
        };
        ImageStamp {
            inode: stat.stx_ino,
            changed_seconds: stat.stx_mtime.tv_sec,
            changed_nanoseconds: stat.stx_mtime.tv_nsec,
        }
    }

    /// The allocated parts of a range, in at most `most` pieces, which may be less than all. The last piece may end behind the range, as
    /// far as the disk has found more of the same. A disk that does not report them counts as allocated. It may wait for the disk.
    ///
    /// # Errors
    /// The error of `lseek(2)`, unless the file system does not support it, or of librbd.
    pub fn allocations(
        &self,
        offset: u64,
        len: u64,
        most: usize,
    ) -> Result<Vec<Allocation>, Errno> {
        if let Some(target) = self.copy_filter.node_of_all_requests() {
            return target.allocations(offset, len, most);
        }
        let known = self.driver.allocations(offset, len, most)?;
        let allocated = true;
        let mut pieces = known.unwrap_or_else(|| vec![Allocation { len, allocated }]);
        // A window ends before the disk below.
        Allocation::cut(&mut pieces, self.size().saturating_sub(offset).max(len));
        Ok(pieces)
    }

    /// Whether discards reach the disk. Otherwise they are accepted and do nothing (`unmap` of the options).
    #[must_use]
    pub fn passes_discards(&self) -> bool {
        self.passes_discards
    }

    /// Takes the image locks of a file or device that was opened with [`Locking::Off`]. Other nodes have none.
    ///
    /// # Errors
    /// [`NodeError::Locked`]: another process or node uses the image in a way that excludes this one.
    pub fn take_image_locks_if_enabled(
        &self,
        path: &Path,
        locking: Locking,
    ) -> Result<(), NodeError> {
        let file = self.driver.file();
        file.map_or(Ok(()), |file| {
            file.fd.take_locks_if_enabled(path, locking, file.access)
        })
    }

    /// Releases its image locks. The next request that changes an image of a Ceph cluster acquires its lock again.
    pub fn release_image_locks_unless_kept(&self) {
        if let Some(disk) = self.driver.image() {
            disk.writer_lock.release_if_held();
        }
        if let Some(file) = self.driver.file() {
            file.fd.release_locks_unless_kept();
        }
    }

    /// Takes the image locks from another node of the same file, which was opened before. That node then has no locks,
    /// unless this fails. `locking` is this node's setting, and the other one's.
    ///
    /// # Errors
    /// [`NodeError::Locked`]: a third opening uses the image in a way that excludes this one.
    pub fn move_locks_from(
        &self,
        from: &Node,
        path: &Path,
        locking: [Locking; 2],
    ) -> Result<(), NodeError> {
        let (Some(new), Some(old)) = (self.underlying_file(), from.underlying_file()) else {
            return Ok(());
        };
        let access = [new.access, old.access];
        new.fd.move_locks_from(&old.fd, path, locking, access)
    }

    /// The smallest block that can be written without reading it first, in bytes, for a job.
    #[must_use]
    pub fn whole_block_bytes(&self) -> u64 {
        let direct = self.underlying_file().and_then(|file| file.direct);
        let direct = direct.map_or(1, |direct| direct.offset);
        self.geometry.logical_block_size.max(direct).into()
    }

    /// Sets the block size that the guests of an export use, before its first request. It is taken back unless it is
    /// [kept](GuestBlockMode::keep): the export may still fail to start.
    ///
    /// # Errors
    /// [`NodeError::MixedBlockSizes`] when it conflicts with that of another export of this disk; [`NodeError::BlockTooSmall`] on
    /// a disk behind a network with larger blocks.
    pub fn set_guest_block_size(
        &self,
        logical_block_size: u32,
    ) -> Result<GuestBlockMode, NodeError> {
        let Some(file) = self.underlying_file() else {
            let disk_block = self.geometry.logical_block_size;
            if logical_block_size < disk_block {
                return Err(NodeError::BlockTooSmall {
                    node: self.name.clone(),
                    block: logical_block_size,
                    disk_block,
                });
            }
            return Ok(GuestBlockMode::of_any_guest());
        };
        let disk_block = file.direct.map_or(1, |direct| direct.offset);
        let mode = file
            .block_mode
            .try_set_partial(logical_block_size < disk_block);
        mode.ok_or_else(|| NodeError::MixedBlockSizes {
            node: self.name.clone(),
            disk_block,
        })
    }

    /// Whether guests write parts of blocks of its image, by this or another opening of it.
    #[must_use]
    pub fn has_partial_blocks(&self) -> bool {
        let file = self.underlying_file();
        file.is_some_and(|file| file.block_mode.has_partial_blocks())
    }

    /// Whether something may have been written that was not flushed, where a flush may fail for lack of a server.
    pub fn may_have_unflushed(&self) -> bool {
        let nbd = self.disk_and_offset().0.driver.nbd();
        nbd.is_some_and(|disk| disk.may_have_unflushed())
    }

    /// Notes that what was written so far is of no use, so that the node can be closed although its server is gone.
    pub fn forget_unflushed(&self) {
        if let Some(disk) = self.disk_and_offset().0.driver.nbd() {
            disk.forget_unflushed();
        }
    }

    /// Makes all completed writes stable, also in the target of a mirror that its guest may go over to, and waits for that: for the
    /// orderly end of the daemon.
    ///
    /// # Errors
    /// The error of `fdatasync(2)`, of librbd, or of an NBD server or its connection.
    pub fn flush_blocking(&self) -> std::io::Result<()> {
        if self.read_only {
            return Ok(());
        }
        if let Some(target) = self.copy_filter.node_written_as_well() {
            target.flush_blocking()?;
        }
        let driver = &self.disk_and_offset().0.driver;
        match (driver.file(), driver.image(), driver.nbd()) {
            (Some(file), ..) => Ok(file.flush_unless_disabled()?),
            (_, Some(disk), _) => Ok(disk.flush()?),
            (.., Some(disk)) => disk.flush_blocking(),
            _ => Ok(()),
        }
    }
}
