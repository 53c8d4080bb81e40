//! Image locks, compatible with QEMU's: open-file-description locks on single bytes.
//!
//! Each permission has two bytes. Locks do not touch data, and may lie beyond the end of the image. An opening that uses a
//! permission has a shared lock on byte 100 + bit; one that does not share the permission has a shared lock on byte
//! 200 + bit. Each side takes its locks first and then tests whether the other's byte is locked: if so, there is a
//! conflict. Locks belong to the open file, so two openings in one process conflict as well. They are released explicitly,
//! since the open file may outlive our descriptor for a moment: in a ring that had it registered, or in a child process
//! that has not yet called `execve(2)`.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::disk_file::image_id::ImageId;
use crate::error::NodeError;

/// The setting `locking`: whether an image is locked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Locking {
    /// It is locked where the file system supports that.
    #[default]
    Auto,
    /// It is locked, and opening it fails where the file system does not support that.
    On,
    /// It is not locked.
    Off,
}

/// How an opening uses its image, which decides its locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ImageAccess {
    /// It reads and writes; no other opening may write or resize.
    Write,
    /// It reads; no other opening may write or resize.
    Read,
    /// It reads, and others may write meanwhile (`force-share`): to inspect an image that a guest uses.
    ReadWhileOthersWrite,
    /// It replaces the whole content; no other opening may use the image.
    Replace,
}

impl ImageAccess {
    /// The permissions that an opening uses, and those that it does not share with others.
    fn used_and_unshared(self) -> (&'static [i64], &'static [i64]) {
        match self {
            Self::Write => (&[CONSISTENT_READ, WRITE], &[WRITE, RESIZE]),
            Self::Read => (&[CONSISTENT_READ], &[WRITE, RESIZE]),
            Self::ReadWhileOthersWrite => (&[CONSISTENT_READ], &[]),
            Self::Replace => (&ALL, &ALL),
        }
    }
}

/// The first lock byte of permissions that an opening uses, and of those that it does not share with others.
const USED_BASE: i64 = 100;
const UNSHARED_BASE: i64 = 200;

/// Permissions, by their number in QEMU.
const CONSISTENT_READ: i64 = 0;
const WRITE: i64 = 1;
const RESIZE: i64 = 3;
const ALL: [i64; 3] = [CONSISTENT_READ, WRITE, RESIZE];
/// Bytes reserved for permissions on each side, more than there are permissions.
const PERMISSIONS: i64 = 64;

/// The name of a permission in QEMU's messages.
fn permission_name(bit: i64) -> &'static str {
    match bit {
        CONSISTENT_READ => "consistent read",
        WRITE => "write",
        _ => "resize",
    }
}

/// Images that are closed keep their locks.
static KEEP_LOCKS: AtomicBool = AtomicBool::new(false);

/// Sets whether images that are closed keep their locks. During a live upgrade another process has the same open files, and
/// with them the locks.
pub fn set_keep_locks_on_close(keep: bool) {
    KEEP_LOCKS.store(keep, Ordering::Relaxed);
}

/// An open image with its locks. Dropping it releases them and closes the file.
pub(crate) struct LockedFd {
    fd: OwnedFd,
    pub image: ImageId,
    /// It counts among the images that this process has locked.
    is_counted: AtomicBool,
}

impl LockedFd {
    /// Takes the locks of an opening.
    ///
    /// # Errors
    /// [`NodeError::Locked`], or the kernel's error. The file is closed then, and has no lock.
    pub fn with_locks(
        fd: OwnedFd,
        path: &Path,
        locking: Locking,
        access: ImageAccess,
    ) -> Result<Self, NodeError> {
        let image = ImageId::of_fd(fd.as_fd()).map_err(|error| NodeError::Io {
            path: path.to_owned(),
            what: "fstat",
            error: error.into(),
        })?;
        let is_counted = AtomicBool::new(false);
        let this = Self {
            fd,
            image,
            is_counted,
        };
        this.take_locks_if_enabled(path, locking, access)?;
        Ok(this)
    }

    /// Takes the locks of an image that was opened without.
    ///
    /// # Errors
    /// As for [`LockedFd::with_locks`]. It has no lock then.
    pub fn take_locks_if_enabled(
        &self,
        path: &Path,
        locking: Locking,
        access: ImageAccess,
    ) -> Result<(), NodeError> {
        match locking {
            Locking::Off => Ok(()),
            _ => self
                .take_locks_and_count(path, locking, access)
                .inspect_err(|_| self.release_locks_unless_kept()),
        }
    }

