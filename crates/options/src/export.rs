//! `--export`: types of the options of exports, which show nodes to guests as devices. Their reader is in `read`.
//!
//! `vhost-user-blk` is qemu-storage-daemon's, with its defaults; the others are blockplane's own.

mod bitmaps;
mod lun_device;
mod luns;
mod queues;
mod read;

pub use bitmaps::ExportedBitmap;
pub use lun_device::{LunDeviceOptions, MAX_SCSI_SERIAL_BYTES};
pub(crate) use luns::{LUN_KEYS, LUNS_KEYS, read_lun_beside_others};
pub(crate) use read::{
    LSI_LIMITS, LSI_OWN_TARGET, TYPES, VIRTIO_SCSI_LIMITS, read_and_register_export,
};

use crate::{
    DEFAULT_SERVE_QUEUES, MAX_QUEUE_SIZE, MAX_QUEUES, MAX_SCSI_QUEUES, MAX_SERIAL_BYTES,
    SocketAddr,
    export::bitmaps::BitmapsForm,
    form::{ChoiceForm, LabelForm, NBD_TEXT_FORM, NumberForm, SwitchForm, number_form, size_form},
    key::{KeySpec, ValueType},
    limits,
    settings::settings,
};

/// `--export …`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportOptions {
    /// `id`: the export's name, unique among exports.
    pub id: String,
    /// `node-name`: the node to export, which exists. Of several, the first; empty if there are none.
    pub node_name: String,
    /// `iothread` or `iothread-vq-mapping`: queue *i* runs on the iothread that member *i* modulo
    /// the length names. Either each name once, or one member for each of the `num_queues`. They
    /// exist. Empty = chosen by the program.
    pub iothreads: Vec<String>,
    /// Options of every type.
    pub settings: CommonExportOptions,
    /// The type with its own options.
    pub kind: ExportKind,
}

settings! {
    /// Options of every export.
    pub struct CommonExportOptions {
        /// let the guest write (default off)
        pub writable: bool = "writable", SwitchForm, default(false);
        /// complete a write only when it is on stable storage (default off)
        pub writethrough: bool = "writethrough", SwitchForm, default(false);
        /// do not allow moving it to other iothreads (default off)
        pub fixed_iothread: bool = "fixed-iothread", SwitchForm, default(false);
        /// leave an inactive node inactive until queues run, and again when they have stopped (default off)
        pub allow_inactive: bool = "allow-inactive", SwitchForm, default(false);
    }
    beside {
        /// the type of export; its key may be omitted
        "type", "TYPE", ValueType::Named("type"), required;
        /// name of the export
        "id", "NAME", ValueType::Str, required;
        /// the node to export
        "node-name", "NODE", ValueType::Str;
        /// iothread that runs it; for several iothread.0=ID,iothread.1=ID (default: chosen by blockplane)
        "iothread", "ID", ValueType::Named("IothreadRef");
    }
}

/// Keys of exports that have a socket of their own.
pub(crate) const SOCKET_KEYS: &[KeySpec] = &[
    KeySpec::new(
        "addr.type",
        "unix|fd",
        "socket for the VMM: created at a path (unix), or inherited (fd)",
        ValueType::Words,
    )
    .required(),
    KeySpec::new(
        "addr.path",
        "PATH",
        "with addr.type=unix: path of the socket",
        ValueType::Str,
    ),
    KeySpec::new(
        "addr.str",
        "FD",
        "with addr.type=fd: number, or name, of a listening socket",
        ValueType::Str,
    ),
];

/// A type of export with its options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExportKind {
    /// `vhost-user-blk`: a virtio disk over a Unix socket.
    VhostUserBlk {
        /// `addr`: the socket that the VMM connects to.
        addr: SocketAddr,
        /// The disk.
        disk: VhostUserBlkOptions,
    },
    /// `vhost-user-scsi`: a virtio SCSI controller over a Unix socket.
    VhostUserScsi {
        /// The same.
        addr: SocketAddr,
        /// Its queues.
        queues: VhostUserScsiOptions,
        /// `luns`, or `node-name` alone: the disks at start, each with a target and LUN of its own. There may be none yet.
        luns: Vec<LunOptions>,
    },
    /// `vfio-user-lsi53c895a`: a SCSI host adapter with disks, a PCI device over a Unix socket.
    VfioUserLsi53c895a {
        /// The same.
        addr: SocketAddr,
        /// The same, at least one.
        luns: Vec<LunOptions>,
    },
    /// `nbd`: an export of the NBD server.
    Nbd(NbdExportOptions),
}

