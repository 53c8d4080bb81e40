//! Backing of a disk that is measured: an existing file or device, or a temporary one.

use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use commands::signals;
use rustix::fs::statvfs;

use crate::aio::Aio;
use crate::error::{Error, Result};
use crate::random::Random;
use crate::rbd_image::{self, RbdImage};

/// Where Linux mounts a file system in memory (`shm_overview(7)`).
const TMPFS: &str = "/dev/shm";

/// The storage behind a disk, as a server's options name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backing {
    /// `null-co`: completes at once and stores nothing.
    Null,
    /// A file, past the host's page cache, through this engine; none: the server's own choice.
    File(PathBuf, Option<Aio>),
    /// A block device, likewise.
    Device(PathBuf, Option<Aio>),
    /// An image of Ceph RBD, through librbd without its cache.
    Rbd(RbdImage),
    /// What an NBD server exports without a name, at this Unix socket.
    Nbd(PathBuf),
}

/// The value of `--backing`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackingOption {
    /// `null`: no storage.
    Null,
    /// `file`: one of our own on a disk.
    File,
    /// `tmpfs`: one of our own in memory, a disk without latency.
    Tmpfs,
    /// A file or block device that is there already.
    At(PathBuf),
    /// `rbd:POOL/IMAGE[:conf=FILE][:id=USER]`: an image of Ceph RBD that is there already.
    Rbd(RbdImage),
    /// `nbd:SOCKET`: what a running NBD server exports without a name.
    Nbd(PathBuf),
}

/// Folder and size of a new temporary file.
#[derive(Clone, Copy, Debug)]
pub struct NewFile<'p> {
    /// In this folder, unless it is to be in memory; none: beside this program.
    pub folder: Option<&'p Path>,
    /// It is filled with random data.
    pub bytes: u64,
}

/// What is behind a disk; files of our own are removed when it is dropped.
#[derive(Debug)]
pub struct Storage {
    /// For servers.
    pub backing: Backing,
    /// For a subtitle.
    pub name: String,
    _folder: Option<tempfile::TempDir>,
}

impl BackingOption {
    /// Whether it holds data that the program did not create.
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        matches!(
            self,
            BackingOption::At(_) | BackingOption::Rbd(_) | BackingOption::Nbd(_)
        )
    }

    /// The storage of one of `disks` disks, counted from 0.
    ///
    /// # Errors
    /// [`Error::Unsuitable`] for several disks where there is one file or device.
    pub fn of_disk(&self, index: u16, disks: u16) -> Result<BackingOption> {
        match self {
            BackingOption::Rbd(image) => Ok(BackingOption::Rbd(image.of_disk(index))),
            BackingOption::File
            | BackingOption::Tmpfs
            | BackingOption::At(_)
            | BackingOption::Nbd(_)
                if disks > 1 =>
            {
                Err(Error::Unsuitable(format!(
                    "--backing {self} is one disk, not {disks}: --disks is for null and for images of RBD"
                )))
            }
            only => Ok(only.clone()),
        }
    }

    /// Makes it, or finds it.
    ///
    /// # Errors
    /// [`Error::Unsuitable`] when it is not there, or no disk; [`Error::Io`] when there is no room for it;
    /// [`Error::Interrupted`].
    pub fn storage(&self, room: NewFile<'_>, aio: Option<Aio>) -> Result<Storage> {
        let (backing, place, folder) = match self {
            BackingOption::Null => (Backing::Null, "null-co", None),
            BackingOption::File | BackingOption::Tmpfs => {
                let (parent, place) = match self {
                    BackingOption::Tmpfs => (Some(Path::new(TMPFS)), "file on tmpfs, direct I/O"),
                    _ => (room.folder, "file, direct I/O"),
                };
                let folder = image_folder(parent)?;
                check_room(folder.path(), room.bytes, *self == BackingOption::Tmpfs)?;
                let path = folder.path().join("disk.img");
                write_file(&path, room.bytes)?;
                (Backing::File(path, aio), place, Some(folder))
            }
            BackingOption::At(path) if is_block_device(path)? => {
                (Backing::Device(path.clone(), aio), "block device", None)
            }
            BackingOption::At(path) => (Backing::File(path.clone(), aio), "file, direct I/O", None),
            BackingOption::Rbd(image) => (Backing::Rbd(image.clone()), "Ceph RBD", None),
            BackingOption::Nbd(socket) => (Backing::Nbd(socket.clone()), "NBD", None),
        };
        let name = match aio {
            Some(aio) if matches!(backing, Backing::File(..) | Backing::Device(..)) => {
                format!("{place}, aio={aio}")
            }
            _ => place.to_owned(),
        };
        Ok(Storage {
            backing,
            name,
            _folder: folder,
        })
    }
}

