//! `--export`: how a guest reaches a node.
//!
//! `vhost-user-blk` is qemu-storage-daemon's, with its defaults; the others are blockplane's own.

mod lun_device;
mod luns;
mod queues;
mod read;

use std::path::PathBuf;

pub(crate) use lun_device::KEYS as LUN_DEVICE_KEYS;
pub use lun_device::{LunDevice, MAX_SCSI_SERIAL_BYTES};
pub(crate) use luns::{KEYS as LUNS_KEYS, LUN_KEYS, lun};
pub(crate) use read::{
    BLK_KEYS, DISK_KEYS, KEYS, LSI_ADAPTER, LSI_PLACES, QUEUE_KEYS, TYPES, VIRTIO_PLACES, parse,
};

/// `--export …`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportOptions {
    /// `id`: the export's name, unique among exports.
    pub id: String,
    /// `node-name`: the node to export; checked to exist. Of several, the first; empty if there are none.
    pub node_name: String,
    /// `writable`: let the guest write, where a disk does not say it. Default off.
    pub writable: bool,
    /// `writethrough`: complete a write only when it is on stable storage. Default off.
    pub writethrough: bool,
    /// `iothread` or `iothread-vq-mapping`: queue *i* runs on the iothread that member *i* modulo
    /// the length names. Either each name once, or one member for each of the `num_queues`. Checked
    /// to exist. Empty = the program's own choice.
    pub iothreads: Vec<String>,
    /// `fixed-iothread`: keep the export on these threads. Default off.
    pub fixed_iothread: bool,
    /// The kind of export with its own options.
    pub kind: ExportKind,
}

/// The kinds of export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExportKind {
    /// `vhost-user-blk`: a virtio disk over a Unix socket.
    VhostUserBlk(VhostUserBlkOptions),
    /// `vhost-user-scsi`: a virtio SCSI controller over a Unix socket.
    VhostUserScsi(VhostUserScsiOptions),
    /// `vfio-user-lsi53c895a`: a SCSI host adapter with disks, a PCI device over a Unix socket.
    VfioUserLsi53c895a(ScsiOptions),
}

impl ExportKind {
    /// As its `type` says.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            ExportKind::VhostUserBlk(_) => "vhost-user-blk",
            ExportKind::VhostUserScsi(_) => "vhost-user-scsi",
            ExportKind::VfioUserLsi53c895a(_) => "vfio-user-lsi53c895a",
        }
    }

    /// Where the VMM connects.
    #[must_use]
    pub fn addr(&self) -> &SocketAddr {
        match self {
            ExportKind::VhostUserBlk(disk) => &disk.addr,
            ExportKind::VhostUserScsi(controller) => &controller.scsi.addr,
            ExportKind::VfioUserLsi53c895a(scsi) => &scsi.addr,
        }
    }

    /// What SCSI controllers have.
    #[must_use]
    pub fn scsi(&self) -> Option<&ScsiOptions> {
        match self {
            ExportKind::VhostUserBlk(_) => None,
            ExportKind::VhostUserScsi(controller) => Some(&controller.scsi),
            ExportKind::VfioUserLsi53c895a(scsi) => Some(scsi),
        }
    }
}

impl ExportOptions {
    /// All nodes that it shows.
    #[must_use]
    pub fn node_names(&self) -> Vec<&str> {
        match self.kind.scsi() {
            None => vec![&self.node_name],
            Some(scsi) => scsi.luns.iter().map(|lun| &*lun.node_name).collect(),
        }
    }

    /// Whether it shows this node.
    #[must_use]
    pub fn shows(&self, node: &str) -> bool {
        self.node_names().contains(&node)
    }
}

/// Options of SCSI controllers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScsiOptions {
    /// `addr`: where the VMM connects.
    pub addr: SocketAddr,
    /// `luns`, or `node-name` alone: the disks at the start, each at a place of its own.
    pub luns: Vec<LunOptions>,
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
    /// `serial`: printable ASCII without blanks at the ends, 1 to [`MAX_SCSI_SERIAL_BYTES`]. `None` = none.
    pub serial: Option<String>,
    /// What else it says that it is, and what it keeps.
    pub device: LunDevice,
    /// `logical-block-size` in bytes; a power of two, 512 to 32768. Default 512.
    pub logical_block_size: u32,
    /// `writable`: let the guest write. Default: as the export.
    pub writable: bool,
}

