//! The file that keeps a unit's persistent reservations (`pr-file`).
//!
//! A change is written beside it, made stable, and renamed over it: whenever the program or the host ends, the file is whole.
//! It is locked while it is in use, so that no two units keep theirs in it. The lock is on what the name leads to,
//! and moves on with each change: who gets one looks whether the name still leads there.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use iothread::Errno;
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, RenameFlags};
use scsi::{Keeper, NO_RESERVATIONS, SavedError, Unit};

/// Far more than any unit's reservations have.
const MAX_BYTES: u64 = 1 << 20;

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PrFileError {
    /// The kernel says no.
    #[error(
        "pr-file: cannot use {path}: {error}; its folder must exist, and both must be writable"
    )]
    Io { path: PathBuf, error: io::Error },
    /// A pipe, a device.
    #[error("pr-file: {0} is no regular file; choose another path")]
    Kind(PathBuf),
    /// It was not written here.
    #[error("pr-file: {path} has {bytes} bytes, which no reservations have; choose another path")]
    TooLarge { path: PathBuf, bytes: u64 },
    /// Another unit uses it.
    #[error(
        "pr-file: {0} is in use by another disk, or another process; give each disk a file of its own"
    )]
    Locked(PathBuf),
    /// What it says is no reservations.
    #[error("pr-file: {path}: {error}")]
    Saved { path: PathBuf, error: SavedError },
}

/// A file of ours.
#[derive(Debug)]
pub(crate) struct PrFile {
    path: PathBuf,
    /// `None` as long as another process has it.
    inner: Mutex<Option<Inner>>,
}

#[derive(Debug)]
struct Inner {
    opened: OpenedPrFile,
    /// Where a change is written.
    beside: OsString,
    /// The last change could not be saved, which was said.
    failing: bool,
}

/// What a file is found by.
#[derive(Debug)]
pub(crate) struct OpenedPrFile {
    pub folder: OwnedFd,
    pub name: OsString,
    /// What the name leads to, locked.
    pub file: OwnedFd,
}

impl Inner {
    fn new(opened: OpenedPrFile) -> Self {
        let mut beside = opened.name.clone();
        beside.push(".new");
        Inner {
            opened,
            beside,
            failing: false,
        }
    }

    fn replace(&mut self, text: &str) -> Result<(), Errno> {
        let OpenedPrFile { folder, name, file } = &mut self.opened;
        let new = write(folder, &self.beside, text)?;
        if let Err(error) = rustix::fs::renameat(&*folder, &self.beside, &*folder, &*name) {
            let _ = rustix::fs::unlinkat(&*folder, &self.beside, AtFlags::empty());
            return Err(error);
        }
        *file = new.into();
        // Whoever restarts after an error here finds the one or the other.
        rustix::fs::fsync(folder)
    }
}

impl PrFile {
    /// Opens it, or makes it. The text is what it keeps.
    pub(crate) fn open(path: &Path) -> Result<(Self, String), PrFileError> {
        let failed = |error: io::Error| PrFileError::Io {
            path: path.to_owned(),
            error,
        };
        let (folder, name) = place(path).map_err(failed)?;
        let mut beside = name.clone();
        beside.push(".new");
        loop {
            let found = match open(&folder, &name, path) {
                Err(PrFileError::Io { error, .. }) if error.kind() == io::ErrorKind::NotFound => {
                    let made = write(&folder, &beside, NO_RESERVATIONS);
                    let made = made.and_then(|file| {
                        first(&folder, &beside, &name)?;
                        rustix::fs::fsync(&folder)?;
                        Ok((file, NO_RESERVATIONS.to_owned()))
                    });
                    match made {
                        // Somebody else was faster.
                        Err(Errno::EXIST) => continue,
                        made => Some(made.map_err(|error| failed(error.into()))?),
                    }
                }
                found => found?,
            };
            if let Some((file, text)) = found {
                let file = file.into();
                let opened = OpenedPrFile { folder, name, file };
                let this = PrFile {
                    path: path.to_owned(),
                    inner: Mutex::new(Some(Inner::new(opened))),
                };
                return Ok((this, text));
            }
        }
    }

    /// A unit begins with what the file keeps.
    pub(crate) fn restore(path: &Path, text: &str, unit: &Unit) -> Result<(), PrFileError> {
        let restored = unit.restore_reservations(text);
        restored.map_err(|error| PrFileError::Saved {
            path: path.to_owned(),
            error,
        })
    }

    /// One that another process has, and hands over: nothing is kept before.
    pub fn awaited(path: &Path) -> Self {
        PrFile {
            path: path.to_owned(),
            inner: Mutex::default(),
        }
    }