impl ExportKind {
    /// The word of `type`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            ExportKind::VhostUserBlk { .. } => "vhost-user-blk",
            ExportKind::VhostUserScsi { .. } => "vhost-user-scsi",
            ExportKind::VfioUserLsi53c895a { .. } => "vfio-user-lsi53c895a",
            ExportKind::Nbd(_) => "nbd",
        }
    }

    /// The socket that its VMM connects to. Clients of an NBD export connect to the server.
    #[must_use]
    pub fn socket(&self) -> Option<&SocketAddr> {
        match self {
            ExportKind::VhostUserBlk { addr, .. }
            | ExportKind::VhostUserScsi { addr, .. }
            | ExportKind::VfioUserLsi53c895a { addr, .. } => Some(addr),
            ExportKind::Nbd(_) => None,
        }
    }

    /// The disks of a SCSI controller.
    #[must_use]
    pub fn luns(&self) -> Option<&[LunOptions]> {
        match self {
            ExportKind::VhostUserBlk { .. } | ExportKind::Nbd(_) => None,
            ExportKind::VhostUserScsi { luns, .. }
            | ExportKind::VfioUserLsi53c895a { luns, .. } => Some(luns),
        }
    }
}

impl ExportOptions {
    /// All exported nodes.
    #[must_use]
    pub fn node_names(&self) -> Vec<&str> {
        match self.kind.luns() {
            None => vec![&self.node_name],
            Some(luns) => luns.iter().map(|lun| &*lun.node_name).collect(),
        }
    }

    /// Whether its clients may write to this node.
    #[must_use]
    pub fn writes_node(&self, node: &str) -> bool {
        match self.kind.luns() {
            None => self.settings.writable && self.node_name == node,
            Some(luns) => luns.iter().any(|lun| lun.writable && lun.node_name == node),
        }
    }

    /// Whether it exports this node.
    #[must_use]
    pub fn exports_node(&self, node: &str) -> bool {
        self.node_names().contains(&node)
    }
}

/// One disk of a SCSI controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LunOptions {
    /// `node-name`: the node, which exists.
    pub node_name: String,
    /// `target`: within the limits of the controller. Default 0.
    pub target: u16,
    /// `lun`: within the limits of the controller. Default: the first free one.
    pub lun: u16,
    /// `writable`: let the guest write. Default: as of the export.
    pub writable: bool,
    /// Identity and reservations of the disk.
    pub device: LunDeviceOptions,
}

settings! {
    /// Options of `nbd`.
    pub struct NbdExportOptions {
        /// name of the export for clients, at most 4096 bytes (default: the node-name)
        pub name: Option<String> = "name", NBD_TEXT_FORM, optional;
        /// description for people, which clients can show, at most 4096 bytes
        pub description: Option<String> = "description", NBD_TEXT_FORM, optional;
        /// dirty bitmaps that clients can read: bitmaps.0=NAME (default: none)
        pub bitmaps: Vec<ExportedBitmap> = "bitmaps", BitmapsForm, default(Vec::new());
        /// let clients read from which layer of a chain of images data comes; here there is one (default off)
        pub allocation_depth: bool = "allocation-depth", SwitchForm, default(false);
    }
}

settings! {
    /// Options of `vhost-user-scsi`.
    pub struct VhostUserScsiOptions {
        /// most queues for commands that a VMM may ask for, 1 to 254 (default 64)
        pub num_queues: u16 = "num-queues", number_form(1, MAX_SCSI_QUEUES), default(DEFAULT_SERVE_QUEUES);
        /// most entries per queue, a power of two up to 1024 (default 1024; blockplane's own)
        pub queue_size: u16 = "queue-size", QUEUE_SIZE_FORM, default(MAX_QUEUE_SIZE);
        /// offer packed queues; the VMM must ask for them too (default off; blockplane's own)
        pub packed: bool = "packed", SwitchForm, default(false);
    }
    beside {
        /// the queues of each iothread: iothread-vq-mapping.0.iothread=ID with iothread-vq-mapping.0.vqs.0=N (blockplane's own)
        "iothread-vq-mapping", "LIST", ValueType::ListOf("IOThreadVirtQueueMapping");
    }
}