    /// Takes over the locks that `from` has on the same image, which stays locked all the time. `from` then has none,
    /// unless this fails. `locking` and `access` are those of this opening, and of `from`: with `locking=off`
    /// for `from` the locks are taken anew, and with `locking=off` for this one they are released.
    ///
    /// # Errors
    /// As for [`LockedFd::with_locks`]: for writing it may need what reading did not.
    pub fn move_locks_from(
        &self,
        from: &LockedFd,
        path: &Path,
        [locking, from_locking]: [Locking; 2],
        [access, from_access]: [ImageAccess; 2],
    ) -> Result<(), NodeError> {
        if locking == Locking::Off {
            from.release_locks_unless_kept();
            return Ok(());
        }
        if from_locking == Locking::Off {
            return self.take_locks_and_count(path, locking, access);
        }
        let lock = || self.take_locks_and_count(path, locking, access);
        // Both have the locks for a moment, so that no third opening can take them; `from`'s may conflict with ours.
        let _ = lock();
        from.release_locks_unless_kept();
        lock().inspect_err(|_| {
            // `from` gets its locks again, even where they conflict with ours, which are released next: no other opening
            // could take them meanwhile.
            let _ = acquire_locks(from, path, locking, from_access);
            from.count_image_as_locked();
            self.release_locks_unless_kept();
        })
    }

    /// Takes the locks, and counts the image among those that this process has locked.
    fn take_locks_and_count(
        &self,
        path: &Path,
        locking: Locking,
        access: ImageAccess,
    ) -> Result<(), NodeError> {
        acquire_locks(self, path, locking, access)?;
        self.count_image_as_locked();
        Ok(())
    }

    /// Counts the image among those that this process has locked, once.
    fn count_image_as_locked(&self) {
        if !self.is_counted.swap(true, Ordering::Relaxed) {
            self.image.add_to_locked();
        }
    }

    /// Releases the locks.
    pub fn release_locks_unless_kept(&self) {
        if self.is_counted.swap(false, Ordering::Relaxed) {
            self.image.remove_from_locked();
        }
        if KEEP_LOCKS.load(Ordering::Relaxed) {
            return;
        }
        let all = libc::flock {
            l_len: UNSHARED_BASE + PERMISSIONS - USED_BASE,
            ..byte_lock(libc::F_UNLCK, USED_BASE)
        };
        // SAFETY: F_OFD_SETLK reads the struct that the reference points to, and nothing else. Where
        // there are no such locks there are none to release: it fails, and changes nothing.
        unsafe { libc::fcntl(self.as_raw_fd(), libc::F_OFD_SETLK, &raw const all) };
        #[cfg(test)]
        handover_tests::released();
    }
}

impl AsFd for LockedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for LockedFd {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl Drop for LockedFd {
    fn drop(&mut self) {
        self.release_locks_unless_kept();
    }
}

/// Takes the locks of an opening; where the file system has none, `locking` decides whether that is an error.
fn acquire_locks(
    opened: &LockedFd,
    path: &Path,
    locking: Locking,
    access: ImageAccess,
) -> Result<(), NodeError> {
    match lock_all(opened.as_fd(), access) {
        Ok(None) => Ok(()),
        Ok(Some(conflict)) => Err(NodeError::Locked {
            path: path.to_owned(),
            permission: permission_name(conflict.bit),
            shared: conflict.shared,
            here: opened.image.is_locked_here(),
        }),
        Err(error) if locking == Locking::Auto && is_unsupported(&error) => {
            tracing::warn!(
                path = %path.display(), %error,
                advice = "make sure that nothing else writes this image, or set locking=off",
                "this filesystem has no open-file-description locks: the image is not locked"
            );
            Ok(())
        }
        Err(error) => Err(NodeError::Io {
            path: path.to_owned(),
            what: "locking the image",
            error,
        }),
    }
}

/// A permission that another opening denies.
pub(super) struct Conflict {
    bit: i64,
    /// True: the other opening uses the permission, which we do not share. False: the other one does not share it.
    shared: bool,
}

/// Takes the locks, then tests for those of other openings. After a conflict the caller releases what was taken.
pub(super) fn lock_all(fd: BorrowedFd<'_>, access: ImageAccess) -> io::Result<Option<Conflict>> {
    let (used, unshared) = access.used_and_unshared();
    let used = || used.iter().map(|bit| (*bit, false));
    let unshared = || unshared.iter().map(|bit| (*bit, true));
    for (bit, shared) in used().chain(unshared()) {
        let base = if shared { UNSHARED_BASE } else { USED_BASE };
        // Only a program outside of this protocol locks a byte exclusively.
        if !lock_shared(fd, base + bit)? {
            return Ok(Some(Conflict { bit, shared }));
        }
    }
    for (bit, shared) in used().chain(unshared()) {
        let base = if shared { USED_BASE } else { UNSHARED_BASE };
        if is_locked_by_others(fd, base + bit)? {
            return Ok(Some(Conflict { bit, shared }));
        }
    }
    Ok(None)
}

/// Whether the file system has no open-file-description locks.
pub(super) fn is_unsupported(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EINVAL | libc::ENOLCK | libc::EOPNOTSUPP | libc::ENOSYS)
    )
}

