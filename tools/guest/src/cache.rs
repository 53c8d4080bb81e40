//! The folder under `target/` that keeps the kernel between runs, and its lock.
//!
//! Several test processes may want the kernel at once: one of them fetches it, the others wait.
//! Nothing half-made is ever visible, as everything appears by `rename(2)`.
//! Nothing is deleted here: `cargo clean` does that.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// The build's target folder: `CARGO_TARGET_DIR`, or the workspace's `target`.
#[must_use]
pub fn target_dir() -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let workspace = workspace.canonicalize().unwrap_or(workspace);
    // A relative CARGO_TARGET_DIR is relative to where cargo was called; the workspace is
    // the only place that we can mean by it, as tests run in their package's folder.
    std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| workspace.join("target"), |dir| workspace.join(dir))
}

/// The cache folder, held exclusively until dropped.
#[derive(Debug)]
pub(crate) struct Cache {
    folder: PathBuf,
    // Unlocked by the kernel when the file is closed, also when we are killed.
    _lock: File,
}

impl Cache {
    /// Creates the folder if need be and waits until no other process holds it.
    pub(crate) fn lock() -> Result<Self> {
        let folder = folder()?;
        let path = folder.join("lock");
        let lock = File::create(&path).map_err(Error::io(format!("create {}", path.display())))?;
        lock.lock()
            .map_err(Error::io(format!("lock {}", path.display())))?;
        Ok(Self {
            folder,
            _lock: lock,
        })
    }

    /// Where it is.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// A new empty folder in the cache, on the same file system: its content can be renamed into place.
    pub(crate) fn scratch(&self) -> Result<tempfile::TempDir> {
        new_folder(&self.folder, "unfinished-")
    }
}

/// The cache folder; created if need be, not locked.
fn folder() -> Result<PathBuf> {
    let folder = target_dir().join("guest");
    fs::create_dir_all(&folder).map_err(Error::io(format!("create {}", folder.display())))?;
    Ok(folder)
}

/// A new folder for one test's disks, removed when dropped.
///
/// It is under `target/`, not in `/tmp`: that may be a memory file system, on which discard and
/// direct I/O differ from what a disk does.
///
/// # Errors
/// If the folder cannot be created.
pub fn disk_folder() -> Result<tempfile::TempDir> {
    new_folder(&folder()?, "disks-")
}

fn new_folder(parent: &Path, prefix: &str) -> Result<tempfile::TempDir> {
    tempfile::Builder::new()
        .prefix(prefix)
        .tempdir_in(parent)
        .map_err(Error::io(format!(
            "create a folder in {}",
            parent.display()
        )))
}
