//! `--blockdev`: types of the options of nodes, which hold the data of disks. Their reader is in `read`.
//!
//! Defaults are those of qemu-storage-daemon, with two exceptions: nodes bypass the host's page cache, since a guest has a page
//! cache of its own, and the I/O backend is chosen by probing.

mod blkdebug;
mod nbd;
mod rbd;
mod read;

use std::path::PathBuf;

pub use blkdebug::{BlkdebugOptions, InjectAction, InjectErrorRule, IoType};
pub(crate) use blkdebug::{BlkdebugSeedKey, InjectErrorKeys, read_inject_errors_and_seed};
pub(crate) use nbd::NBD_PORT;
pub use nbd::{NbdOptions, NbdServerType};
pub use rbd::{RbdAuthMode, RbdOptions, RbdServer};
pub(crate) use read::{DRIVERS, read_and_register_blockdev};

use crate::{
    form::{FilePathForm, ID_FORM, SwitchForm, number_form, size_form},
    key::{KeySpec, ValueType},
    settings::{settings, words},
};

/// `--blockdev …`: a node, with child nodes that are written inside of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockdevOptions {
    /// `node-name`: its name for exports and other nodes, at most 31 characters. A child node that is written inside of it may have
    /// a generated name, which begins with `#`.
    pub node_name: String,
    /// Options of every driver.
    pub settings: CommonNodeOptions,
    /// The driver with its options.
    pub driver: Driver,
}

settings! {
    /// Options of every node. A child node that is written inside of another one inherits them, except `discard`, which the parent
    /// decides, and `detect-zeroes`.
    pub struct CommonNodeOptions {
        /// refuse writes (default off)
        pub read_only: bool = "read-only", SwitchForm, default(false);
        /// become read-only if it cannot be opened for writing (default off)
        pub auto_read_only: bool = "auto-read-only", SwitchForm, default(false);
        /// free the space that a guest discards, or ignore discards (default ignore)
        pub discard: Discard = "discard", Discard::FORM, default(Discard::Ignore);
        /// bypass the host's page cache, O_DIRECT (default on where the file system can)
        pub cache_direct: Option<bool> = "cache.direct", SwitchForm, optional;
        /// ignore flushes; loses data when the host stops (default off)
        pub cache_no_flush: bool = "cache.no-flush", SwitchForm, default(false);
        /// lock and use the image, or leave it to another program until an export or blockdev-set-active needs it (default on)
        pub active: bool = "active", SwitchForm, default(true);
        /// read an image that others may write meanwhile; only with read-only=on (default off)
        pub force_share: bool = "force-share", SwitchForm, default(false);
        /// carry out writes of zeroes as write zeroes; unmap: free their space, with discard=unmap (default off)
        pub detect_zeroes: DetectZeroes = "detect-zeroes", DetectZeroes::FORM, default(DetectZeroes::Off);
    }
    beside {
        /// the kind of node; its key may be omitted
        "driver", "DRIVER", ValueType::Named("driver"), required;
        /// its name, for exports and other nodes
        "node-name", "NAME", ValueType::Str;
    }
}

words! {
    /// The effect of a discard request of the guest.
    pub enum Discard {
        /// Free the space.
        Unmap = "unmap",
        /// No effect; it succeeds.
        Ignore = "ignore",
    }
    also "on" => Unmap, "off" => Ignore;
}

words! {
    /// What becomes of writes whose data are all zeroes.
    pub enum DetectZeroes {
        /// They are writes like others.
        Off = "off",
        /// The range is zeroed without data.
        On = "on",
        /// The same, and its space is freed.
        Unmap = "unmap",
    }
}

/// A driver with its options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Driver {
    /// `file`: a regular file.
    File(FileOptions),
    /// `host_device`: a block device of the host.
    HostDevice(FileOptions),
    /// `null-co`: no storage; writes are dropped. For benchmarks of everything but the storage.
    NullCo(NullOptions),
    /// `raw`: another node, or a part of it.
    Raw {
        /// `file`: the node below.
        file: NodeRef,
        /// The part of it.
        part: RawOffsetAndSize,
    },
    /// `nbd`: an export of an NBD server.
    Nbd(NbdOptions),
    /// `rbd`: an image of a Ceph cluster.
    Rbd(RbdOptions),
    /// `throttle`: a filter with the limits of a throttle group.
    Throttle {
        /// `file`: the node below.
        file: NodeRef,
        /// The group.
        member: ThrottleOptions,
    },
    /// `blkdebug`: a filter that injects faults into requests to another node.
    Blkdebug {
        /// `image`: the node below.
        image: NodeRef,
        /// `inject-error` and `seed`.
        injected: BlkdebugOptions,
    },
    /// `snapshot-access`: the snapshot of another node at the moment of its backup with `sync=none`.
    SnapshotAccess {
        /// `file`: the node that is backed up.
        file: NodeRef,
    },
}

