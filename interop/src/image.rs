//! Disk images: files in a directory that goes away with the test.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::model::Model;

/// A file that the server under test gives out as a disk.
#[derive(Debug)]
pub struct Image(TempDir);

impl Image {
    /// A sparse file of `bytes` bytes.
    ///
    /// # Panics
    /// When it cannot be made.
    pub fn new(bytes: u64) -> Self {
        Self::in_folder(&std::env::temp_dir(), bytes)
    }

    /// One of `bytes` bytes that holds what the model describes.
    ///
    /// # Panics
    /// When it cannot be made.
    pub fn holding(bytes: u64, model: &Model) -> Self {
        let image = Self::new(bytes);
        model.write_to(&image.path()).expect("the image takes it");
        image
    }

    /// A sparse file of `bytes` bytes in a folder, which may be a tmpfs.
    ///
    /// # Panics
    /// When it cannot be made.
    pub fn in_folder(parent: &Path, bytes: u64) -> Self {
        let dir = tempfile::tempdir_in(parent);
        let image = Self(dir.expect("a directory for the image"));
        let file = File::create_new(image.path()).expect("a new image");
        file.set_len(bytes).expect("room for a sparse image");
        image
    }

    /// Where the file is.
    pub fn path(&self) -> PathBuf {
        self.0.path().join("disk.img")
    }

    /// Compares it with the model, past the server.
    ///
    /// # Panics
    /// When it cannot be read or a sector differs.
    pub fn assert_holds(&self, model: &Model) {
        model.assert_file(&self.path());
    }

    /// Its size in bytes.
    ///
    /// # Panics
    /// When it is gone.
    pub fn size_bytes(&self) -> u64 {
        fs::metadata(self.path()).expect("the image").len()
    }

    /// What it occupies, in bytes: `st_blocks` (stat(2)).
    ///
    /// # Panics
    /// When it is gone.
    pub fn allocated_bytes(&self) -> u64 {
        fs::metadata(self.path()).expect("the image").blocks() * 512
    }
}
