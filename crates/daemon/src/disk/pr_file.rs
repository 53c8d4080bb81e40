//! The file that stores a unit's persistent reservations (`pr-file`).

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use iothread::Errno;
use scsi::{NO_RESERVATIONS, ReservationStore, ReservationTextError, Unit};

use crate::disk::replaced_file::{FileInFolder, FilePurpose, ReplacedFile, ReplacedFileError};

static PURPOSE: FilePurpose = FilePurpose {
    option: "pr-file",
    content: "reservations",
    max_bytes: 1 << 20,
    empty: NO_RESERVATIONS.as_bytes(),
};

/// Its content does not describe reservations.
#[derive(Debug, thiserror::Error)]
#[error("pr-file: {path}: {error}")]
pub(crate) struct InvalidReservations {
    path: PathBuf,
    error: ReservationTextError,
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
    file: ReplacedFile,
    /// The last change could not be saved, and that was logged.
    is_failing: bool,
}

impl LockedPrFile {
    fn new(file: ReplacedFile) -> Self {
        LockedPrFile {
            file,
            is_failing: false,
        }
    }
}

impl PrFile {
    /// Opens the file, or creates it. Returns its text as well.
    pub(crate) fn open_or_create_and_read(
        path: &Path,
    ) -> Result<(Self, String), ReplacedFileError> {
        let (file, text) = ReplacedFile::open_or_create_and_read(path, &PURPOSE)?;
        let pr_file = PrFile {
            path: path.to_owned(),
            locked: Mutex::new(Some(LockedPrFile::new(file))),
        };
        // The parser of the reservations refuses invalid text.
        let text = String::from_utf8_lossy(&text).into_owned();
        Ok((pr_file, text))
    }

    /// Restores the reservations of a unit from the text of the file.
    pub(crate) fn restore_reservations_from_text(
        path: &Path,
        text: &str,
        unit: &Unit,
    ) -> Result<(), InvalidReservations> {
        let result = unit.restore_reservations(text);
        result.map_err(|error| InvalidReservations {
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
    pub fn duplicate_descriptors(&self) -> io::Result<Option<FileInFolder>> {
        let locked = self.lock_mutex();
        let file = locked.as_ref();
        file.map(|locked| locked.file.duplicate_descriptors())
            .transpose()
    }

    /// Takes over the file from the old process of a live upgrade.
    pub fn take_over(&self, opened: FileInFolder) {
        *self.lock_mutex() = Some(LockedPrFile::new(ReplacedFile::new(opened)));
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
        let result = locked.file.replace(text.as_bytes());
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
                    matches!(other, ReplacedFileError::Locked { .. }),
                    "round {round}: {other}"
                );
            }
            let late = PrFile::open_or_create_and_read(&path)
                .map(|_| ())
                .unwrap_err();
            assert!(
                matches!(late, ReplacedFileError::Locked { .. }),
                "round {round}: {late}"
            );
            drop(owners);
            let (_file, text) = PrFile::open_or_create_and_read(&path).unwrap();
            assert_eq!(text, NO_RESERVATIONS);
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        }
    }
}
