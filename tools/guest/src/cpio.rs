//! Writer for the initramfs archive in cpio format.
//!
//! Format: "newc", as in the kernel's Documentation/driver-api/early-userspace/buffer-format.rst.
//! Only what an initramfs needs: folders, files, symbolic links; no owners, no devices, no times.

use std::collections::HashSet;
use std::io::{self, Write};
use std::path::Path;

/// Name of the entry that ends an archive.
const TRAILER: &str = "TRAILER!!!";

const FOLDER: u32 = 0o040_755;
const FILE: u32 = 0o100_644;
const EXECUTABLE: u32 = 0o100_755;
const SYMLINK: u32 = 0o120_777;

/// An archive being written to `out`.
#[derive(Debug)]
pub(crate) struct Archive<W> {
    out: W,
    inode: u32,
    folders: HashSet<String>,
}

impl<W: Write> Archive<W> {
    pub(crate) fn new(out: W) -> Self {
        Self {
            out,
            inode: 0,
            folders: HashSet::new(),
        }
    }

    /// A folder and those above it, each once. `path` has no leading slash.
    pub(crate) fn folder(&mut self, path: &str) -> io::Result<()> {
        if path.is_empty() || !self.folders.insert(path.to_owned()) {
            return Ok(());
        }
        self.parents(path)?;
        self.entry(path, FOLDER, &[])
    }

    /// A file that is not run.
    pub(crate) fn file(&mut self, path: &str, content: &[u8]) -> io::Result<()> {
        self.parents(path)?;
        self.entry(path, FILE, content)
    }

    /// A program or a shared library.
    pub(crate) fn executable(&mut self, path: &str, content: &[u8]) -> io::Result<()> {
        self.parents(path)?;
        self.entry(path, EXECUTABLE, content)
    }

    /// A symbolic link to `to`.
    pub(crate) fn symlink(&mut self, path: &str, to: &str) -> io::Result<()> {
        self.parents(path)?;
        self.entry(path, SYMLINK, to.as_bytes())
    }

    /// Ends the archive.
    pub(crate) fn finish(mut self) -> io::Result<W> {
        self.entry(TRAILER, 0, &[])?;
        Ok(self.out)
    }

    fn parents(&mut self, path: &str) -> io::Result<()> {
        let parent = Path::new(path)
            .parent()
            .and_then(Path::to_str)
            .unwrap_or_default()
            .to_owned();
        self.folder(&parent)
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        let too_big = |_| io::Error::new(io::ErrorKind::FileTooLarge, "over 4 GiB");
        let size = u32::try_from(content.len()).map_err(too_big)?;
        let name_size = u32::try_from(path.len() + 1).map_err(too_big)?;
        self.inode += 1;
        // magic, ino, mode, uid, gid, nlink, mtime, filesize, devmajor/minor, rdevmajor/minor, namesize, check
        let fields = [self.inode, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0];
        let mut header = String::from("070701");
        for field in fields {
            header.push_str(&format!("{field:08x}"));
        }
        self.out.write_all(header.as_bytes())?;
        self.out.write_all(path.as_bytes())?;
        self.out.write_all(&[0])?;
        self.pad(header.len() + path.len() + 1)?;
        self.out.write_all(content)?;
        self.pad(content.len())
    }

    /// Zeroes up to the next multiple of four.
    fn pad(&mut self, len: usize) -> io::Result<()> {
        self.out.write_all(&[0; 3][..len.wrapping_neg() % 4])
    }
}
