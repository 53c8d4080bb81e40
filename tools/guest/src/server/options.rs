//! The server's program and the options to start it with.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cache::target_dir;
use crate::error::{Result, run};

/// The server that tests use: `BLOCKPLANE_BIN`, or a fresh build.
///
/// # Errors
/// If the build fails.
pub fn blockplane() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("BLOCKPLANE_BIN") {
        return Ok(path.into());
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let target = target_dir();
    run(Command::new(cargo)
        .args(["build", "--quiet", "--package", "blockplane"])
        .args(["--bin", "blockplane"])
        .arg("--target-dir")
        .arg(&target)
        .current_dir(env!("CARGO_MANIFEST_DIR")))?;
    Ok(target.join("debug/blockplane"))
}

/// The device in the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// A virtio disk, over vhost-user.
    VirtioBlk,
    /// A virtio SCSI controller, over vhost-user, with the disk as target 0 LUN 0, an empty one as LUN 1, and one of the
    /// same size as target 2 LUN 5; there is a node `spare` to be added. Of a server without a monitor, with the disk alone.
    Controller,
    /// An LSI 53C895A, over vfio-user, with the disk at target 0; a second one needs a server with a monitor.
    HostAdapter,
}

/// An image of a Ceph cluster, in the pool `rbd`.
#[derive(Clone, Debug)]
pub struct RbdImage {
    /// Its name.
    pub name: String,
    /// A `ceph.conf` for clients of the cluster.
    pub conf: PathBuf,
}

/// The settings of a server and its disk.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The image; created if it does not exist.
    pub disk: PathBuf,
    /// The image of a cluster that is served instead; it exists and has the size that is expected. Only a disk of
    /// [`Device::VirtioBlk`].
    pub rbd: Option<RbdImage>,
    /// Its size.
    pub size_bytes: u64,
    /// Virtqueues; at least 1.
    pub num_queues: u16,
    /// At most 20 letters or digits.
    pub serial: &'static str,
    /// Whether the guest may only read.
    pub read_only: bool,
    /// Packed queues, offered by the server and asked for by the VMM.
    pub packed: bool,
    /// Whether it has a monitor, for [`Server::query`](crate::Server::query). Without one it is a `blockplane serve`.
    pub monitor: bool,
    /// Whether requests that find no space for the image are parked until a command to the monitor resumes them. Needs a monitor.
    pub waits_for_space: bool,
    /// How the image is locked, if not as servers do by default. Needs a monitor.
    pub locking: Option<&'static str>,
    /// Whether it leaves the image alone until a guest uses it (`active=off`, `allow-inactive=on`): the destination of a migration.
    /// Needs a monitor.
    pub starts_inactive: bool,
    /// Whether requests that fail wait, and there is a node `b` before the disk that lets them (`x-blkdebug-set`). Needs a monitor.
    pub faults: bool,
    /// Whether a SCSI device has another disk, as target 1 LUN 0, which reads as zeroes, and whose requests can be held. Needs a monitor.
    pub has_held_disk: bool,
    /// The port of 127.0.0.1 at which the disk is also an NBD server's export `d`. Needs a monitor.
    pub nbd_port: Option<u16>,
    /// How a guest sees the disk.
    pub device: Device,
}

impl ServerOptions {
    /// A writable disk with one queue.
    #[must_use]
    pub fn new(disk: &Path, size_bytes: u64) -> Self {
        Self {
            disk: disk.to_owned(),
            rbd: None,
            size_bytes,
            num_queues: 1,
            serial: "BP-GUEST-0001",
            read_only: false,
            packed: false,
            monitor: false,
            waits_for_space: false,
            locking: None,
            starts_inactive: false,
            faults: false,
            has_held_disk: false,
            nbd_port: None,
            device: Device::VirtioBlk,
        }
    }

    /// A writable disk with one queue, which is an image of a cluster.
    #[must_use]
    pub fn rbd(image: RbdImage, size_bytes: u64) -> Self {
        Self {
            rbd: Some(image),
            ..Self::new(Path::new(""), size_bytes)
        }
    }

    /// Processors of the guest: virtio has a queue for each.
    pub(crate) fn cpus(&self) -> u16 {
        match self.device {
            Device::VirtioBlk | Device::Controller => self.num_queues,
            Device::HostAdapter => 2,
        }
    }
}
