//! Disk images in a directory that goes away with the test.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// A file that the server under test gives out as a disk.
#[derive(Debug)]
pub struct Image {
    dir: TempDir,
    path: PathBuf,
}

impl Image {
    /// A sparse image of `bytes` bytes where temporary files live.
    ///
    /// # Panics
    /// When the file cannot be made.
    pub fn sparse(bytes: u64) -> Self {
        let image = Self::absent_in(&std::env::temp_dir());
        image.create(bytes);
        image
    }

    /// A sparse image of `bytes` bytes in memory.
    ///
    /// # Panics
    /// When there is no tmpfs at `/dev/shm`.
    pub fn on_tmpfs(bytes: u64) -> Self {
        let image = Self::absent_in(Path::new("/dev/shm"));
        image.create(bytes);
        image
    }

    /// A name for an image that the server is to make.
    ///
    /// # Panics
    /// When no directory can be made for it.
    pub fn absent() -> Self {
        Self::absent_in(&std::env::temp_dir())
    }

    fn absent_in(parent: &Path) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("interop-image-")
            .tempdir_in(parent)
            .expect("a directory for the image");
        let path = dir.path().join("disk.img");
        Self { dir, path }
    }

    fn create(&self, bytes: u64) {
        let file = File::create_new(&self.path).expect("a new image");
        file.set_len(bytes).expect("room for a sparse image");
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path beside it, for a second file.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// What the file occupies, in bytes (`st_blocks`, stat(2)).
    ///
    /// # Panics
    /// When the file is gone.
    pub fn allocated_bytes(&self) -> u64 {
        fs::metadata(&self.path).expect("the image").blocks() * 512
    }
}
