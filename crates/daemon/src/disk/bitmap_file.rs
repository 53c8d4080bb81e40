//! The file of a node's persistent dirty bitmaps (`bitmap-file`), beside its image.
//!
//! While the node is open the file says that it is in use, since its bits are not up to date then; it is written when the list of
//! persistent bitmaps changes, and at the orderly end of the node. After a crash the bitmaps are therefore there, and inconsistent. So
//! they are if the image is another file then, or was written since.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use block::Node;
use block::dirty_bitmap::SaveKind;
use iothread::Errno;

use crate::disk::replaced_file::{FileInFolder, FilePurpose, ReplacedFile};

static PURPOSE: FilePurpose = FilePurpose {
    option: "bitmap-file",
    content: "dirty bitmaps",
    max_bytes: 2 << 30,
    empty: &[],
};

/// The file of a node's persistent dirty bitmaps.
pub(crate) struct BitmapFile {
    path: PathBuf,
    /// `None` while the file belongs to the old process of a live upgrade.
    file: Mutex<Option<ReplacedFile>>,
}

impl BitmapFile {
    /// Opens the file, or creates it, restores the bitmaps of a node that was just opened, and marks the file as in use. The
    /// bitmaps that are enabled record from the first request on.
    pub fn open_and_restore(path: &Path, node: &Node) -> Result<Self, String> {
        if node.read_only() {
            return Err(
                "bitmap-file: it needs a node that can be written; leave it out with read-only=on"
                    .to_owned(),
            );
        }
        let (file, saved) = ReplacedFile::open_or_create_and_read(path, &PURPOSE)
            .map_err(|error| error.to_string())?;
        let bitmaps = node.bitmaps();
        if !saved.is_empty() {
            let restored = bitmaps.restore(&saved, node.size(), Some(node.image_stamp()));
            restored.map_err(|error| format!("bitmap-file: {}: {error}", path.display()))?;
        }
        let file = BitmapFile {
            path: path.to_owned(),
            file: Mutex::new(Some(file)),
        };
        file.save_in_use(node)?;
        for status in bitmaps.statuses().iter().filter(|it| it.inconsistent) {
            tracing::warn!(
                node = node.name(),
                bitmap = status.name,
                advice = "remove it, add a new one, and make a full copy",
                "the dirty bitmap is inconsistent: the daemon did not end orderly, or the disk was resized, replaced, or written \
                 without its bitmap-file since"
            );
        }
        bitmaps.let_new_routes_record(bitmaps.has_recording());
        Ok(file)
    }

    /// A file that the old process of a live upgrade will hand over. Until then nothing can be saved.
    pub fn new_awaiting_handover(path: &Path) -> Self {
        BitmapFile {
            path: path.to_owned(),
            file: Mutex::default(),
        }
    }

    /// Saves the persistent bitmaps of a node that is in use.
    pub fn save_in_use(&self, node: &Node) -> Result<(), String> {
        self.replace(&node.bitmaps().save(SaveKind::InUse))
    }

    /// Saves the persistent bitmaps of a node of which all requests have ended, and no other will come. If that fails, the bitmaps are
    /// saved as in use again: the new file may have got its name before the failure (its folder was not synced), and would call them
    /// consistent although the node goes on.
    ///
    /// # Errors
    /// The first failure, as text for operators.
    pub fn save_at_end(&self, node: &Node) -> Result<(), String> {
        let kind = SaveKind::AtEnd(node.image_stamp());
        let saved = self.replace(&node.bitmaps().save(kind));
        if saved.is_err() {
            let _ = self.save_in_use(node);
        }
        saved
    }

    /// Replaces the file by saved bitmaps.
    pub fn replace(&self, saved: &[u8]) -> Result<(), String> {
        let mut file = self.lock_file();
        let result = match file.as_mut() {
            Some(file) => file.replace(saved),
            None => Err(Errno::BADF),
        };
        result.map_err(|error| {
            format!(
                "bitmap-file: cannot write {}: {error}; free space on its file system, or look for \
                 errors of its disk (dmesg)",
                self.path.display()
            )
        })
    }

    /// Descriptors for the new process of a live upgrade, which share the lock.
    ///
    /// # Errors
    /// Too many files are open.
    pub fn duplicate_descriptors(&self) -> io::Result<Option<FileInFolder>> {
        let file = self.lock_file();
        file.as_ref()
            .map(ReplacedFile::duplicate_descriptors)
            .transpose()
    }

    /// Takes over the file from the old process of a live upgrade.
    pub fn take_over(&self, opened: FileInFolder) {
        *self.lock_file() = Some(ReplacedFile::new(opened));
    }

    /// Locks the mutex of the file, which is `None` before the handover of a live upgrade.
    fn lock_file(&self) -> MutexGuard<'_, Option<ReplacedFile>> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use block::dirty_bitmap::{BitmapAction, BitmapChange, DEFAULT_GRANULARITY, switch};
    use test_support::limited_host::{Call, with_errno};

    use super::*;
    use crate::testing::null_disk;

    /// The new file has its name then, and the node goes on.
    #[test]
    fn bitmaps_are_inconsistent_after_an_end_whose_folder_was_not_synced() {
        /// A bit of the folder's descriptor, and of no other of this test.
        const FOLDER_BIT: i32 = 1 << 9;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bits");
        let node = null_disk();
        let file = BitmapFile::open_and_restore(&path, &node).unwrap();
        let add = BitmapChange::Add {
            size: node.size(),
            granularity: DEFAULT_GRANULARITY,
            enabled: true,
            persistent: true,
        };
        let action = BitmapAction {
            node: node.bitmaps().clone(),
            bitmap: "b".to_owned(),
            change: add,
        };
        switch(&[action]).unwrap();
        let mut opened = file.duplicate_descriptors().unwrap().unwrap();
        opened.folder = rustix::io::fcntl_dupfd_cloexec(&opened.folder, FOLDER_BIT).unwrap();
        assert_eq!(opened.folder.as_raw_fd() & FOLDER_BIT, FOLDER_BIT);
        file.take_over(opened);
        let sync_of_folder = Call {
            number: libc::SYS_fsync,
            with_bits: Some((0, u64::from(FOLDER_BIT.unsigned_abs()))),
        };
        let saved = with_errno(&[sync_of_folder], libc::EIO, || file.save_at_end(&node));
        let Some(saved) = saved else { return };
        assert!(saved.is_err());
        drop(file);
        let again = null_disk();
        BitmapFile::open_and_restore(&path, &again).unwrap();
        assert!(again.bitmaps().statuses()[0].inconsistent);
    }
}
