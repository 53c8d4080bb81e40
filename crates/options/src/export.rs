//! `--export`: how a guest reaches a node.
//!
//! `vhost-user-blk` is qemu-storage-daemon's, with its defaults; the others are blockplane's own.

mod lun_device;
mod luns;
mod queues;
mod read;

pub use lun_device::{LunDevice, MAX_SCSI_SERIAL_BYTES};
pub(crate) use luns::{KEYS as LUNS_KEYS, LUN_KEYS, lun};
pub(crate) use read::{LSI_ADAPTER, LSI_PLACES, TYPES, VIRTIO_PLACES, parse};

use crate::{
    DEFAULT_SERVE_QUEUES, MAX_QUEUE_SIZE, MAX_QUEUES, MAX_SCSI_QUEUES, MAX_SERIAL_BYTES,
    SocketAddr,
    form::{Choice, Label, Number, OnlyOff, Switch, number, size},
    key::ValueType,
    limits,
    settings::settings,
};

/// `--export …`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportOptions {
    /// `id`: the export's name, unique among exports.
    pub id: String,
    /// `node-name`: the node to export; checked to exist. Of several, the first; empty if there are none.
    pub node_name: String,
    /// `addr`: where the VMM connects.
    pub addr: SocketAddr,
    /// `iothread` or `iothread-vq-mapping`: queue *i* runs on the iothread that member *i* modulo
    /// the length names. Either each name once, or one member for each of the `num_queues`. Checked
    /// to exist. Empty = the program's own choice.
    pub iothreads: Vec<String>,
    /// What every type takes.
    pub settings: ExportSettings,
    /// The kind of export with its own options.
    pub kind: ExportKind,
}

settings! {
    /// Options of every export.
    pub struct ExportSettings {
        /// let the guest write (default off)
        pub writable: bool = "writable", Switch, default(false);
        /// complete a write only when it is on stable storage (default off)
        pub writethrough: bool = "writethrough", Switch, default(false);
        /// keep it on these threads (default off)
        pub fixed_iothread: bool = "fixed-iothread", Switch, default(false);
    }
    accepts {
        /// only off for now
        "allow-inactive", OnlyOff { instead: "leave it out: an export makes its nodes active" };
    }
    beside {
        /// the kind of export; may be written without its key
        "type", "TYPE", ValueType::Named("type"), required;
        /// name of the export
        "id", "NAME", ValueType::Str, required;
        /// the node to export
        "node-name", "NODE", ValueType::Str;
        /// where the VMM connects: a socket to create, or an inherited one
        "addr.type", "unix|fd", ValueType::Words, required;
        /// with addr.type=unix: path of the socket
        "addr.path", "PATH", ValueType::Str;
        /// with addr.type=fd: number, or name, of a listening socket
        "addr.str", "FD", ValueType::Str;
        /// thread that runs it; for several iothread.0=ID,iothread.1=ID (default: chosen for you)
        "iothread", "ID", ValueType::Named("IothreadRef");
    }
}

/// The kinds of export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExportKind {
    /// `vhost-user-blk`: a virtio disk over a Unix socket.
    VhostUserBlk(VhostUserBlkOptions),
    /// `vhost-user-scsi`: a virtio SCSI controller over a Unix socket.
    VhostUserScsi {
        /// Its queues.
        queues: VhostUserScsiOptions,
        /// `luns`, or `node-name` alone: the disks at the start, each at a place of its own. It may have none yet.
        luns: Vec<LunOptions>,
    },
    /// `vfio-user-lsi53c895a`: a SCSI host adapter with disks, a PCI device over a Unix socket.
    VfioUserLsi53c895a {
        /// The same; at least one.
        luns: Vec<LunOptions>,
    },
}

impl ExportKind {
    /// As its `type` says.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            ExportKind::VhostUserBlk(_) => "vhost-user-blk",
            ExportKind::VhostUserScsi { .. } => "vhost-user-scsi",
            ExportKind::VfioUserLsi53c895a { .. } => "vfio-user-lsi53c895a",
        }
    }

    /// The disks of a SCSI controller.
    #[must_use]
    pub fn luns(&self) -> Option<&[LunOptions]> {
        match self {
            ExportKind::VhostUserBlk(_) => None,
            ExportKind::VhostUserScsi { luns, .. } | ExportKind::VfioUserLsi53c895a { luns } => {
                Some(luns)
            }
        }
    }
}

impl ExportOptions {
    /// All nodes that it shows.
    #[must_use]
    pub fn node_names(&self) -> Vec<&str> {
        match self.kind.luns() {
            None => vec![&self.node_name],
            Some(luns) => luns.iter().map(|lun| &*lun.node_name).collect(),
        }
    }

    /// Whether it shows this node.
    #[must_use]
    pub fn shows(&self, node: &str) -> bool {
        self.node_names().contains(&node)
    }
}

/// One disk of a SCSI controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LunOptions {
    /// `node-name`: checked to exist.
    pub node_name: String,
    /// `target`: within what the controller has. Default 0.
    pub target: u16,
    /// `lun`: the same. Default: the first that is free.
    pub lun: u16,
    /// `writable`: let the guest write. Default: as the export.
    pub writable: bool,
    /// What the disk is, and what it keeps.
    pub device: LunDevice,
}