impl FromStr for BackingOption {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        if let Some(image) = text.strip_prefix(rbd_image::PREFIX) {
            return image.parse().map(BackingOption::Rbd);
        }
        if let Some(socket) = text.strip_prefix("nbd:") {
            return Ok(BackingOption::Nbd(socket.into()));
        }
        Ok(match text {
            "null" => BackingOption::Null,
            "file" => BackingOption::File,
            "tmpfs" => BackingOption::Tmpfs,
            path => BackingOption::At(path.into()),
        })
    }
}

impl fmt::Display for BackingOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BackingOption::Null => f.write_str("null"),
            BackingOption::File => f.write_str("file"),
            BackingOption::Tmpfs => f.write_str("tmpfs"),
            BackingOption::At(path) => write!(f, "{}", path.display()),
            BackingOption::Rbd(image) => image.fmt(f),
            BackingOption::Nbd(socket) => write!(f, "nbd:{}", socket.display()),
        }
    }
}

/// Whether it is one; if not, it is a file.
fn is_block_device(path: &Path) -> Result<bool> {
    let shown = path.display();
    let metadata = std::fs::metadata(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => Error::Unsuitable(format!(
            "there is no file or block device {shown}: name one that is there, or null, file or tmpfs"
        )),
        _ => Error::io(format!("look at {shown}"))(error),
    })?;
    let kind = metadata.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(Error::Unsuitable(format!(
            "{shown} is neither a file nor a block device: for a temporary file in a folder, say \
             --folder"
        )));
    }
    Ok(kind.is_block_device())
}

/// A folder of our own for images: in `given`, else beside this program, which is a real file
/// system where the one for temporary files may be memory.
fn image_folder(given: Option<&Path>) -> Result<tempfile::TempDir> {
    let beside_us = std::env::current_exe().ok();
    let parent = given
        .or_else(|| beside_us.as_deref().and_then(Path::parent))
        .unwrap_or(Path::new("."));
    tempfile::Builder::new()
        .prefix("bench-images-")
        .tempdir_in(parent)
        .map_err(Error::io(format!(
            "create a folder in {} (choose another with --folder)",
            parent.display()
        )))
}

/// Refuses a file that would fill its disk or, on a tmpfs, the host's memory: others need these too.
///
/// # Errors
/// [`Error::Unsuitable`]; [`Error::Io`] when the kernel does not say how much there is.
pub fn check_room(folder: &Path, bytes: u64, in_memory: bool) -> Result<()> {
    let stat = statvfs(folder).map_err(Error::io("ask how much room there is"))?;
    let mut left = stat.f_bavail.saturating_mul(stat.f_frsize);
    if in_memory {
        // proc(5). A tmpfs may be as large as all of the memory.
        let meminfo = std::fs::read_to_string("/proc/meminfo");
        let meminfo = meminfo.map_err(Error::io("read /proc/meminfo"))?;
        let available = meminfo.lines().find_map(|line| {
            let kib = line.strip_prefix("MemAvailable:")?.trim();
            kib.strip_suffix(" kB")?.parse::<u64>().ok()
        });
        left = left.min(available.unwrap_or(0).saturating_mul(1024));
    }
    if bytes > left {
        return Err(Error::Unsuitable(format!(
            "a file of {} MiB does not fit where {} MiB are left ({}): ask for a smaller one, or choose \
             another --folder",
            bytes >> 20,
            left >> 20,
            folder.display()
        )));
    }
    Ok(())
}

/// Makes a file of random data: not of zeroes, and on the disk, since a hole would be read without
/// it. Ctrl-C ends it: a slow disk takes minutes.
fn write_file(path: &Path, bytes: u64) -> Result<()> {
    const BLOCK_BYTES: u64 = 1 << 20;
    /// What the disk is behind by at most: nothing ends a wait for it.
    const SYNC_BYTES: u64 = 16 << 20;
    let mut random = Random::new(bytes);
    let block: Vec<u8> = (0..BLOCK_BYTES / 8)
        .flat_map(|_| random.below(u64::MAX).to_ne_bytes())
        .collect();
    let failed = |error: io::Error| {
        Error::io(format!(
            "write {bytes} bytes to {} (ask for less, or choose another place)",
            path.display()
        ))(error)
    };
    let mut file = File::create(path).map_err(failed)?;
    let mut written = 0;
    while written < bytes {
        if signals::termination_requested() {
            return Err(Error::Interrupted);
        }
        let now = (bytes - written).min(BLOCK_BYTES);
        let len = usize::try_from(now).unwrap_or(block.len());
        file.write_all(&block[..len]).map_err(failed)?;
        written += now;
        if written.is_multiple_of(SYNC_BYTES) {
            file.sync_data().map_err(failed)?;
        }
    }
    file.sync_all().map_err(failed)
}
