//! A small file that is replaced as a whole, so that it is complete at any crash: for persistent reservations (`pr-file`) and persistent
//! dirty bitmaps (`bitmap-file`).
//!
//! A change is written to a temporary file, synced, and renamed over it. The temporary file has a name that nothing else has: a
//! crash may leave it behind, and nothing removes it. The file is locked while it is in use, so that no two disks share it.
//! The lock is on the inode, which each change replaces: after locking, the inode of the name is checked again.
//! It has image locks as well, so that no node is opened on it.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use block::lock_out_images;
use iothread::Errno;
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, RenameFlags};

/// What a file is for.
#[derive(Debug)]
pub(crate) struct FilePurpose {
    /// The option that names it.
    pub option: &'static str,
    /// What it contains.
    pub content: &'static str,
    /// Upper limit of the size, far more than it needs.
    pub max_bytes: u64,
    /// The content of a new file.
    pub empty: &'static [u8],
}

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReplacedFileError {
    /// A system call failed.
    #[error(
        "{option}: cannot use {path}: {error}; its folder must exist, and both must be writable"
    )]
    Io {
        option: &'static str,
        path: PathBuf,
        error: io::Error,
    },
    /// It is a pipe, a device or another special file.
    #[error("{option}: {path} is not a regular file; choose another path")]
    NotRegular { option: &'static str, path: PathBuf },
    /// It is too large to have been written by this program.
    #[error("{}: {path} has {bytes} bytes, too many for {}; choose another path", purpose.option, purpose.content)]
    TooLarge {
        purpose: &'static FilePurpose,
        path: PathBuf,
        bytes: u64,
    },
    /// Other programs replace, create or remove it all the time.
    #[error(
        "{option}: {path} changes again and again while it is opened; find out which program replaces it"
    )]
    KeepsChanging { option: &'static str, path: PathBuf },
    /// Another disk uses it.
    #[error(
        "{option}: {path} is in use by another disk, or another process; give each disk a file of its own"
    )]
    Locked { option: &'static str, path: PathBuf },
}

/// Attempts to open a file that was replaced, created or removed meanwhile, as its owner does with each change.
const MAX_ATTEMPTS: u32 = 1000;

/// A file that this process may replace, since it holds the lock.
#[derive(Debug)]
pub(crate) struct ReplacedFile(FileInFolder);

/// An opened and locked file, its folder, and its name in it.
#[derive(Debug)]
pub(crate) struct FileInFolder {
    pub folder: OwnedFd,
    pub name: OsString,
    /// The locked file.
    pub file: OwnedFd,
}

impl ReplacedFile {
    /// Of a file that is opened and locked.
    pub fn new(opened: FileInFolder) -> Self {
        ReplacedFile(opened)
    }

    /// Opens and locks the file, or creates it. Returns its content as well.
    pub fn open_or_create_and_read(
        path: &Path,
        purpose: &'static FilePurpose,
    ) -> Result<(Self, Vec<u8>), ReplacedFileError> {
        let io_failed = |error: io::Error| ReplacedFileError::Io {
            option: purpose.option,
            path: path.to_owned(),
            error,
        };
        let (folder, name) = resolve_to_folder_and_name(path).map_err(io_failed)?;
        for _ in 0..MAX_ATTEMPTS {
            let opened = match try_open_lock_and_read(&folder, &name, path, purpose) {
                Err(ReplacedFileError::Io { error, .. })
                    if error.kind() == io::ErrorKind::NotFound =>
                {
                    match create_locked(&folder, &name, purpose.empty) {
                        // Another process has created it in the meantime.
                        Err(Errno::EXIST) => continue,
                        created => Some(created.map_err(|error| io_failed(error.into()))?),
                    }
                }
                opened => opened?,
            };
            if let Some((file, content)) = opened {
                let file = file.into();
                let file = ReplacedFile::new(FileInFolder { folder, name, file });
                return Ok((file, content));
            }
        }
        Err(ReplacedFileError::KeepsChanging {
            option: purpose.option,
            path: path.to_owned(),
        })
    }

    /// Replaces the file by a new one with this content, which is complete at any crash.
    pub fn replace(&mut self, content: &[u8]) -> Result<(), Errno> {
        let FileInFolder { folder, name, file } = &mut self.0;
        let temporary_name = unique_temporary_name(name);
        let new_file = create_locked_with_content(folder, &temporary_name, content)?;
        if let Err(error) = rustix::fs::renameat(&*folder, &temporary_name, &*folder, &*name) {
            let _ = rustix::fs::unlinkat(&*folder, &temporary_name, AtFlags::empty());
            return Err(error);
        }
        *file = new_file.into();
        // If this fails, a crash leaves the old or the new file.
        rustix::fs::fsync(folder)
    }

    /// Descriptors for the new process of a live upgrade, which share the lock.
    ///
    /// # Errors
    /// Too many files are open.
    pub fn duplicate_descriptors(&self) -> io::Result<FileInFolder> {
        Ok(FileInFolder {
            folder: self.0.folder.try_clone()?,
            name: self.0.name.clone(),
            file: self.0.file.try_clone()?,
        })
    }
}

