//! Server programs and the options to start them with.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cache::target_dir;
use crate::device::Device;
use crate::error::{Result, find_program, run};

/// A server program, by its path.
#[derive(Clone, Debug)]
pub enum Program {
    /// `blockplane serve`.
    Blockplane(PathBuf),
    /// qemu-storage-daemon, for comparison.
    QemuStorageDaemon(PathBuf),
}

/// The server that tests use: `BLOCKPLANE_BIN`, or a fresh build; qemu-storage-daemon if
/// `BLOCKPLANE_TEST_SERVER` is `qsd`.
///
/// # Errors
/// [`Error::CommandFailed`] if the build fails, [`Error::MissingProgram`].
pub fn blockplane() -> Result<Program> {
    if std::env::var_os("BLOCKPLANE_TEST_SERVER").is_some_and(|server| server == "qsd") {
        return find_program("qemu-storage-daemon", "qemu-system-common")
            .map(Program::QemuStorageDaemon);
    }
    if let Some(path) = std::env::var_os("BLOCKPLANE_BIN") {
        return Ok(Program::Blockplane(PathBuf::from(path)));
    }
    built("blockplane", "blockplane").map(Program::Blockplane)
}

/// The measuring program that belongs to it: `BLOCKPLANE_BENCH_BIN`, or a fresh build.
///
/// # Errors
/// [`Error::CommandFailed`] if the build fails.
pub fn blockplane_bench() -> Result<PathBuf> {
    match std::env::var_os("BLOCKPLANE_BENCH_BIN") {
        Some(path) => Ok(PathBuf::from(path)),
        None => built("bench", "blockplane-bench"),
    }
}

/// Builds a program of the workspace with cargo and returns its path.
fn built(package: &str, program: &str) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let target = target_dir();
    run(Command::new(cargo)
        .args(["build", "--quiet", "--package", package, "--bin", program])
        .arg("--target-dir")
        .arg(&target)
        .current_dir(env!("CARGO_MANIFEST_DIR")))?;
    Ok(target.join("debug").join(program))
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
    /// Whether there is nothing behind the disk: what is written is lost, and reads bring what was in memory. Needs a
    /// monitor.
    pub null: bool,
    /// Its size.
    pub size_bytes: u64,
    /// Virtqueues; at least 1.
    pub num_queues: u16,
    /// At most 20 letters or digits.
    pub serial: String,
    /// Whether the guest may write.
    pub read_only: bool,
    /// Packed queues, offered by the server and asked for by the VMM. Not with qemu-storage-daemon,
    /// which has none.
    pub packed: bool,
    /// Whether it has a monitor, for [`Server::execute`].
    pub monitor: bool,
    /// Whether requests that find no space for the image are parked until a command to the monitor resumes them.
    pub waits_for_space: bool,
    /// How the image is locked, if not as servers do by default. Not with `blockplane serve`.
    pub locking: Option<&'static str>,
    /// Whether it leaves the image alone until a guest uses it (`active=off`, `allow-inactive=on`): the destination of a migration. Not
    /// with `blockplane serve`.
    pub starts_inactive: bool,
    /// Whether requests that fail wait, and there is a node `b` before the disk that lets them (`x-blkdebug-set`). Needs a monitor.
    pub faults: bool,
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
            null: false,
            size_bytes,
            num_queues: 1,
            serial: "BP-GUEST-0001".to_owned(),
            read_only: false,
            packed: false,
            monitor: false,
            waits_for_space: false,
            locking: None,
            starts_inactive: false,
            faults: false,
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
}