    /// For the process that goes on with it: the lock goes along.
    ///
    /// # Errors
    /// Too many files are open.
    pub fn hand_over(&self) -> io::Result<Option<OpenedPrFile>> {
        let inner = self.inner();
        let Some(Inner { opened, .. }) = &*inner else {
            return Ok(None);
        };
        Ok(Some(OpenedPrFile {
            folder: opened.folder.try_clone()?,
            name: opened.name.clone(),
            file: opened.file.try_clone()?,
        }))
    }

    /// It is ours from now on.
    pub fn take_over(&self, opened: OpenedPrFile) {
        *self.inner() = Some(Inner::new(opened));
    }

    fn inner(&self) -> MutexGuard<'_, Option<Inner>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Keeper for PrFile {
    fn keep(&self, text: &str) -> Result<(), Errno> {
        let mut inner = self.inner();
        let inner = inner.as_mut().ok_or(Errno::BADF)?;
        let replaced = inner.replace(text);
        match &replaced {
            Ok(()) if inner.failing => {
                tracing::info!(file = %self.path.display(), "reservations are saved again");
            }
            Err(error) if !inner.failing => tracing::warn!(
                file = %self.path.display(),
                %error,
                advice = "free space on its file system, or look for errors of its disk (dmesg)",
                "reservations cannot be saved: the guest is refused what would change them"
            ),
            _ => {}
        }
        inner.failing = replaced.is_err();
        replaced
    }
}

/// The folder, and the name in it, behind symbolic links: a name is replaced, not what it leads to.
fn place(path: &Path) -> io::Result<(OwnedFd, OsString)> {
    let path = match path.canonicalize() {
        Ok(path) => path,
        Err(_) => path.to_owned(),
    };
    let name = path.file_name().ok_or(Errno::ISDIR)?.to_owned();
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(folder, flags, Mode::empty())?;
    Ok((folder, name))
}

/// Opens, locks and reads what is there. `None`: it was replaced meanwhile.
fn open(
    folder: &OwnedFd,
    name: &OsStr,
    path: &Path,
) -> Result<Option<(File, String)>, PrFileError> {
    let failed = |error: io::Error| PrFileError::Io {
        path: path.to_owned(),
        error,
    };
    // Whatever it is, opening it does not wait.
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(folder, name, flags, Mode::empty());
    let file = file.map_err(|error| failed(error.into()))?;
    let stat = rustix::fs::fstat(&file).map_err(|error| failed(error.into()))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(PrFileError::Kind(path.to_owned()));
    }
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Err(PrFileError::Locked(path.to_owned())),
        Err(error) => return Err(failed(error.into())),
    }
    match rustix::fs::statat(folder, name, AtFlags::empty()) {
        Ok(now) if (now.st_dev, now.st_ino) == (stat.st_dev, stat.st_ino) => {}
        Ok(_) | Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(failed(error.into())),
    }
    let bytes = stat.st_size.unsigned_abs();
    if bytes > MAX_BYTES {
        let path = path.to_owned();
        return Err(PrFileError::TooLarge { path, bytes });
    }
    let mut file = File::from(file);
    let mut text = Vec::new();
    let read = (&mut file).take(MAX_BYTES).read_to_end(&mut text);
    read.map_err(failed)?;
    // What is not text is found where lines are read.
    let text = String::from_utf8_lossy(&text).into_owned();
    Ok(Some((file, text)))
}

/// A new file of this name that is stable, and locked.
fn write(folder: &OwnedFd, name: &OsStr, text: &str) -> Result<File, Errno> {
    // What an end in the midst of a change has left.
    match rustix::fs::unlinkat(folder, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(error),
    }
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(folder, name, flags, Mode::from_raw_mode(0o640))?;
    let mut file = File::from(file);
    let written = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)
        .and_then(|()| {
            file.write_all(text.as_bytes())
                .map_err(|error| errno(&error))
        })
        .and_then(|()| rustix::fs::fsync(&file));
    if let Err(error) = written {
        let _ = rustix::fs::unlinkat(folder, name, AtFlags::empty());
        return Err(error);
    }
    Ok(file)
}

/// Gives a new file its name, if nothing has it.
fn first(folder: &OwnedFd, beside: &OsStr, name: &OsStr) -> Result<(), Errno> {
    match rustix::fs::renameat_with(folder, beside, folder, name, RenameFlags::NOREPLACE) {
        // Not every file system can look at the same time.
        Err(Errno::INVAL) => rustix::fs::renameat(folder, beside, folder, name),
        renamed => renamed,
    }
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