impl Driver {
    /// The name on the command line.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::File(_) => "file",
            Self::HostDevice(_) => "host_device",
            Self::NullCo(_) => "null-co",
            Self::Raw { .. } => "raw",
            Self::Nbd(_) => "nbd",
            Self::Rbd(_) => "rbd",
            Self::Throttle { .. } => "throttle",
            Self::Blkdebug { .. } => "blkdebug",
            Self::SnapshotAccess { .. } => "snapshot-access",
        }
    }

    /// The node below, if there is one, with the key that names it.
    #[must_use]
    pub fn child_with_key(&self) -> Option<(&'static str, &NodeRef)> {
        match self {
            Self::Raw { file, .. }
            | Self::Throttle { file, .. }
            | Self::SnapshotAccess { file } => Some(("file", file)),
            Self::Blkdebug { image, .. } => Some(("image", image)),
            Self::File(_) | Self::HostDevice(_) | Self::NullCo(_) | Self::Nbd(_) | Self::Rbd(_) => {
                None
            }
        }
    }

    /// The options of the file or device, if the driver has one.
    #[must_use]
    pub fn file_options(&self) -> Option<&FileOptions> {
        match self {
            Self::File(file) | Self::HostDevice(file) => Some(file),
            Self::NullCo(_)
            | Self::Nbd(_)
            | Self::Rbd(_)
            | Self::Raw { .. }
            | Self::Throttle { .. }
            | Self::Blkdebug { .. }
            | Self::SnapshotAccess { .. } => None,
        }
    }

    /// Id of the secret that it needs, if it needs one.
    #[must_use]
    pub fn secret_id(&self) -> Option<&str> {
        match self {
            Self::Rbd(rbd) => rbd.key_secret.as_deref(),
            _ => None,
        }
    }

    /// Id of the certificates that it encrypts connections with, if it does.
    #[must_use]
    pub fn tls_creds_id(&self) -> Option<&str> {
        match self {
            Self::Nbd(nbd) => nbd.tls_creds.as_deref(),
            _ => None,
        }
    }

    /// Id of the throttle group that it is a member of, if it is.
    #[must_use]
    pub fn throttle_group(&self) -> Option<&str> {
        match self {
            Self::Throttle { member, .. } => Some(&member.throttle_group),
            _ => None,
        }
    }
}

settings! {
    /// Options of `file` and `host_device`.
    pub struct FileOptions {
        /// the file or device
        pub filename: PathBuf = "filename", FilePathForm, required("write filename=PATH");
        /// the I/O backend (default: chosen by probing: io_uring, else native, with cache.direct=off threads)
        pub aio: Option<AioMode> = "aio", AioMode::FORM, optional;
        /// lock it against other writers (default auto)
        pub locking: Locking = "locking", Locking::FORM, default(Locking::Auto);
        /// most requests per call to the kernel, 0 = the iothread's (default 0)
        pub aio_max_batch: u32 = "aio-max-batch", number_form(0, u32::MAX), default(0);
        /// file for persistent dirty bitmaps, created if missing (default: none; blockplane's own)
        pub bitmap_file: Option<PathBuf> = "bitmap-file", FilePathForm, optional;
    }
}

words! {
    /// The I/O backend, which submits requests to the kernel.
    pub enum AioMode {
        /// Blocking calls on worker threads.
        Threads = "threads",
        /// Linux AIO. Not possible with `cache.direct=off`: on buffered files submission blocks.
        Native = "native",
        /// One io_uring per iothread.
        IoUring = "io_uring",
    }
}

words! {
    /// Whether to lock the file against other programs that write it.
    pub enum Locking {
        /// Lock if the kernel has open file description locks.
        Auto = "auto",
        /// Lock, or fail.
        On = "on",
        /// Do not lock.
        Off = "off",
    }
}

/// Largest file offset of the kernel (`off_t`).
const MAX_DISK_BYTES: u64 = i64::MAX.unsigned_abs();

settings! {
    /// Options of `null-co`.
    pub struct NullOptions {
        /// size of the disk (default 1G)
        pub size: u64 = "size", size_form(0, MAX_DISK_BYTES), default(DEFAULT_NULL_SIZE);
        /// reads return zeroes instead of leaving the buffer unchanged (default off)
        pub read_zeroes: bool = "read-zeroes", SwitchForm, default(false);
        /// how long each request takes (default 0)
        pub latency_ns: u64 = "latency-ns", number_form(0, u64::MAX).with_placeholder("NS"), default(0);
    }
}

settings! {
    /// Options of `raw`.
    pub struct RawOffsetAndSize {
        /// where the disk starts in the node below (default 0)
        pub offset: u64 = "offset",
            size_form(0, MAX_DISK_BYTES).with_check(is_multiple_of_sector, "a multiple of 512 bytes below 2^63"), default(0);
        /// size of the disk, a multiple of 512 (default: up to the end)
        pub size: Option<u64> = "size",
            size_form(512, MAX_DISK_BYTES)
                .with_check(is_multiple_of_sector, "a multiple of 512 bytes, at least 512"), optional;
    }
    beside {
        /// the node below: its node-name, or its keys as file.driver=…,file.…
        "file", "NODE", ValueType::Named("BlockdevRef"), required;
    }
}

settings! {
    /// Options of `throttle`.
    pub struct ThrottleOptions {
        /// id of the throttle-group whose limits it has
        pub throttle_group: String = "throttle-group", ID_FORM, required("write throttle-group=ID");
    }
    beside {
        /// the node below: its node-name, or its keys as file.driver=…,file.…
        "file", "NODE", ValueType::Named("BlockdevRef"), required;
    }
}

/// The key of `snapshot-access`.
pub(crate) const SNAPSHOT_ACCESS_KEYS: &[KeySpec] = &[KeySpec::new(
    "file",
    "NODE",
    "the node that a job backs up with sync=none: its node-name",
    ValueType::Named("BlockdevRef"),
)
.required()];

fn is_multiple_of_sector(bytes: u64) -> bool {
    bytes.is_multiple_of(512)
}

/// A reference to a node, or a node that is written inside of another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeRef {
    /// The `node-name` of an earlier `--blockdev`. It exists.
    Name(String),
    /// A node that is written inside of another.
    Inline(Box<BlockdevOptions>),
}

impl NodeRef {
    /// The name of the node.
    #[must_use]
    pub fn node_name(&self) -> &str {
        match self {
            Self::Name(name) => name,
            Self::Inline(node) => &node.node_name,
        }
    }
}

/// Default of `null-co`'s `size`, in bytes.
pub const DEFAULT_NULL_SIZE: u64 = 1 << 30;
