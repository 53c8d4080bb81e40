//! Opens nodes: a constructor for each driver, for nodes with a file or device as well as for windows and filters.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::blkdebug::BlkdebugFilter;
use super::copier::CopierDriver;
use super::raw::Window;
use super::snapshot_access::SnapshotAccess;
use super::throttle::ThrottleFilter;
use super::{file, host_device, nbd, null_co, rbd};
use crate::copy::BlockCopy;
use crate::disk_file::DiskFile;
use crate::disk_file::open::FileOptions;
use crate::error::NodeError;
use crate::faults::Faults;
use crate::node::{Driver, Geometry, Node, SizePolicy};
use crate::null_disk::NullOptions;
use crate::rbd::RbdOptions;
use crate::throttle::{ThrottleGroup, ThrottleMember};

/// Options for opening a node.
#[derive(Clone, Debug)]
pub enum NodeOptions {
    /// A raw image in a file.
    File(FileOptions),
    /// A block device.
    HostDevice(FileOptions),
    /// A null disk: reads and writes succeed.
    Null(NullOptions),
}

impl Node {
    /// Opens a node with this `node-name`.
    ///
    /// # Errors
    /// [`NodeError`], whose text names cause and remedy.
    pub fn open(
        name: &str,
        read_only: bool,
        options: &NodeOptions,
    ) -> Result<Arc<Node>, NodeError> {
        Self::open_fd_or_path(name, read_only, options, None)
    }

    /// Opens a node on a file or device that another process has opened, with its locks. The path is not used, since it may
    /// lead to another file by now.
    ///
    /// # Errors
    /// As for [`Node::open`].
    pub fn open_handed_over_fd(
        name: &str,
        read_only: bool,
        options: &NodeOptions,
        opened: OwnedFd,
    ) -> Result<Arc<Node>, NodeError> {
        Self::open_fd_or_path(name, read_only, options, Some(opened))
    }

    /// Opens a node, on `opened` if there is such a descriptor, or else on the path of its options.
    fn open_fd_or_path(
        name: &str,
        read_only: bool,
        options: &NodeOptions,
        opened: Option<OwnedFd>,
    ) -> Result<Arc<Node>, NodeError> {
        let of_file = |(file, geometry): (DiskFile, Geometry), unmap| -> (Box<dyn Driver>, _, _) {
            (Box::new(Arc::new(file)), geometry, unmap)
        };
        let (driver, geometry, unmap) = match options {
            NodeOptions::File(options) => {
                of_file(file::open(options, read_only, opened)?, options.unmap)
            }
            NodeOptions::HostDevice(options) => of_file(
                host_device::open(options, read_only, opened)?,
                options.unmap,
            ),
            NodeOptions::Null(options) => (
                Box::new(*options) as Box<dyn Driver>,
                null_co::geometry(options),
                false,
            ),
        };
        Ok(Node::new(name, geometry, read_only, unmap, driver))
    }

    /// Opens a node on an image of a Ceph cluster. Discards reach the image if `unmap`. A snapshot is read-only.
    ///
    /// # Errors
    /// [`NodeError`], whose text names cause and remedy.
    pub fn open_rbd(
        name: &str,
        read_only: bool,
        unmap: bool,
        options: &RbdOptions,
    ) -> Result<Arc<Node>, NodeError> {
        let read_only = read_only || options.image.snapshot.is_some();
        let (disk, geometry) = rbd::open(options, read_only)?;
        let driver = Box::new(disk);
        Ok(Node::new(name, geometry, read_only, unmap, driver))
    }

    /// A node on an export of an NBD server, which was opened. Discards reach the server if `unmap` and if it has them.
    ///
    /// # Errors
    /// [`NodeError::ReadOnlyExport`], [`NodeError::ExportSize`].
    pub fn of_nbd_export(
        name: &str,
        read_only: bool,
        unmap: bool,
        disk: &Arc<::nbd::client::Disk>,
    ) -> Result<Arc<Node>, NodeError> {
        let geometry = nbd::geometry_of_export(disk, read_only)?;
        let unmap = unmap && disk.features().trim;
        let driver = Box::new(disk.clone());
        Ok(Node::new(name, geometry, read_only, unmap, driver))
    }

