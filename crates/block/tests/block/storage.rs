//! Disks for tests: files on a real filesystem, files on tmpfs, loop devices, null disks.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use block::{Aio, FileOptions, Locking, Node, NodeError, NodeOptions, NullOptions, testing};
use tempfile::TempDir;
pub use test_support::loop_device::{LoopDevice, tmpfs_folder};
use test_support::mounted_folder::MountedFolder;

/// A folder on the filesystem that the build is on.
pub fn folder() -> TempDir {
    TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// A folder on a filesystem whose disk has blocks of 4096 bytes.
pub fn large_block_folder() -> Option<(MountedFolder, LoopDevice)> {
    let device = LoopDevice::new(64 << 20, 4096)?;
    let name = device.path.to_str().unwrap();
    let made = Command::new("mkfs.ext4").args(["-q", name]).output();
    if !made.as_ref().is_ok_and(|made| made.status.success()) {
        test_support::report::not_run(&format!("no filesystem on large blocks: {made:?}"));
        return None;
    }
    Some((MountedFolder::mount(&[name])?, device))
}

/// An image of so many bytes.
pub fn image(folder: &impl AsRef<Path>, name: &str, bytes: u64) -> PathBuf {
    let path = folder.as_ref().join(name);
    fs::File::create(&path).unwrap().set_len(bytes).unwrap();
    path
}

/// An image of so many bytes in a folder of its own, which is removed when it is dropped.
pub fn new_image(bytes: u64) -> (TempDir, PathBuf) {
    let folder = folder();
    let path = image(&folder, "disk", bytes);
    (folder, path)
}

/// A null disk of 1 MiB.
pub fn null(latency_ns: u64, read_zeroes: bool) -> Arc<Node> {
    let options = NullOptions {
        size: 1 << 20,
        read_zeroes,
        latency_ns,
    };
    Node::open("null", false, &NodeOptions::Null(options)).unwrap()
}

/// Bytes of space that a file takes.
pub fn allocated(path: &Path) -> u64 {
    // The filesystem may keep the count back until it has written.
    fs::File::open(path).unwrap().sync_all().unwrap();
    fs::metadata(path).unwrap().blocks() * 512
}

/// Direct I/O, Linux AIO, discards passed on, locked.
pub fn options(path: &Path) -> FileOptions {
    FileOptions {
        locking: Locking::Auto,
        ..testing::file_options(path, Aio::Native)
    }
}

/// The same through the page cache.
pub fn cached(path: &Path) -> FileOptions {
    FileOptions {
        direct: false,
        ..options(path)
    }
}

/// The same through a ring.
pub fn ring(options: FileOptions) -> FileOptions {
    FileOptions {
        aio: Aio::IoUring,
        ..options
    }
}

/// Every way to the disk: with Linux AIO, a ring, threads, and the latter two through the page cache.
pub fn ways(path: &Path) -> [FileOptions; 5] {
    let threads = FileOptions {
        aio: Aio::Threads,
        ..options(path)
    };
    [
        options(path),
        ring(options(path)),
        threads,
        cached(path),
        ring(cached(path)),
    ]
}

/// Opens a file that no other process uses.
pub fn file(options: &FileOptions) -> Arc<Node> {
    patient(|| try_file(options, false))
}

/// Opens a disk that was just closed. A process that another test starts holds copies of our files,
/// and so of their locks, for the moment until it executes its program.
pub fn patient(open: impl Fn() -> Result<Arc<Node>, NodeError>) -> Arc<Node> {
    for _ in 0..5000 {
        match open() {
            Err(NodeError::Locked { .. }) => std::thread::sleep(Duration::from_millis(1)),
            opened => return opened.unwrap(),
        }
    }
    open().unwrap()
}

pub fn try_file(options: &FileOptions, read_only: bool) -> Result<Arc<Node>, NodeError> {
    Node::open("disk", read_only, &NodeOptions::File(options.clone()))
}

/// Opens a device that no other process uses.
pub fn device(options: &FileOptions) -> Arc<Node> {
    patient(|| try_device(options, false))
}

pub fn try_device(options: &FileOptions, read_only: bool) -> Result<Arc<Node>, NodeError> {
    Node::open("disk", read_only, &NodeOptions::HostDevice(options.clone()))
}
