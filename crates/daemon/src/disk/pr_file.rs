//! The file that stores a unit's persistent reservations (`pr-file`).
//!
//! A change is written to a temporary file, synced, and renamed over it, so that the file is complete at any crash. It is locked while
//! it is in use, so that no two units share it. The lock is on the inode, which each change replaces: after locking, the inode of the
//! name is checked again.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use iothread::Errno;
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, RenameFlags};
use scsi::{NO_RESERVATIONS, ReservationStore, ReservationTextError, Unit};

/// Upper limit of the size, far more than the reservations of any unit take.
const MAX_BYTES: u64 = 1 << 20;

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PrFileError {
    /// A system call failed.
    #[error(
        "pr-file: cannot use {path}: {error}; its folder must exist, and both must be writable"
    )]
    Io { path: PathBuf, error: io::Error },
    /// It is a pipe, a device or another special file.
    #[error("pr-file: {0} is not a regular file; choose another path")]
    NotRegular(PathBuf),
    /// It is too large to have been written by this program.
    #[error("pr-file: {path} has {bytes} bytes, too many for reservations; choose another path")]
    TooLarge { path: PathBuf, bytes: u64 },
    /// Another unit uses it.
    #[error(
        "pr-file: {0} is in use by another disk, or another process; give each disk a file of its own"
    )]
    Locked(PathBuf),
    /// Its content does not describe reservations.
    #[error("pr-file: {path}: {error}")]
    InvalidText {
        path: PathBuf,
        error: ReservationTextError,
    },
}

/// A file of persistent reservations.
#[derive(Debug)]
pub(crate) struct PrFile {
    path: PathBuf,
    /// `None` while the file belongs to the old process of a live upgrade.
    locked: Mutex<Option<LockedPrFile>>,
}

/// A file that this process may replace, since it holds the lock.
#[derive(Debug)]
struct LockedPrFile {
    opened: PrFileAndFolder,
    /// Name of the temporary file.
    temporary_name: OsString,
    /// The last change could not be saved, and that was logged.
    is_failing: bool,
}

/// An opened and locked file, its folder, and its name in it.
#[derive(Debug)]
pub(crate) struct PrFileAndFolder {
    pub folder: OwnedFd,
    pub name: OsString,
    /// The locked file.
    pub file: OwnedFd,
}

impl LockedPrFile {
    /// Of a file that is opened and locked.
    fn new(opened: PrFileAndFolder) -> Self {
        let mut temporary_name = opened.name.clone();
        temporary_name.push(".new");
        LockedPrFile {
            opened,
            temporary_name,
            is_failing: false,
        }
    }

    /// Replaces the file by a new one with this text, which is complete at any crash.
    fn replace_with_text(&mut self, text: &str) -> Result<(), Errno> {
        let PrFileAndFolder { folder, name, file } = &mut self.opened;
        // Left behind by a crash during a change.
        match rustix::fs::unlinkat(&*folder, &self.temporary_name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
        let new_file = create_locked_with_text(folder, &self.temporary_name, text)?;
        if let Err(error) = rustix::fs::renameat(&*folder, &self.temporary_name, &*folder, &*name) {
            let _ = rustix::fs::unlinkat(&*folder, &self.temporary_name, AtFlags::empty());
            return Err(error);
        }
        *file = new_file.into();
        // If this fails, a crash leaves the old or the new file.
        rustix::fs::fsync(folder)
    }
}

impl PrFile {
    /// Opens the file, or creates it. Returns its text as well.
    pub(crate) fn open_or_create_and_read(path: &Path) -> Result<(Self, String), PrFileError> {
        let io_failed = |error: io::Error| PrFileError::Io {
            path: path.to_owned(),
            error,
        };
        let (folder, name) = resolve_to_folder_and_name(path).map_err(io_failed)?;
        loop {
            let opened = match try_open_lock_and_read(&folder, &name, path) {
                Err(PrFileError::Io { error, .. }) if error.kind() == io::ErrorKind::NotFound => {
                    match create_locked(&folder, &name) {
                        // Another process has created it in the meantime.
                        Err(Errno::EXIST) => continue,
                        created => Some(created.map_err(|error| io_failed(error.into()))?),
                    }
                }
                opened => opened?,
            };
            if let Some((file, text)) = opened {
                let file = file.into();
                let opened = PrFileAndFolder { folder, name, file };
                let pr_file = PrFile {
                    path: path.to_owned(),
                    locked: Mutex::new(Some(LockedPrFile::new(opened))),
                };
                return Ok((pr_file, text));
            }
        }
    }

