//! Disk images: files in a directory that goes away with the test, and images of a Ceph cluster.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use tempfile::TempDir;

use crate::cluster;
use crate::model::{Extent, Model};

/// What an image is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backing {
    /// A file.
    File,
    /// An image of a Ceph cluster. Its objects have 64 KiB, so that most requests cross some.
    Rbd,
}

impl Backing {
    /// Whether what a small discard was for reads as zeroes. Of an image of Ceph, less than 64 KiB may stay as it is.
    pub fn zeroes_by_small_discards(self) -> bool {
        self == Self::File
    }
}

/// An image that the server under test gives out as a disk.
#[derive(Debug)]
pub struct Image {
    dir: TempDir,
    path: PathBuf,
    /// The name of an image of Ceph, in the pool `rbd`.
    rbd_name: Option<String>,
}

impl Image {
    /// An image of `bytes` bytes that reads as zeroes.
    ///
    /// # Panics
    /// When it cannot be made.
    pub fn new(backing: Backing, bytes: u64) -> Self {
        Self::holding(backing, bytes, &Model::zeroes(Extent::new(0, 0)))
    }

    /// An image of `bytes` bytes that holds what the model describes.
    ///
    /// # Panics
    /// When it cannot be made.
    pub fn holding(backing: Backing, bytes: u64, model: &Model) -> Self {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let mut image = Self::sparse(bytes);
        model.write_to(&image.path).expect("the image takes it");
        if backing == Backing::Rbd {
            let name = format!("disk{}", LAST.fetch_add(1, Ordering::Relaxed));
            cluster::rbd(&["import", "--object-size", "64K", image.local(), &name]);
            fs::remove_file(&image.path).expect("the file was there");
            image.rbd_name = Some(name);
        }
        image
    }

    /// A sparse file of `bytes` bytes where temporary files live.
    ///
    /// # Panics
    /// When the file cannot be made.
    pub fn sparse(bytes: u64) -> Self {
        let image = Self::absent_in(&std::env::temp_dir());
        image.create(bytes);
        image
    }

    /// A sparse file of `bytes` bytes in memory.
    ///
    /// # Panics
    /// When there is no tmpfs at `/dev/shm`.
    pub fn on_tmpfs(bytes: u64) -> Self {
        let image = Self::absent_in(Path::new("/dev/shm"));
        image.create(bytes);
        image
    }

    /// A name for a file that the server is to make.
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
        Self {
            dir,
            path,
            rbd_name: None,
        }
    }

    fn create(&self, bytes: u64) {
        let file = File::create_new(&self.path).expect("a new image");
        file.set_len(bytes).expect("room for a sparse image");
    }

    /// Where the file is. There is none of an image of Ceph.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn local(&self) -> &str {
        self.path.to_str().expect("test paths are UTF-8")
    }

    /// The name of an image of Ceph.
    pub fn rbd_name(&self) -> Option<&str> {
        self.rbd_name.as_deref()
    }

    /// A path beside it, for a second file.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Makes a file of its content and calls `look` with it, past the server.
    fn with_file<T>(&self, look: impl FnOnce(&Path) -> T) -> T {
        let Some(name) = &self.rbd_name else {
            return look(&self.path);
        };
        cluster::rbd(&["export", name, self.local()]);
        let seen = look(&self.path);
        fs::remove_file(&self.path).expect("it was exported");
        seen
    }

    /// Compares it with the model, past the server.
    ///
    /// # Panics
    /// When it cannot be read or a sector differs.
    pub fn assert_holds(&self, model: &Model) {
        self.with_file(|path| model.assert_file(path));
    }

    /// Its size in bytes.
    ///
    /// # Panics
    /// When it is gone.
    pub fn size_bytes(&self) -> u64 {
        self.with_file(|path| fs::metadata(path).expect("the image").len())
    }

    /// What it occupies, in bytes: of a file `st_blocks` (stat(2)), of an image of Ceph its objects.
    ///
    /// # Panics
    /// When it is gone.
    pub fn allocated_bytes(&self) -> u64 {
        let Some(name) = &self.rbd_name else {
            return fs::metadata(&self.path).expect("the image").blocks() * 512;
        };
        let objects = cluster::rbd(&["diff", "--whole-object", name]);
        // Offset, length and kind of each part.
        let lengths = objects.lines().skip(1).map(|line| {
            let length = line.split_whitespace().nth(1);
            length.and_then(|length| length.parse::<u64>().ok())
        });
        let total: Option<u64> = lengths.sum();
        total.unwrap_or_else(|| panic!("no lengths: {objects}"))
    }
}