/// The folder and the name of a file after resolving symbolic links, since renaming would replace the link and not its target.
fn resolve_to_folder_and_name(path: &Path) -> io::Result<(OwnedFd, OsString)> {
    let path = match path.canonicalize() {
        Ok(path) => path,
        Err(error) if path.is_symlink() => {
            return Err(io::Error::new(
                error.kind(),
                format!("{error}: it is a symbolic link to a file that does not exist"),
            ));
        }
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
    purpose: &'static FilePurpose,
) -> Result<Option<(File, Vec<u8>)>, ReplacedFileError> {
    let (option, path) = (purpose.option, path.to_owned());
    let io_failed = |error: io::Error| ReplacedFileError::Io {
        option,
        path: path.clone(),
        error,
    };
    // NONBLOCK: opening a pipe or a device does not block. NOFOLLOW: links were resolved before.
    let flags =
        OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(folder, name, flags, Mode::empty());
    let file = file.map_err(|error| io_failed(error.into()))?;
    let stat = rustix::fs::fstat(&file).map_err(|error| io_failed(error.into()))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(ReplacedFileError::NotRegular { option, path });
    }
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Err(ReplacedFileError::Locked { option, path }),
        Err(error) => return Err(io_failed(error.into())),
    }
    if !lock_out_images(file.as_fd()).map_err(io_failed)? {
        return Err(ReplacedFileError::Locked { option, path });
    }
    match rustix::fs::statat(folder, name, AtFlags::empty()) {
        Ok(named) if (named.st_dev, named.st_ino) == (stat.st_dev, stat.st_ino) => {}
        Ok(_) | Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(io_failed(error.into())),
    }
    let bytes = stat.st_size.unsigned_abs();
    if bytes > purpose.max_bytes {
        return Err(ReplacedFileError::TooLarge {
            purpose,
            path,
            bytes,
        });
    }
    let mut file = File::from(file);
    let mut content = Vec::new();
    let result = (&mut file)
        .take(purpose.max_bytes)
        .read_to_end(&mut content);
    result.map_err(io_failed)?;
    Ok(Some((file, content)))
}

/// Creates a locked file with the content of a new one, and returns both. EEXIST: another process has created one.
///
/// Of several processes that create the file at once, none removes or renames the temporary file of another one, or of the owner of
/// the file that has been created meanwhile.
fn create_locked(folder: &OwnedFd, name: &OsStr, empty: &[u8]) -> Result<(File, Vec<u8>), Errno> {
    let temporary_name = unique_temporary_name(name);
    let file = create_locked_with_content(folder, &temporary_name, empty)?;
    if let Err(error) = rename_if_absent_where_supported(folder, &temporary_name, name) {
        let _ = rustix::fs::unlinkat(folder, &temporary_name, AtFlags::empty());
        return Err(error);
    }
    rustix::fs::fsync(folder)?;
    Ok((file, empty.to_vec()))
}

/// A name for a temporary file that nothing else has, also not in another container that shares the folder.
fn unique_temporary_name(name: &OsStr) -> OsString {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let (pid, ns) = (
        std::process::id(),
        since_1970.unwrap_or_default().as_nanos(),
    );
    let mut temporary_name = name.to_owned();
    temporary_name.push(format!(".{pid}-{ns}.new"));
    temporary_name
}

/// Creates a locked file of this name with this content, and syncs it, but not its folder.
fn create_locked_with_content(
    folder: &OwnedFd,
    name: &OsStr,
    content: &[u8],
) -> Result<File, Errno> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(folder, name, flags, Mode::from_raw_mode(0o640))?;
    let mut file = File::from(file);
    let written = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)
        .and_then(|()| match lock_out_images(file.as_fd()) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Errno::WOULDBLOCK),
            Err(error) => Err(errno_or_eio(&error)),
        })
        .and_then(|()| {
            file.write_all(content)
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
mod tests {
    use super::*;

    const PURPOSE: FilePurpose = FilePurpose {
        option: "bitmap-file",
        content: "bitmaps",
        max_bytes: 100,
        empty: b"nothing",
    };

    fn names(folder: &Path) -> Vec<OsString> {
        let entries = std::fs::read_dir(folder).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    }

    #[test]
    fn change_leaves_the_files_of_others_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("disk0"), folder.path().join("disk0.new"));
        std::fs::write(&other, "an image").unwrap();
        let (mut file, content) = ReplacedFile::open_or_create_and_read(&path, &PURPOSE).unwrap();
        assert_eq!(content, b"nothing");
        file.replace(b"something").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"something");
        assert_eq!(std::fs::read(&other).unwrap(), b"an image");
        assert_eq!(names(folder.path()), ["disk0", "disk0.new"]);
    }

    #[test]
    fn symbolic_link_is_followed_to_a_file_and_refused_without_one() {
        let folder = tempfile::tempdir().unwrap();
        let (link, path) = (folder.path().join("link"), folder.path().join("file"));
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let refused = ReplacedFile::open_or_create_and_read(&link, &PURPOSE);
        let error = refused.map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("symbolic link to a file"), "{error}");
        assert_eq!(names(folder.path()), ["link"]);
        std::fs::write(&path, "old").unwrap();
        let (mut file, content) = ReplacedFile::open_or_create_and_read(&link, &PURPOSE).unwrap();
        assert_eq!(content, b"old");
        file.replace(b"new").unwrap();
        assert!(link.is_symlink() && std::fs::read(&path).unwrap() == b"new");
    }
}