/// The request of `fcntl(2)` for a lock of this kind on one byte.
fn byte_lock(kind: i32, start: i64) -> libc::flock {
    libc::flock {
        l_type: i16::try_from(kind).unwrap_or_default(),
        l_whence: i16::try_from(libc::SEEK_SET).unwrap_or_default(),
        l_start: start,
        l_len: 1,
        l_pid: 0,
    }
}

/// Takes a shared lock of a byte. False: another opening has locked it exclusively.
fn lock_shared(fd: BorrowedFd<'_>, start: i64) -> io::Result<bool> {
    let lock = byte_lock(libc::F_RDLCK, start);
    // SAFETY: F_OFD_SETLK reads the struct that the reference points to, and nothing else.
    let result = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    if result == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => Ok(false),
        _ => Err(error),
    }
}

/// Whether another opening has a lock on a byte.
fn is_locked_by_others(fd: BorrowedFd<'_>, start: i64) -> io::Result<bool> {
    let mut lock = byte_lock(libc::F_WRLCK, start);
    // SAFETY: F_OFD_GETLK reads and writes the struct that the reference points to.
    let result = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(i32::from(lock.l_type) != libc::F_UNLCK)
}

#[cfg(test)]
#[path = "lock_handover_tests.rs"]
mod handover_tests;

#[cfg(test)]
mod tests {
    use super::ImageAccess::{Read, ReadWhileOthersWrite, Write};
    use super::*;
    use std::fs::OpenOptions;

    fn open(path: &Path) -> OwnedFd {
        let file = OpenOptions::new().read(true).write(true).open(path);
        file.unwrap().into()
    }

    fn lock(fd: OwnedFd, access: ImageAccess) -> Result<LockedFd, NodeError> {
        LockedFd::with_locks(fd, Path::new("image"), Locking::On, access)
    }

    fn unlocked(path: &Path, access: ImageAccess) -> LockedFd {
        LockedFd::with_locks(open(path), path, Locking::Off, access).unwrap()
    }

    /// Whether the image is locked, and by this process.
    fn is_locked_here<T>(result: &Result<T, NodeError>) -> Option<bool> {
        match result {
            Err(NodeError::Locked { here, .. }) => Some(*here),
            _ => None,
        }
    }

    fn is_locked<T>(result: &Result<T, NodeError>) -> bool {
        is_locked_here(result).is_some()
    }

    #[test]
    fn one_writer_or_many_readers() {
        let image = tempfile::NamedTempFile::new().unwrap();
        let writer = lock(open(image.path()), Write).unwrap();
        assert!(is_locked(&lock(open(image.path()), Write)));
        assert!(is_locked(&lock(open(image.path()), Read)));
        drop(unlocked(image.path(), Write));
        drop(writer);
        let reader = lock(open(image.path()), Read).unwrap();
        let second_reader = lock(open(image.path()), Read).unwrap();
        let writer = unlocked(image.path(), Write);
        let taken = writer.take_locks_if_enabled(image.path(), Locking::On, Write);
        // It keeps none of those that were free.
        assert!(is_locked(&taken));
        let third_reader = lock(open(image.path()), Read).unwrap();
        drop((reader, second_reader, third_reader));
        lock(open(image.path()), Write).unwrap();
    }

    #[test]
    fn a_reader_that_shares_all_opens_what_others_use_and_locks_out_none() {
        let image = tempfile::NamedTempFile::new().unwrap();
        for access in [Write, Read, ReadWhileOthersWrite] {
            let first = lock(open(image.path()), access).unwrap();
            let inspector = lock(open(image.path()), ReadWhileOthersWrite).unwrap();
            drop(first);
            // A later opening is not refused because of the inspector.
            drop(lock(open(image.path()), access).unwrap());
            drop(inspector);
        }
    }