settings! {
    /// Options of `vhost-user-scsi`.
    pub struct VhostUserScsiOptions {
        /// most queues for commands that a VMM may ask for, 1 to 254 (default 64)
        pub num_queues: u16 = "num-queues", number(1, MAX_SCSI_QUEUES), default(DEFAULT_SERVE_QUEUES);
        /// most entries per queue, a power of two up to 1024 (default 1024; blockplane's own)
        pub queue_size: u16 = "queue-size", QUEUE_SIZE, default(MAX_QUEUE_SIZE);
        /// offer packed queues; the VMM must ask for them too (default off; blockplane's own)
        pub packed: bool = "packed", Switch, default(false);
    }
    beside {
        /// which thread runs which queue: iothread-vq-mapping.0.iothread=ID with iothread-vq-mapping.0.vqs.0=N (blockplane's own)
        "iothread-vq-mapping", "LIST", ValueType::ListOf("IOThreadVirtQueueMapping");
    }
}

settings! {
    /// Options of `vhost-user-blk`.
    pub struct VhostUserBlkOptions {
        /// most queues a VMM may ask for, 1 to 256 (default 1)
        pub num_queues: u16 = "num-queues", number(1, MAX_QUEUES), default(1);
        /// most entries per queue, a power of two up to 1024 (default 1024; blockplane's own)
        pub queue_size: u16 = "queue-size", QUEUE_SIZE, default(MAX_QUEUE_SIZE);
        /// offer packed queues; the VMM must ask for them too (default off; blockplane's own)
        pub packed: bool = "packed", Switch, default(false);
        /// a power of two, 512 to 32768 (default 512)
        pub logical_block_size: u32 = "logical-block-size",
            size(0, u32::MAX).shown("BYTES").check(is_block_size, limits::BLOCK_SIZE_EXPECTED), default(512);
        /// serial number the guest sees, at most 20 bytes (blockplane's own)
        pub serial: Option<String> = "serial", Label { longest: MAX_SERIAL_BYTES }, optional;
        /// join adjacent requests of one batch (default on; blockplane's own)
        pub request_merging: bool = "request-merging", Switch, default(true);
        /// join so many at most, up to 64; 0 or 1 = none (default 32; blockplane's own)
        pub max_merge_requests: u16 = "max-merge-requests",
            number(0, MAX_MERGE_REQUESTS), default(DEFAULT_MERGE_REQUESTS);
        /// join up to so many bytes (default 1M; blockplane's own)
        pub max_merge_bytes: u64 = "max-merge-bytes",
            size(0, i64::MAX.unsigned_abs()).shown("BYTES"), default(DEFAULT_MERGE_BYTES);
        /// pin all guest memory for io_uring; not with a balloon (default off; blockplane's own)
        pub fixed_buffers: bool = "fixed-buffers", Switch, default(false);
        /// reads that the disk fails: tell the guest, pretend that they succeeded, or let them wait until block-export-resume
        /// (default report; blockplane's own)
        pub rerror: OnError = "rerror", ON_READ_ERROR, default(OnError::Report);
        /// the same for all other requests; enospc = stop if the disk is full, else report (default report; blockplane's own)
        pub werror: OnError = "werror", ON_WRITE_ERROR, default(OnError::Report);
        /// tell of requests that take longer; 0 = never (default 30; blockplane's own)
        pub request_timeout: u64 = "request-timeout",
            number(0, SECONDS_PER_DAY).shown("SECONDS"), default(DEFAULT_REQUEST_TIMEOUT);
    }
    beside {
        /// which thread runs which queue: iothread-vq-mapping.0.iothread=ID with iothread-vq-mapping.0.vqs.0=N (blockplane's own)
        "iothread-vq-mapping", "LIST", ValueType::ListOf("IOThreadVirtQueueMapping");
    }
}

const QUEUE_SIZE: Number<u16> =
    number(0, u16::MAX).check(is_queue_size, limits::QUEUE_SIZE_EXPECTED);

fn is_queue_size(entries: u64) -> bool {
    limits::queue_size(entries).is_some()
}

fn is_block_size(bytes: u64) -> bool {
    limits::block_size(bytes).is_some()
}

const SECONDS_PER_DAY: u64 = 86_400;

const ON_READ_ERROR: Choice<OnError> = Choice {
    words: &[
        ("report", OnError::Report),
        ("ignore", OnError::Ignore),
        ("stop", OnError::Stop),
    ],
    not_yet: &[],
    shown: "report|ignore|stop",
};

const ON_WRITE_ERROR: Choice<OnError> = Choice {
    words: &[
        ("report", OnError::Report),
        ("ignore", OnError::Ignore),
        ("enospc", OnError::NoSpace),
        ("stop", OnError::Stop),
    ],
    not_yet: &[],
    shown: "report|ignore|enospc|stop",
};

/// Most requests that become one.
pub const MAX_MERGE_REQUESTS: u16 = 64;
/// Default of `max-merge-requests`.
pub const DEFAULT_MERGE_REQUESTS: u16 = 32;
/// Default of `max-merge-bytes`: 1 MiB.
pub const DEFAULT_MERGE_BYTES: u64 = 1 << 20;
/// What is done about a request that the disk has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnError {
    /// `report`: the guest is told.
    Report,
    /// `ignore`: the guest is told that it succeeded.
    Ignore,
    /// `enospc`: as `stop` if the disk is full, else as `report`.
    NoSpace,
    /// `stop`: it waits.
    Stop,
}

/// Default of `request-timeout`, in seconds.
pub const DEFAULT_REQUEST_TIMEOUT: u64 = 30;
