//! Storage behind a disk that is measured: an existing file, device, image or server, or a temporary file.

use std::fmt;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use commands::signals;
use rustix::fs::statvfs;

use crate::error::{Error, Result};
use crate::load::Random;

/// Where Linux mounts a file system in memory (`shm_overview(7)`).
const TMPFS: &str = "/dev/shm";

/// The value of `--backing`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backing {
    /// `null`: completes at once and stores nothing.
    Null,
    /// `file`: one of our own on a disk.
    File,
    /// `tmpfs`: one of our own in memory, a disk without latency.
    Tmpfs,
    /// A file or block device that is there already.
    At(PathBuf),
    /// `rbd:POOL/IMAGE[:conf=FILE][:id=USER]`: an image of Ceph RBD that is there already, by pool, image, and other options of the
    /// driver. librbd's cache is off.
    Rbd(String, String, String),
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
    /// The driver and its options, as qemu-storage-daemon has them too.
    pub options: String,
    /// Of a file or block device, which is used past the host's page cache.
    pub path: Option<PathBuf>,
    _folder: Option<tempfile::TempDir>,
}

impl Backing {
    /// Whether it holds data that the program did not create.
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        matches!(self, Backing::At(_) | Backing::Rbd(..) | Backing::Nbd(_))
    }

    /// Makes the storage of the disk with this number, counted from 0, or finds it. Images of Ceph RBD are `IMAGE`, `IMAGE-2` and so
    /// on.
    ///
    /// # Errors
    /// [`Error::Unsuitable`] when it is not there, or no disk; [`Error::Io`] when there is no room for it;
    /// [`Error::Interrupted`].
    pub fn storage(&self, index: u16, room: NewFile<'_>) -> Result<Storage> {
        let mut folder = None;
        let (mut path, mut driver) = (None, "file");
        let options = match self {
            Backing::Null => "null-co,size=1073741824".to_owned(),
            Backing::Nbd(socket) => format!("nbd,server.type=unix,server.path={}", literal(socket)),
            Backing::Rbd(pool, image, more) => {
                let number = match index {
                    0 => String::new(),
                    _ => format!("-{}", u32::from(index) + 1),
                };
                format!("rbd,pool={pool},image={image}{number}{more},cache.direct=on")
            }
            Backing::At(there) => {
                if is_block_device(there)? {
                    driver = "host_device";
                }
                on_host(driver, path.insert(there.clone()))
            }
            Backing::File | Backing::Tmpfs => {
                let in_memory = *self == Backing::Tmpfs;
                let parent = if in_memory {
                    Some(Path::new(TMPFS))
                } else {
                    room.folder
                };
                let made = folder.insert(image_folder(parent)?);
                check_room(made.path(), room.bytes, in_memory)?;
                let path = path.insert(made.path().join("disk.img"));
                write_file(path, room.bytes)?;
                on_host(driver, path)
            }
        };
        Ok(Storage {
            options,
            path,
            _folder: folder,
        })
    }
}

fn on_host(driver: &str, path: &Path) -> String {
    format!("{driver},filename={},cache.direct=on", literal(path))
}

/// In key=value options a comma is written twice.
pub(crate) fn literal(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

impl FromStr for Backing {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        if let Some(image) = text.strip_prefix("rbd:") {
            return rbd(image).ok_or_else(|| {
                "rbd:POOL/IMAGE[:conf=FILE][:id=USER] is expected, the user without `client.`"
                    .to_owned()
            });
        }
        if let Some(socket) = text.strip_prefix("nbd:") {
            return Ok(Backing::Nbd(socket.into()));
        }
        Ok(match text {
            "null" => Backing::Null,
            "file" => Backing::File,
            "tmpfs" => Backing::Tmpfs,
            path => Backing::At(path.into()),
        })
    }
}

/// `POOL/IMAGE[:conf=FILE][:id=USER]`
fn rbd(text: &str) -> Option<Backing> {
    let mut parts = text.split(':');
    let (pool, image) = parts.next()?.split_once('/')?;
    let mut more = String::new();
    for part in parts {
        let (key, value) = part
            .split_once('=')
            .filter(|(_, value)| !value.is_empty())?;
        let key = match key {
            "conf" => "conf",
            "id" => "user",
            _ => return None,
        };
        more.push_str(&format!(",{key}={}", literal(Path::new(value))));
    }
    let is_good = !pool.is_empty() && !image.is_empty() && !image.contains('/');
    is_good.then(|| Backing::Rbd(pool.to_owned(), image.to_owned(), more))
}

impl fmt::Display for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Backing::Null => f.write_str("null"),
            Backing::File => f.write_str("file"),
            Backing::Tmpfs => f.write_str("tmpfs"),
            Backing::At(path) => write!(f, "{}", path.display()),
            // Without the cluster.
            Backing::Rbd(pool, image, _) => write!(f, "rbd:{pool}/{image}"),
            Backing::Nbd(socket) => write!(f, "nbd:{}", socket.display()),
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
            "{shown} is neither a file nor a block device: for a temporary file in a folder, say --folder"
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
fn check_room(folder: &Path, bytes: u64, in_memory: bool) -> Result<()> {
    let stat = statvfs(folder).map_err(Error::io("ask how much room there is"))?;
    let mut left = stat.f_bavail.saturating_mul(stat.f_frsize);
    if in_memory {
        // proc(5). A tmpfs may be as large as all of the memory.
        let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let available = meminfo.lines().find_map(|line| {
            let kib = line.strip_prefix("MemAvailable:")?.trim();
            kib.strip_suffix(" kB")?.parse::<u64>().ok()
        });
        left = left.min(available.unwrap_or(0).saturating_mul(1024));
    }
    if bytes > left {
        return Err(Error::Unsuitable(format!(
            "a file of {} MiB does not fit where {} MiB are left ({}): ask for a smaller one, or choose another --folder",
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
    let mut random = Random::new(bytes);
    let block: Vec<u8> = (0..BLOCK_BYTES / 8)
        .flat_map(|_| random.below(u64::MAX).to_ne_bytes())
        .collect();
    let failed = |error: std::io::Error| {
        Error::io(format!("write {bytes} bytes to {}", path.display()))(error)
    };
    let mut file = File::create(path).map_err(failed)?;
    let mut left = bytes;
    while left > 0 {
        if signals::termination_requested() {
            return Err(Error::Interrupted);
        }
        let len = usize::try_from(left.min(BLOCK_BYTES)).unwrap_or(block.len());
        file.write_all(&block[..len]).map_err(failed)?;
        left -= len as u64;
        // Nothing ends a wait for a disk that is far behind.
        if left.is_multiple_of(16 * BLOCK_BYTES) {
            file.sync_data().map_err(failed)?;
        }
    }
    file.sync_all().map_err(failed)
}