    /// Restores the reservations of a unit from the text of the file.
    pub(crate) fn restore_reservations_from_text(
        path: &Path,
        text: &str,
        unit: &Unit,
    ) -> Result<(), PrFileError> {
        let result = unit.restore_reservations(text);
        result.map_err(|error| PrFileError::InvalidText {
            path: path.to_owned(),
            error,
        })
    }

    /// A file that the old process of a live upgrade will hand over. Until then nothing can be saved.
    pub fn new_awaiting_handover(path: &Path) -> Self {
        PrFile {
            path: path.to_owned(),
            locked: Mutex::default(),
        }
    }

    /// Descriptors for the new process of a live upgrade, which share the lock.
    ///
    /// # Errors
    /// Too many files are open.
    pub fn duplicate_descriptors(&self) -> io::Result<Option<PrFileAndFolder>> {
        let locked = self.lock_mutex();
        let Some(LockedPrFile { opened, .. }) = &*locked else {
            return Ok(None);
        };
        Ok(Some(PrFileAndFolder {
            folder: opened.folder.try_clone()?,
            name: opened.name.clone(),
            file: opened.file.try_clone()?,
        }))
    }

    /// Takes over the file from the old process of a live upgrade.
    pub fn take_over(&self, opened: PrFileAndFolder) {
        *self.lock_mutex() = Some(LockedPrFile::new(opened));
    }

    /// Locks the mutex of the file's state, which is `None` before the handover of a live upgrade.
    fn lock_mutex(&self) -> MutexGuard<'_, Option<LockedPrFile>> {
        self.locked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReservationStore for PrFile {
    /// Replaces the file, and logs when that begins to fail or succeeds again. EBADF before the handover of a live upgrade.
    fn save(&self, text: &str) -> Result<(), Errno> {
        let mut locked = self.lock_mutex();
        let locked = locked.as_mut().ok_or(Errno::BADF)?;
        let result = locked.replace_with_text(text);
        match &result {
            Ok(()) if locked.is_failing => {
                tracing::info!(file = %self.path.display(), "reservations can be saved again");
            }
            Err(error) if !locked.is_failing => tracing::warn!(
                file = %self.path.display(),
                %error,
                advice = "free space on its file system, or look for errors of its disk (dmesg)",
                "cannot save reservations: commands of the guest that change them fail"
            ),
            _ => {}
        }
        locked.is_failing = result.is_err();
        result
    }
}

/// The folder and the name of a file after resolving symbolic links, since renaming would replace the link and not its target.
fn resolve_to_folder_and_name(path: &Path) -> io::Result<(OwnedFd, OsString)> {
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

/// Opens, locks and reads an existing file. `None` if it was replaced meanwhile.
fn try_open_lock_and_read(
    folder: &OwnedFd,
    name: &OsStr,
    path: &Path,
) -> Result<Option<(File, String)>, PrFileError> {
    let io_failed = |error: io::Error| PrFileError::Io {
        path: path.to_owned(),
        error,
    };
    // NONBLOCK: opening a pipe or a device does not block.
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(folder, name, flags, Mode::empty());
    let file = file.map_err(|error| io_failed(error.into()))?;
    let stat = rustix::fs::fstat(&file).map_err(|error| io_failed(error.into()))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(PrFileError::NotRegular(path.to_owned()));
    }
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Err(PrFileError::Locked(path.to_owned())),
        Err(error) => return Err(io_failed(error.into())),
    }
    match rustix::fs::statat(folder, name, AtFlags::empty()) {
        Ok(named) if (named.st_dev, named.st_ino) == (stat.st_dev, stat.st_ino) => {}
        Ok(_) | Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(io_failed(error.into())),
    }
    let bytes = stat.st_size.unsigned_abs();
    if bytes > MAX_BYTES {
        let path = path.to_owned();
        return Err(PrFileError::TooLarge { path, bytes });
    }
    let mut file = File::from(file);
    let mut text = Vec::new();
    let result = (&mut file).take(MAX_BYTES).read_to_end(&mut text);
    result.map_err(io_failed)?;
    // The parser of the reservations refuses invalid text.
    let text = String::from_utf8_lossy(&text).into_owned();
    Ok(Some((file, text)))
}

/// Creates a locked file without reservations, and returns it with its text. EEXIST: another process has created one.
///
/// The temporary file has a name that nothing else uses: of several processes that create the file at once, none must remove or
/// rename the temporary file of another one, or of the owner of the file that has been created meanwhile.
fn create_locked(folder: &OwnedFd, name: &OsStr) -> Result<(File, String), Errno> {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let (pid, ns) = (
        std::process::id(),
        since_1970.unwrap_or_default().as_nanos(),
    );
    let mut temporary_name = name.to_owned();
    temporary_name.push(format!(".{pid}-{ns}.new"));
    let file = create_locked_with_text(folder, &temporary_name, NO_RESERVATIONS)?;
    if let Err(error) = rename_if_absent_where_supported(folder, &temporary_name, name) {
        let _ = rustix::fs::unlinkat(folder, &temporary_name, AtFlags::empty());
        return Err(error);
    }
    rustix::fs::fsync(folder)?;
    Ok((file, NO_RESERVATIONS.to_owned()))
}

/// Creates a locked file of this name with this text, and syncs it, but not its folder.
fn create_locked_with_text(folder: &OwnedFd, name: &OsStr, text: &str) -> Result<File, Errno> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(folder, name, flags, Mode::from_raw_mode(0o640))?;
    let mut file = File::from(file);
    let written = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)
        .and_then(|()| {
            file.write_all(text.as_bytes())
                .map_err(|error| errno_or_eio(&error))
        })
        .and_then(|()| rustix::fs::fsync(&file));
    if let Err(error) = written {
        let _ = rustix::fs::unlinkat(folder, name, AtFlags::empty());
        return Err(error);
    }
    Ok(file)
}

