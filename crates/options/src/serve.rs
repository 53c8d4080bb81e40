//! `blockplane serve DISK`: the settings of the command that serves disks on one socket, for interactive use.

mod args;
mod device;
mod disks;
mod nbd_uri;
mod paths;
mod rates;
mod values;

use std::path::PathBuf;

pub(crate) use args::{grammar, parse};
pub use device::ServeDevice;
pub use nbd_uri::{is_nbd_uri, nbd_uri_to_json};

use crate::{
    AioMode, Confinement, Discard, Locking, LogFormat, LogLevel, MetricsAddr, NbdOptions,
    RbdOptions, ThrottleGroupOptions,
};

/// Settings of `blockplane serve`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServeSettings {
    /// The disks: one or more, and no more than the device can have.
    pub disks: Vec<ServeDisk>,
    /// `--device`: the device that the guest sees. Default `virtio-blk`.
    pub device: ServeDevice,
    /// `--size` in bytes, a multiple of 512 and not 0: create files with this size that do not
    /// exist; for `null-co:` the size of the disk, [`crate::DEFAULT_NULL_SIZE`] if `None`. For a
    /// file never together with `read_only`.
    pub size: Option<u64>,
    /// `--socket`: the socket to listen on, 1 to 107 bytes; see [`ServeSettings::socket_path_or_default`] for the default.
    pub socket: Option<PathBuf>,
    /// `--monitor`: the socket of a monitor, 1 to 107 bytes. `None`: no monitor.
    pub monitor: Option<PathBuf>,
    /// `--num-queues`: most queues for requests that a VMM may ask for; 1 to [`crate::MAX_QUEUES`], or
    /// [`crate::MAX_SCSI_QUEUES`] for SCSI. Default [`crate::DEFAULT_SERVE_QUEUES`].
    pub num_queues: u16,
    /// `--queue-size`: most entries a queue may have; a power of two, 2 to
    /// [`crate::MAX_QUEUE_SIZE`]. Default [`crate::MAX_QUEUE_SIZE`].
    pub queue_size: u16,
    /// `--read-only`
    pub read_only: bool,
    /// `--serial`: 1 to 20 bytes of printable ASCII, for each disk its own. Empty = chosen by the program.
    pub serials: Vec<String>,
    /// `--cache-direct`: bypass the host's page cache. Default on.
    pub cache_direct: bool,
    /// `--aio`: the I/O backend. `None`: chosen by probing.
    pub aio: Option<AioMode>,
    /// `--write-through`: complete a write only when it is on stable storage.
    pub write_through: bool,
    /// `--logical-block-size` in bytes; a power of two, 512 to 32768. `None` = 512, or more where
    /// the disk requires it.
    pub logical_block_size: Option<u32>,
    /// `--iothreads`: threads the queues are spread over; 1 to `num_queues`. Default 1.
    pub iothreads: u16,
    /// `--aio-max-batch`: most requests in one call to the kernel; 0 = automatic.
    /// Default 0.
    pub aio_max_batch: u32,
    /// `--aio-max-events`: most requests in flight per iothread; 1 to [`crate::MAX_AIO_EVENTS`].
    /// Default [`crate::DEFAULT_AIO_MAX_EVENTS`].
    pub aio_max_events: u32,
    /// `--cpu-affinity`: the CPUs of each iothread, one member for each, ascending and below
    /// [`crate::MAX_CPUS`]. Empty = all that the program may use.
    pub cpu_affinity: Vec<Vec<u16>>,
    /// `--poll-max-ns`: the longest an iothread busy-polls before it blocks, in nanoseconds, up to
    /// `i64::MAX`; 0 = never. Default [`crate::DEFAULT_POLL_MAX_NS`].
    pub poll_max_ns: u64,
    /// `--poll-cpu-max`: the share of a CPU that polling may use per iothread, in percent, 0 to 100.
    /// Default [`crate::DEFAULT_POLL_CPU_MAX`].
    pub poll_cpu_max: u32,
    /// `--request-merging`: merge adjacent requests of one batch. Default on.
    pub request_merging: bool,
    /// `--packed`: offer packed queues. Default off.
    pub packed: bool,
    /// `--locking`: whether to lock the file against other writers. Default auto.
    pub locking: Locking,
    /// `--iops`, `--bps`: the limits of all disks together. `None`: no limits.
    pub limits: Option<Box<ThrottleGroupOptions>>,
    /// `--discard`: what a discard request does. Default unmap.
    pub discard: Discard,
    /// `--pidfile`: file for the process id, written once everything is started.
    pub pidfile: Option<PathBuf>,
    /// `--metrics`: address of the metrics server.
    pub metrics: Option<MetricsAddr>,
    /// `--sandbox` and `--user`
    pub confinement: Confinement,
    /// `--verbose`, `--quiet`: level of the log.
    pub log_level: LogLevel,
    /// `--log-format`. `None` = as in the environment.
    pub log_format: Option<LogFormat>,
}

impl ServeSettings {
    /// The socket to listen on: `--socket`, or the file name of the first disk with `.sock` after it, in
    /// the current directory (`null-co.sock` for `null-co:`, `IMAGE.sock` for an image of Ceph).
    #[must_use]
    pub fn socket_path_or_default(&self) -> PathBuf {
        if let Some(socket) = &self.socket {
            return socket.clone();
        }
        let mut name = match self.disks.first() {
            Some(ServeDisk::Path(path)) => path.file_name().unwrap_or(path.as_os_str()).to_owned(),
            Some(ServeDisk::Rbd { image, .. }) => image.image.replace('/', "-").into(),
            Some(ServeDisk::Nbd(nbd)) => match nbd.export.as_deref() {
                None | Some("") => "nbd".into(),
                Some(export) => export.replace('/', "-").into(),
            },
            Some(ServeDisk::NullCo) | None => "null-co".into(),
        };
        name.push(".sock");
        PathBuf::from(name)
    }
}

/// A disk of `serve`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServeDisk {
    /// A file or a block device.
    Path(PathBuf),
    /// `null-co:`: a disk without storage, for measuring.
    NullCo,
    /// `nbd://HOST/EXPORT`, `nbd+unix:///EXPORT?socket=PATH`: an export of an NBD server.
    Nbd(Box<NbdOptions>),
    /// `rbd:POOL/IMAGE`: an image of a Ceph cluster.
    Rbd {
        /// Its options. `locking` is that of [`ServeSettings`], and `key_secret` is `None`.
        image: Box<RbdOptions>,
        /// `keyfile`: a file with the user's key in base64.
        key_file: Option<PathBuf>,
    },
}

impl ServeDisk {
    /// Whether it can only be read: it is a snapshot.
    #[must_use]
    pub fn is_snapshot(&self) -> bool {
        matches!(self, ServeDisk::Rbd { image, .. } if image.snapshot.is_some())
    }
}