/// Options of `vhost-user-scsi`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VhostUserScsiOptions {
    /// What all SCSI controllers have; it may have no disk yet.
    pub scsi: ScsiOptions,
    /// `num-queues`: most queues for commands that a VMM may ask for; 1 to [`MAX_SCSI_QUEUES`].
    /// Default [`DEFAULT_SERVE_QUEUES`](crate::DEFAULT_SERVE_QUEUES).
    pub num_queues: u16,
    /// `queue-size`: as of `vhost-user-blk`.
    pub queue_size: u16,
    /// `packed`: as of `vhost-user-blk`.
    pub packed: bool,
}

/// Options of `vhost-user-blk`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VhostUserBlkOptions {
    /// `addr`: where the VMM connects.
    pub addr: SocketAddr,
    /// `num-queues`: most queues a VMM may ask for; 1 to [`MAX_QUEUES`]. Default 1.
    pub num_queues: u16,
    /// `queue-size` (blockplane's own): most entries a queue may have; a power of two, 2 to
    /// [`MAX_QUEUE_SIZE`]. Default [`MAX_QUEUE_SIZE`].
    pub queue_size: u16,
    /// `logical-block-size` in bytes; a power of two, 512 to 32768. Default 512.
    pub logical_block_size: u32,
    /// `serial` (blockplane's own): the serial number the guest sees; printable ASCII without
    /// blanks at the ends, 1 to 20 bytes. `None` = the device's own choice.
    pub serial: Option<String>,
    /// `request-merging` (blockplane's own): join adjacent requests of one batch. Default on.
    pub request_merging: bool,
    /// `max-merge-requests` (blockplane's own): how many of them become one at most; up to
    /// [`MAX_MERGE_REQUESTS`], 0 or 1 = none. Default [`DEFAULT_MERGE_REQUESTS`].
    pub max_merge_requests: u16,
    /// `max-merge-bytes` (blockplane's own): how many bytes a joined request has at most. Default
    /// [`DEFAULT_MERGE_BYTES`].
    pub max_merge_bytes: u64,
    /// `packed` (blockplane's own): offer packed queues. Default off.
    pub packed: bool,
    /// `rerror`: what is done about reads that the disk fails; never [`OnError::NoSpace`]. Default report.
    pub rerror: OnError,
    /// `werror`: the same for all other requests. Default report.
    pub werror: OnError,
    /// `request-timeout`: seconds after which a request is told of; 0: never. Default [`DEFAULT_REQUEST_TIMEOUT`].
    pub request_timeout: u64,
    /// `fixed-buffers` (blockplane's own): pin the guest's memory and make it known to io_uring.
    /// Default off.
    pub fixed_buffers: bool,
}

/// Where a VMM connects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SocketAddr {
    /// `addr.type=unix,addr.path=…`: a Unix socket to create and listen on; the path has 1 to 107
    /// bytes.
    Unix {
        /// Path of the socket.
        path: PathBuf,
    },
    /// `addr.type=fd,addr.str=…`: a listening Unix socket that the program was started with.
    Fd {
        /// Its number, 0 or more.
        fd: i32,
    },
    /// The same by name.
    FdName {
        /// The name that the service manager gave it (`LISTEN_FDNAMES`).
        name: String,
    },
}

/// Most queues of one export: vhost-user has 8 bits for a queue's index in the messages that
/// carry a file descriptor.
pub const MAX_QUEUES: u16 = 256;
/// Most queues for commands of one controller: with its control and event queues as many as a disk has.
pub const MAX_SCSI_QUEUES: u16 = MAX_QUEUES - 2;
/// Most entries of one queue: the field's servers hold the same limit, so guests stay below it.
pub const MAX_QUEUE_SIZE: u16 = 1024;
/// Most requests that become one.
pub const MAX_MERGE_REQUESTS: u16 = 64;
/// Default of `max-merge-requests`.
pub const DEFAULT_MERGE_REQUESTS: u16 = 32;
/// Default of `max-merge-bytes`: 1 MiB.
pub const DEFAULT_MERGE_BYTES: u64 = 1 << 20;
/// Most bytes of a serial number (virtio specification 1.2, section 5.2.6, `VIRTIO_BLK_T_GET_ID`).
pub const MAX_SERIAL_BYTES: usize = 20;

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