settings! {
    /// Options of `vhost-user-blk`.
    pub struct VhostUserBlkOptions {
        /// most queues a VMM may ask for, 1 to 256 (default 1)
        pub num_queues: u16 = "num-queues", number_form(1, MAX_QUEUES), default(1);
        /// most entries per queue, a power of two up to 1024 (default 1024; blockplane's own)
        pub queue_size: u16 = "queue-size", QUEUE_SIZE_FORM, default(MAX_QUEUE_SIZE);
        /// offer packed queues; the VMM must ask for them too (default off; blockplane's own)
        pub packed: bool = "packed", SwitchForm, default(false);
        /// a power of two, 512 to 32768 (default 512)
        pub logical_block_size: u32 = "logical-block-size",
            size_form(0, u32::MAX)
                .with_placeholder("BYTES")
                .with_check(is_block_size, limits::BLOCK_SIZE_EXPECTED), default(512);
        /// serial number the guest sees, at most 20 bytes (blockplane's own)
        pub serial: Option<String> = "serial", LabelForm { longest: MAX_SERIAL_BYTES }, optional;
        /// merge adjacent requests of one batch (default on; blockplane's own)
        pub request_merging: bool = "request-merging", SwitchForm, default(true);
        /// most requests that are merged into one, up to 64; 0 or 1 = none (default 32; blockplane's own)
        pub max_merge_requests: u16 = "max-merge-requests",
            number_form(0, MAX_MERGE_REQUESTS), default(DEFAULT_MERGE_REQUESTS);
        /// most bytes of a merged request (default 1M; blockplane's own)
        pub max_merge_bytes: u64 = "max-merge-bytes",
            size_form(0, i64::MAX.unsigned_abs()).with_placeholder("BYTES"), default(DEFAULT_MERGE_BYTES);
        /// pin all guest memory for io_uring; not with a balloon (default off; blockplane's own)
        pub fixed_buffers: bool = "fixed-buffers", SwitchForm, default(false);
        /// failed reads: report to the guest, ignore the error, or park the request until block-export-resume
        /// (default report; blockplane's own)
        pub rerror: OnError = "rerror", ON_READ_ERROR_FORM, default(OnError::Report);
        /// the same for other failed requests; enospc = stop if the disk is full, else report (default report; blockplane's own)
        pub werror: OnError = "werror", ON_WRITE_ERROR_FORM, default(OnError::Report);
        /// report requests that take longer than this; 0 = never (default 30; blockplane's own)
        pub request_timeout: u64 = "request-timeout",
            number_form(0, SECONDS_PER_DAY).with_placeholder("SECONDS"), default(DEFAULT_REQUEST_TIMEOUT);
    }
    beside {
        /// the queues of each iothread: iothread-vq-mapping.0.iothread=ID with iothread-vq-mapping.0.vqs.0=N (blockplane's own)
        "iothread-vq-mapping", "LIST", ValueType::ListOf("IOThreadVirtQueueMapping");
    }
}

const QUEUE_SIZE_FORM: NumberForm<u16> =
    number_form(0, u16::MAX).with_check(is_queue_size, limits::QUEUE_SIZE_EXPECTED);

fn is_queue_size(entries: u64) -> bool {
    limits::queue_size_if_valid(entries).is_some()
}

fn is_block_size(bytes: u64) -> bool {
    limits::block_size_if_valid(bytes).is_some()
}

const SECONDS_PER_DAY: u64 = 86_400;

const ON_READ_ERROR_FORM: ChoiceForm<OnError> = ChoiceForm {
    words: &[
        ("report", OnError::Report),
        ("ignore", OnError::Ignore),
        ("stop", OnError::Stop),
    ],
    unsupported: &[],
    placeholder: "report|ignore|stop",
};

const ON_WRITE_ERROR_FORM: ChoiceForm<OnError> = ChoiceForm {
    words: &[
        ("report", OnError::Report),
        ("ignore", OnError::Ignore),
        ("enospc", OnError::NoSpace),
        ("stop", OnError::Stop),
    ],
    unsupported: &[],
    placeholder: "report|ignore|enospc|stop",
};

/// Most requests that are merged into one.
pub const MAX_MERGE_REQUESTS: u16 = 64;
/// Default of `max-merge-requests`.
pub const DEFAULT_MERGE_REQUESTS: u16 = 32;
/// Default of `max-merge-bytes`: 1 MiB.
pub const DEFAULT_MERGE_BYTES: u64 = 1 << 20;
/// Error policy: what happens to a failed request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnError {
    /// `report`: the guest gets the error.
    Report,
    /// `ignore`: the guest sees success.
    Ignore,
    /// `enospc`: as `stop` if the disk is full, else as `report`.
    NoSpace,
    /// `stop`: the request is parked until it is resumed.
    Stop,
}

/// Default of `request-timeout`, in seconds.
pub const DEFAULT_REQUEST_TIMEOUT: u64 = 30;
