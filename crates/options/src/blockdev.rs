//! `--blockdev`: the nodes that hold a disk's data.
//!
//! Defaults are those of qemu-storage-daemon, with one exception: nodes bypass the host's page cache
//! unless told otherwise, since a guest has a page cache of its own, and how their requests reach the
//! kernel is left to what the host has.

mod blkdebug;
mod read;

use std::path::PathBuf;

pub(crate) use blkdebug::{BlkdebugKeys, InjectErrorKeys, read_blkdebug};
pub use blkdebug::{BlkdebugOptions, InjectAction, InjectError, IoType};
pub(crate) use read::{DRIVERS, Which, parse};

use crate::{
    form::{Choice, FilePath, OnlyOff, Switch, number, size},
    key::{NotYet, ValueType},
    settings::{settings, words},
};

/// `--blockdev …`: one node, with its children inside if they were written in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockdevOptions {
    /// `node-name`: the name exports and other nodes refer to it by, at most 31 characters. A
    /// child written in place without a name gets one that starts with `#`, which no user can write.
    pub node_name: String,
    /// What every driver takes.
    pub settings: NodeSettings,
    /// What is behind the node, with the driver's own options.
    pub driver: Driver,
}

settings! {
    /// Options of every node. A child written in place has those of its parent where it says nothing itself, but for `discard`: the
    /// parent decides what reaches it.
    pub struct NodeSettings {
        /// refuse writes (default off)
        pub read_only: bool = "read-only", Switch, default(false);
        /// become read-only if it cannot be opened for writing (default off)
        pub auto_read_only: bool = "auto-read-only", Switch, default(false);
        /// free the space a guest discards, or not (default ignore)
        pub discard: Discard = "discard", Discard::FORM, default(Discard::Ignore);
        /// bypass the host's page cache, O_DIRECT (default on where the file system can)
        pub cache_direct: Option<bool> = "cache.direct", Switch, optional;
        /// ignore flushes; loses data when the host stops (default off)
        pub cache_no_flush: bool = "cache.no-flush", Switch, default(false);
        /// lock the image and use it, or leave it to another program until an export or blockdev-set-active needs it (default on)
        pub active: bool = "active", Switch, default(true);
    }
    accepts {
        /// only off for now
        "detect-zeroes", ZEROES_NOT_DETECTED;
        /// only off for now
        "force-share", OnlyOff { instead: "use locking=off to open a file that somebody else writes" };
    }
    beside {
        /// what is behind the node; may be written without its key
        "driver", "DRIVER", ValueType::Named("driver"), required;
        /// the name exports and other nodes refer to it by
        "node-name", "NAME", ValueType::Str;
    }
}

const ZEROES_NOT_DETECTED: Choice<()> = {
    let instead = "leave it out: zeroes are written as they are";
    Choice {
        words: &[("off", ())],
        not_yet: &[
            NotYet {
                name: "on",
                instead,
            },
            NotYet {
                name: "unmap",
                instead,
            },
        ],
        shown: "off",
    }
};

words! {
    /// What a discard request from the guest does.
    pub enum Discard {
        /// Free the space below.
        Unmap = "unmap",
        /// Nothing, successfully.
        Ignore = "ignore",
    }
    also "on" => Unmap, "off" => Ignore;
}

/// What is behind a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Driver {
    /// `file`: a regular file.
    File(FileOptions),
    /// `host_device`: a block device of the host.
    HostDevice(FileOptions),
    /// `null-co`: nothing; writes vanish. For measuring everything around the storage.
    NullCo(NullOptions),
    /// `raw`: another node as it is, or a part of it.
    Raw {
        /// `file`: the node below.
        file: NodeRef,
        /// Which part of it.
        part: RawOptions,
    },
    /// `blkdebug`: another node, with faults on purpose.
    Blkdebug {
        /// `image`: the node below.
        image: NodeRef,
        /// `inject-error` and `seed`.
        injected: BlkdebugOptions,
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
            Self::Blkdebug { .. } => "blkdebug",
        }
    }

    /// The node below, if there is one, and what it is called there.
    #[must_use]
    pub fn child(&self) -> Option<(&'static str, &NodeRef)> {
        match self {
            Self::Raw { file, .. } => Some(("file", file)),
            Self::Blkdebug { image, .. } => Some(("image", image)),
            Self::File(_) | Self::HostDevice(_) | Self::NullCo(_) => None,
        }
    }

    /// The options of the file or device, of a driver for these.
    #[must_use]
    pub fn file(&self) -> Option<&FileOptions> {
        match self {
            Self::File(file) | Self::HostDevice(file) => Some(file),
            Self::NullCo(_) | Self::Raw { .. } | Self::Blkdebug { .. } => None,
        }
    }
}

settings! {
    /// Options of `file` and `host_device`.
    pub struct FileOptions {
        /// the file or device
        pub filename: PathBuf = "filename", FilePath, required("write filename=PATH");
        /// how requests reach the kernel (default found by trying: io_uring, else native, with cache.direct=off threads)
        pub aio: Option<AioMode> = "aio", AioMode::FORM, optional;
        /// lock it against other writers (default auto)
        pub locking: Locking = "locking", Locking::FORM, default(Locking::Auto);
        /// most requests per call to the kernel, 0 = the iothread's (default 0)
        pub aio_max_batch: u32 = "aio-max-batch", number(0, u32::MAX), default(0);
    }
}

words! {
    /// How requests reach the kernel.
    pub enum AioMode {
        /// Blocking calls on worker threads.
        Threads = "threads",
        /// Linux AIO. Not possible with `cache.direct=off`: on buffered files submission blocks.
        Native = "native",
        /// A ring of io_uring per iothread.
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

/// Largest offset that the kernel's file interface has (`off_t`).
const MAX_DISK_BYTES: u64 = i64::MAX.unsigned_abs();

settings! {
    /// Options of `null-co`.
    pub struct NullOptions {
        /// size of the disk (default 1G)
        pub size: u64 = "size", size(0, MAX_DISK_BYTES), default(DEFAULT_NULL_SIZE);
        /// reads return zeroes instead of whatever is in the buffer (default off)
        pub read_zeroes: bool = "read-zeroes", Switch, default(false);
        /// how long each request takes (default 0)
        pub latency_ns: u64 = "latency-ns", number(0, u64::MAX).shown("NS"), default(0);
    }
}

settings! {
    /// Options of `raw`.
    pub struct RawOptions {
        /// where the disk starts in the node below (default 0)
        pub offset: u64 = "offset", size(0, MAX_DISK_BYTES), default(0);
        /// size of the disk, a multiple of 512 (default: up to the end)
        pub size: Option<u64> = "size",
            size(0, MAX_DISK_BYTES).check(is_in_sectors, "a multiple of 512 bytes"), optional;
    }
    beside {
        /// the node below: its node-name, or its own keys as file.driver=…,file.…
        "file", "NODE", ValueType::Named("BlockdevRef"), required;
    }
}

fn is_in_sectors(bytes: u64) -> bool {
    bytes.is_multiple_of(512)
}

/// A node named or written in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeRef {
    /// The `node-name` of an earlier `--blockdev`; checked to exist.
    Name(String),
    /// A node of its own.
    Inline(Box<BlockdevOptions>),
}

impl NodeRef {
    /// The name of the node, in either case.
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
