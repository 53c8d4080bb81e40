//! The table of files that have sources on an iothread, with the backend that carries each.

use std::sync::Arc;

use crate::disk_file::DiskFile;
use crate::route::Carrier;

/// A file with at least one source on the iothread.
struct AttachedFile {
    /// Keeps the file open, and its number in use.
    _file: Arc<DiskFile>,
    sources: usize,
    carrier: Carrier,
}

/// The files with sources.
#[derive(Default)]
pub(crate) struct AttachedFiles {
    /// Indexed by their [`OpenFileId`](crate::disk_file::open_file_id::OpenFileId).
    by_id: Vec<Option<AttachedFile>>,
    count: usize,
}

impl AttachedFiles {
    /// How many files have a source on this iothread.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Counts one more source; `None` if it is the file's first.
    pub fn add_source_if_attached(&mut self, file: &DiskFile) -> Option<Carrier> {
        let attachment = self.by_id.get_mut(file.id.as_index())?.as_mut()?;
        attachment.sources += 1;
        Some(attachment.carrier)
    }

    /// Adds a file with its first source.
    pub fn insert_with_first_source(&mut self, file: &Arc<DiskFile>, carrier: Carrier) {
        let index = file.id.as_index();
        if self.by_id.len() <= index {
            self.by_id.resize_with(index + 1, || None);
        }
        self.count += 1;
        self.by_id[index] = Some(AttachedFile {
            _file: file.clone(),
            sources: 1,
            carrier,
        });
    }

    /// Counts one source less. The last one removes the file and returns its backend.
    pub fn remove_source(&mut self, file: &DiskFile) -> Option<Carrier> {
        let entry = self.by_id.get_mut(file.id.as_index())?;
        let attachment = entry.as_mut()?;
        attachment.sources -= 1;
        if attachment.sources > 0 {
            return None;
        }
        self.count -= 1;
        entry.take().map(|attachment| attachment.carrier)
    }
}