/// Renames a new file, unless the name exists.
fn rename_if_absent_where_supported(
    folder: &OwnedFd,
    temporary_name: &OsStr,
    name: &OsStr,
) -> Result<(), Errno> {
    match rustix::fs::renameat_with(folder, temporary_name, folder, name, RenameFlags::NOREPLACE) {
        // Some file systems cannot check and rename in one step.
        Err(Errno::INVAL) => rustix::fs::renameat(folder, temporary_name, folder, name),
        renamed => renamed,
    }
}

/// The errno of an error, or EIO if it has none.
fn errno_or_eio(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test that cannot go on fails where it is
mod tests {
    use super::*;
    use std::sync::Barrier;

    /// Units that create the file at a time, as often as `ROUNDS`. The locks of a process exclude each other like those of
    /// several.
    const UNITS: usize = 4;
    const ROUNDS: usize = 200;

    #[test]
    fn one_of_many_that_create_a_file_at_once_has_it_locked() {
        for round in 0..ROUNDS {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("pr");
            let barrier = Barrier::new(UNITS);
            let open = || {
                barrier.wait();
                PrFile::open_or_create_and_read(&path)
            };
            let opened: Vec<_> = std::thread::scope(|scope| {
                let units: Vec<_> = (0..UNITS).map(|_| scope.spawn(open)).collect();
                units.into_iter().map(|unit| unit.join().unwrap()).collect()
            });
            let (owners, refused): (Vec<_>, Vec<_>) = opened.into_iter().partition(Result::is_ok);
            assert_eq!(owners.len(), 1, "round {round}: {refused:?}");
            for other in refused {
                let other = other.map(|_| ()).unwrap_err();
                assert!(
                    matches!(other, PrFileError::Locked(_)),
                    "round {round}: {other}"
                );
            }
            let late = PrFile::open_or_create_and_read(&path)
                .map(|_| ())
                .unwrap_err();
            assert!(
                matches!(late, PrFileError::Locked(_)),
                "round {round}: {late}"
            );
            drop(owners);
            let (_file, text) = PrFile::open_or_create_and_read(&path).unwrap();
            assert_eq!(text, NO_RESERVATIONS);
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        }
    }
}
