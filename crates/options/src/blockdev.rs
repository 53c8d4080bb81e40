//! `--blockdev`: the nodes that hold a disk's data.
//!
//! Defaults are those of qemu-storage-daemon, with one exception: nodes bypass the host's page cache
//! unless told otherwise, since a guest has a page cache of its own, and how their requests reach the
//! kernel is left to what the host has.

mod blkdebug;
mod read;

use std::path::PathBuf;

pub(crate) use blkdebug::{INJECT_KEYS, KEYS as BLKDEBUG_KEYS, injected};
pub use blkdebug::{InjectAction, InjectError, Injected, IoType};
pub(crate) use read::{COMMON_KEYS, DRIVERS, FILE_KEYS, NULL_KEYS, RAW_KEYS, Which, parse};

/// `--blockdev …`: one node, with its children inside if they were written in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockdevOptions {
    /// `node-name`: the name exports and other nodes refer to it by, at most 31 characters. A
    /// child written in place without a name gets one that starts with `#`, which no user can write.
    pub node_name: String,
    /// `read-only`: refuse writes. Default off; a child written in place inherits its parent's.
    pub read_only: bool,
    /// `auto-read-only`: become read-only when the file cannot be opened for writing. Default
    /// off; a child written in place inherits its parent's.
    pub auto_read_only: bool,
    /// `discard`: what a discard request does. Default ignore; unmap for a child written in place
    /// (the parent decides what reaches it).
    pub discard: Discard,
    /// `cache.direct`: bypass the host's page cache (`O_DIRECT`). `None` when neither the node
    /// nor, for a child written in place, its parent sets it; then it is on where the file system
    /// can.
    pub cache_direct: Option<bool>,
    /// `cache.no-flush`: ignore flush requests: fast, and loses data when the host stops. Default
    /// off; a child written in place inherits its parent's.
    pub cache_no_flush: bool,
    /// `active`: lock the image and use it from the beginning. An inactive node leaves it to another program until it is
    /// activated, or exported. Default on; a child written in place inherits its parent's.
    pub active: bool,
    /// What is behind the node, with the driver's own options.
    pub driver: Driver,
}

/// What a discard request from the guest does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Discard {
    /// Nothing, successfully.
    Ignore,
    /// Free the space below.
    Unmap,
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
    Raw(RawOptions),
    /// `blkdebug`: another node, with faults on purpose.
    Blkdebug(BlkdebugOptions),
}

impl Driver {
    /// The name on the command line.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::File(_) => "file",
            Self::HostDevice(_) => "host_device",
            Self::NullCo(_) => "null-co",
            Self::Raw(_) => "raw",
            Self::Blkdebug(_) => "blkdebug",
        }
    }

    /// The node below, if there is one, and what it is called there.
    #[must_use]
    pub fn child(&self) -> Option<(&'static str, &NodeRef)> {
        match self {
            Self::Raw(raw) => Some(("file", &raw.file)),
            Self::Blkdebug(blkdebug) => Some(("image", &blkdebug.image)),
            Self::File(_) | Self::HostDevice(_) | Self::NullCo(_) => None,
        }
    }

    /// The options of the file or device, of a driver for these.
    #[must_use]
    pub fn file(&self) -> Option<&FileOptions> {
        match self {
            Self::File(file) | Self::HostDevice(file) => Some(file),
            Self::NullCo(_) | Self::Raw(_) | Self::Blkdebug(_) => None,
        }
    }
}

/// Options of `file` and `host_device`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileOptions {
    /// `filename`: the path, never empty.
    pub filename: PathBuf,
    /// `aio`: how requests reach the kernel. `None`: as the host allows, see the documents.
    pub aio: Option<AioMode>,
    /// `locking`: whether to lock the file against other writers. Default auto.
    pub locking: Locking,
    /// `aio-max-batch`: most requests handed to the kernel in one call; 0 = the iothread's own.
    /// Default 0.
    pub aio_max_batch: u32,
}

/// How requests reach the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AioMode {
    /// Blocking calls on worker threads.
    Threads,
    /// Linux AIO. Not possible with `cache.direct=off`: on buffered files submission blocks.
    Native,
    /// A ring of io_uring per iothread.
    IoUring,
}

/// Whether to lock the file against other programs that write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Locking {
    /// Lock if the kernel has open file description locks.
    Auto,
    /// Lock, or fail.
    On,
    /// Do not lock.
    Off,
}

/// Options of `null-co`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NullOptions {
    /// `size` in bytes. Default 1 GiB.
    pub size: u64,
    /// `read-zeroes`: fill the buffers of reads with zeroes instead of leaving them as they are.
    /// Default off.
    pub read_zeroes: bool,
    /// `latency-ns`: how long each request takes, in nanoseconds. Default 0.
    pub latency_ns: u64,
}

/// Options of `raw`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawOptions {
    /// `file`: the node below.
    pub file: NodeRef,
    /// `offset`: where the disk starts in the node below, in bytes. Default 0.
    pub offset: u64,
    /// `size` of the disk in bytes, a multiple of 512; `None` = up to the end of the node below.
    pub size: Option<u64>,
}

/// Options of `blkdebug`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlkdebugOptions {
    /// `image`: the node below.
    pub image: NodeRef,
    /// `inject-error` and `seed`.
    pub injected: Injected,
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