    #[test]
    fn a_reader_that_shares_all_is_refused_where_reads_are_not_shared() {
        let image = tempfile::NamedTempFile::new().unwrap();
        // A program that changes the image in a way that readers would misread, such as a commit of QEMU's.
        let other = open(image.path());
        assert!(lock_shared(other.as_fd(), UNSHARED_BASE + CONSISTENT_READ).unwrap());
        let refused = lock(open(image.path()), ReadWhileOthersWrite);
        let Err(NodeError::Locked { permission, .. }) = refused else {
            panic!("not refused");
        };
        assert_eq!(permission, "consistent read");
    }

    #[test]
    fn locks_end_with_their_owner_not_with_the_last_copy_of_the_descriptor() {
        let image = tempfile::NamedTempFile::new().unwrap();
        let file = open(image.path());
        let copy = file.try_clone().unwrap();
        drop(lock(file, Write).unwrap());
        lock(open(image.path()), Write).unwrap();
        drop(copy);
    }

    #[test]
    fn a_refused_opening_leaves_no_lock() {
        let image = tempfile::NamedTempFile::new().unwrap();
        let reader = lock(open(image.path()), Read).unwrap();
        let refused = open(image.path());
        let copy = refused.try_clone().unwrap();
        assert!(is_locked(&lock(refused, Write)));
        drop(reader);
        lock(open(image.path()), Read).unwrap();
        drop(copy);
    }

    #[test]
    fn locks_are_taken_over_by_another_opening_of_the_image() {
        let image = tempfile::NamedTempFile::new().unwrap();
        let path = image.path();
        let reader = lock(open(path), Read).unwrap();
        let take = |new: &LockedFd, old: &LockedFd, access| {
            new.move_locks_from(old, path, [Locking::On; 2], access)
        };
        let writer = unlocked(path, Read);
        take(&writer, &reader, [Write, Read]).unwrap();
        drop(reader);
        assert!(is_locked(&lock(open(path), Read)));
        let reader = unlocked(path, Read);
        take(&reader, &writer, [Read, Write]).unwrap();
        drop(writer);
        let other = lock(open(path), Read).unwrap();
        // The other reader conflicts with a writer; the reader keeps its locks.
        let writer = unlocked(path, Read);
        assert!(is_locked(&take(&writer, &reader, [Write, Read])));
        drop((writer, other));
        assert!(is_locked(&lock(open(path), Write)));
        drop(reader);
        lock(open(path), Write).unwrap();
    }

    #[test]
    fn an_image_whose_handover_failed_is_still_reported_as_locked_by_this_process() {
        let image = tempfile::NamedTempFile::new().unwrap();
        let path = image.path();
        let from = lock(open(path), Write).unwrap();
        let to = unlocked(path, Write);
        // Another program that tries to open the image has this lock for a moment, before it finds the conflict.
        let other = open(path);
        assert!(lock_shared(other.as_fd(), USED_BASE + WRITE).unwrap());
        let refused = to.move_locks_from(&from, path, [Locking::On; 2], [Write; 2]);
        assert_eq!(is_locked_here(&refused), Some(false));
        drop((other, to));
        assert_eq!(is_locked_here(&lock(open(path), Write)), Some(true));
        drop(from);
        let elsewhere = open(path);
        assert!(lock_shared(elsewhere.as_fd(), USED_BASE + WRITE).unwrap());
        assert_eq!(is_locked_here(&lock(open(path), Write)), Some(false));
    }

    #[test]
    fn locks_move_with_a_migration_to_another_opening_of_the_image() {
        let image = tempfile::NamedTempFile::new().unwrap();
        let path = image.path();
        let take = |new: &LockedFd, old: &LockedFd, locking| {
            new.move_locks_from(old, path, locking, [Write; 2])
        };
        // A guest migrates from one program to another.
        let (here, there) = (lock(open(path), Write).unwrap(), unlocked(path, Write));
        let next_there = unlocked(path, Write);
        let refused = take(&next_there, &there, [Locking::On, Locking::Off]);
        assert!(is_locked(&refused));
        let next_here = unlocked(path, Write);
        take(&next_here, &here, [Locking::Off, Locking::On]).unwrap();
        take(&next_there, &there, [Locking::On, Locking::Off]).unwrap();
        drop((here, there));
        assert!(is_locked(&lock(open(path), Write)));
        drop(next_there);
        lock(open(path), Write).unwrap();
    }
}
