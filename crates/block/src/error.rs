//! Errors of opening a node, with a remedy for the operator where there is one.

use std::io;
use std::path::PathBuf;

use crate::SECTOR_BYTES;

/// Why a node cannot be opened or used as requested.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// Its persistent dirty bitmaps cannot be used.
    #[error("node '{node}': {reason}")]
    Bitmaps {
        /// Its name.
        node: String,
        /// The cause and the remedy.
        reason: String,
    },
    /// `open(2)` failed.
    #[error("cannot open {}: {error}{}", path.display(), open_hint(error))]
    Open {
        /// The image or device.
        path: PathBuf,
        /// The kernel's error.
        error: io::Error,
    },
    /// Direct I/O is not possible there.
    #[error(
        "{}: its filesystem has no direct I/O (O_DIRECT); use cache.direct=off (serve: --cache-direct off)",
        path.display()
    )]
    NoDirectIo {
        /// The image.
        path: PathBuf,
    },
    /// The file is of a kind that the driver does not open.
    #[error("{} is {found}, driver {driver} needs {wanted}{}", path.display(), kind_hint(found))]
    WrongKind {
        /// The image or device.
        path: PathBuf,
        /// The driver.
        driver: &'static str,
        /// The kind of file that the driver needs.
        wanted: &'static str,
        /// The kind of file that it is.
        found: &'static str,
    },
    /// Another process or node has a lock that conflicts.
    #[error(
        "{}: failed to get {}\"{permission}\" lock: {}",
        path.display(), if *shared { "shared " } else { "" }, lock_holder_hint(*here)
    )]
    Locked {
        /// The image.
        path: PathBuf,
        /// The permission in conflict: `write`, `resize` or `consistent read`.
        permission: &'static str,
        /// True: the other one uses the permission, which we do not share. False: the other one does not share it.
        shared: bool,
        /// Another node of this process has the image.
        here: bool,
    },
    /// An operation on the opened file failed.
    #[error("{}: {what} failed: {error}", path.display())]
    Io {
        /// The image or device.
        path: PathBuf,
        /// The operation.
        what: &'static str,
        /// The kernel's error.
        error: io::Error,
    },
    /// The disk to be created exists with another size.
    #[error(
        "{} exists and has {found} bytes, not {wanted}: omit the size to serve it as it is, \
         or choose another file",
        path.display()
    )]
    SizeDiffers {
        /// The image.
        path: PathBuf,
        /// Its size in bytes.
        found: u64,
        /// The requested size in bytes.
        wanted: u64,
    },
    /// The disk does not exist, and no size is given to create it.
    #[error(
        "{0} does not exist: create it first (truncate -s 10G {0}), or let `blockplane serve` create it (--size 10G)",
        path.display()
    )]
    NoSuchDisk {
        /// The image.
        path: PathBuf,
    },
    /// The disk has no byte.
    #[error("{} is empty: a disk needs at least one sector of 512 bytes", path.display())]
    Empty {
        /// The image.
        path: PathBuf,
    },
    /// The device is read-only, and is to be opened for writing.
    #[error("{}: the device is read-only; open it with read-only=on", path.display())]
    ReadOnlyMedium {
        /// The device.
        path: PathBuf,
    },
    /// An export of an NBD server cannot be opened.
    #[error(transparent)]
    OpenExport(#[from] nbd::client::OpenError),
    /// The export is read-only, and is to be opened for writing.
    #[error("{export} is read-only; open it with read-only=on")]
    ReadOnlyExport {
        /// The export, with its server.
        export: String,
    },
    /// The export has no block, or more bytes than a disk may have.
    #[error("{export} has {size} bytes, which is no size of a disk")]
    ExportSize {
        /// The export, with its server.
        export: String,
        /// Bytes.
        size: u64,
    },
    /// Guests would use smaller blocks than the server has.
    #[error(
        "the server of {node} has blocks of {disk_block} bytes, and the guest's would have {block}: set \
         logical-block-size={disk_block}"
    )]
    BlockTooSmall {
        /// The node.
        node: String,
        /// Bytes of the guest's block.
        block: u32,
        /// Bytes of the server's block.
        disk_block: u32,
    },
    /// The window does not lie within the node, or its offset or size is not a multiple of the block.
    #[error("{}", window_problem(node, *offset, *size, *available, *align))]
    Window {
        /// The node below.
        node: String,
        /// First byte of the window.
        offset: u64,
        /// Bytes in the window.
        size: u64,
        /// Bytes in the node.
        available: u64,
        /// What the offset must be a multiple of.
        align: u32,
    },
    /// A disk has no backup of which a node could be the snapshot.
    #[error(
        "node '{node}' has no running backup with sync=none to be a snapshot of: begin one of this node by blockdev-backup, then try again"
    )]
    NoSnapshot {
        /// The disk.
        node: String,
    },
    /// A snapshot would be opened anew, and belong to another backup.
    #[error(
        "node '{node}' is a snapshot of a disk, and cannot be reopened with it: remove it by blockdev-del, then try again"
    )]
    ReopenedSnapshot {
        /// The snapshot.
        node: String,
    },
    /// The target of a backup, from which old data would be read, has larger blocks than the disk.
    #[error(
        "node '{node}' has blocks of {block} bytes, and '{target}', which has its old data, of {target_block}: back up to a node with smaller blocks"
    )]
    SnapshotBlocks {
        /// The disk.
        node: String,
        /// Bytes of its block.
        block: u32,
        /// The target.
        target: String,
        /// Bytes of its block.
        target_block: u32,
    },
    /// A Ceph cluster cannot be connected to.
    #[error(transparent)]
    Connect(#[from] ceph::ConnectError),
    /// An image of a Ceph cluster cannot be opened.
    #[error(transparent)]
    OpenImage(#[from] ceph::OpenError),
    /// An image of a Ceph cluster has no sector, or more bytes than a disk may have.
    #[error(
        "{image} has {size} bytes: a disk has from one sector of 512 bytes to 2^63 - 1 bytes (rbd resize --size 10G {image})"
    )]
    ImageSize {
        /// The image, with pool and namespace.
        image: String,
        /// Bytes.
        size: u64,
    },
    /// Exports with small and with large blocks on one disk with large blocks.
    #[error(
        "{node} is exported with another logical block size already; on a disk with blocks of \
         {disk_block} bytes all exports must be below that size, or none"
    )]
    MixedBlockSizes {
        /// The node.
        node: String,
        /// The disk's own block in bytes.
        disk_block: u32,
    },
}