    /// A window of `size` bytes (`None`: to the end) at `offset` of another node: a node of the `raw`
    /// driver. Discards reach the disk if `unmap`.
    ///
    /// # Errors
    /// [`NodeError::Window`]: it is empty or does not lie within the node, its offset is not a multiple of the node's block,
    /// or its size is not a multiple of 512.
    pub fn new_window(
        name: &str,
        below: &Arc<Node>,
        offset: u64,
        size: Option<u64>,
        read_only: bool,
        unmap: bool,
    ) -> Result<Arc<Node>, NodeError> {
        let (window, size, size_policy) = Window::onto(below, offset, size)?;
        let driver = Box::new(window);
        Ok(Node::new_above(
            name,
            below,
            (size, size_policy),
            read_only,
            unmap,
            driver,
        ))
    }

    /// A filter in front of another node, with these faults: a node of the `blkdebug` driver. Discards reach the disk if
    /// `unmap`.
    #[must_use]
    pub fn new_filter(
        name: &str,
        below: &Arc<Node>,
        faults: Arc<Faults>,
        read_only: bool,
        unmap: bool,
    ) -> Arc<Node> {
        let size = (below.size(), below.size_policy);
        let filter = BlkdebugFilter {
            below: below.clone(),
            faults,
        };
        Node::new_above(name, below, size, read_only, unmap, Box::new(filter))
    }

    /// A filter in front of another node, which is a member of a throttle group: a node of the `throttle` driver. Discards
    /// reach the disk if `unmap`.
    #[must_use]
    pub fn new_throttle(
        name: &str,
        below: &Arc<Node>,
        group: &Arc<ThrottleGroup>,
        read_only: bool,
        unmap: bool,
    ) -> Arc<Node> {
        let member = ThrottleMember::join(group);
        Self::new_throttle_of_member(name, below, member, read_only, unmap)
    }

    /// The node of a copier, whose requests copy parts of `source` to `target`.
    #[must_use]
    pub fn new_copier(
        name: &str,
        source: &Arc<Node>,
        target: &Arc<Node>,
        copy: &Arc<BlockCopy>,
    ) -> Arc<Node> {
        let size = (source.size(), SizePolicy::Fixed);
        let copier = CopierDriver {
            source: source.clone(),
            target: target.clone(),
            copy: copy.clone(),
        };
        Node::new_above(name, source, size, true, true, Box::new(copier))
    }

    /// The snapshot of a disk at the moment of its backup with `sync=none`, which runs: a node of the `snapshot-access` driver. It is
    /// read-only, and its reads fail when the backup is over.
    ///
    /// # Errors
    /// [`NodeError::NoSnapshot`]: there is no such backup; [`NodeError::SnapshotBlocks`].
    pub fn new_snapshot(name: &str, disk: &Arc<Node>) -> Result<Arc<Node>, NodeError> {
        let of_backup = disk.copy_of_changes();
        let (copy, target) = of_backup.ok_or_else(|| NodeError::NoSnapshot {
            node: disk.name().to_owned(),
        })?;
        let blocks = [disk, &target].map(|node| node.geometry().logical_block_size);
        if blocks[1] > blocks[0] {
            return Err(NodeError::SnapshotBlocks {
                node: disk.name().to_owned(),
                block: blocks[0],
                target: target.name().to_owned(),
                target_block: blocks[1],
            });
        }
        let size = (copy.size(), SizePolicy::Fixed);
        let disk = disk.clone();
        let driver = SnapshotAccess { disk, target, copy };
        let below = driver.disk.clone();
        Ok(Node::new_above(
            name,
            &below,
            size,
            true,
            false,
            Box::new(driver),
        ))
    }

    /// As [`Node::new_throttle`], of an existing member: a node that is opened anew keeps its debts and statistics.
    #[must_use]
    pub fn new_throttle_of_member(
        name: &str,
        below: &Arc<Node>,
        member: Arc<ThrottleMember>,
        read_only: bool,
        unmap: bool,
    ) -> Arc<Node> {
        let size = (below.size(), below.size_policy);
        let filter = ThrottleFilter {
            below: below.clone(),
            member,
        };
        Node::new_above(name, below, size, read_only, unmap, Box::new(filter))
    }
}