/// The remedy for an error of `open(2)`, in parentheses; empty if there is none.
fn open_hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EMFILE) => return " (raise `ulimit -n`, `LimitNOFILE=` of a service)",
        Some(libc::ENFILE) => return " (raise the host's limit, sysctl fs.file-max)",
        _ => {}
    }
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            " (run as a user that may open it, or open it read-only)"
        }
        io::ErrorKind::ReadOnlyFilesystem => " (open it read-only)",
        _ => "",
    }
}

/// The driver that opens the kind of file that was found; empty if there is none.
fn kind_hint(found: &str) -> &'static str {
    match found {
        "a block device" => " (use driver=host_device)",
        "a regular file" => " (use driver=file)",
        _ => "",
    }
}

/// The first rule that the offset and size of a window onto `node` violate.
fn window_problem(node: &str, offset: u64, size: u64, available: u64, align: u32) -> String {
    if !offset.is_multiple_of(u64::from(align)) {
        format!("offset={offset} is not a multiple of the block of {align} bytes of node '{node}'")
    } else if !size.is_multiple_of(SECTOR_BYTES) {
        format!("size={size} is not a multiple of {SECTOR_BYTES}")
    } else if size == 0 && offset < available {
        format!("size=0 is no disk: it needs at least {SECTOR_BYTES} bytes")
    } else {
        format!(
            "size={size} at offset={offset} does not lie within the {available} bytes of node '{node}'"
        )
    }
}

/// The holder of a conflicting lock, and the remedy.
fn lock_holder_hint(here: bool) -> &'static str {
    if here {
        "another node of this program has the image (use that node, open the image read-only in both, or set locking=off \
         when they are known to cooperate)"
    } else {
        "is another process using the image? (stop it, open the image read-only in both, or set locking=off when they are \
         known to cooperate)"
    }
}
