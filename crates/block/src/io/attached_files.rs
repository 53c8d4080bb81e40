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

/// The files with sources, indexed by their [`OpenFileId`](crate::disk_file::open_file_id::OpenFileId).
#[derive(Default)]
pub(crate) struct AttachedFiles(Vec<Option<AttachedFile>>);

impl AttachedFiles {
    /// Whether no file has a source on this iothread.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }

    /// Counts one more source; `None` if it is the file's first.
    pub fn add_source_if_attached(&mut self, file: &DiskFile) -> Option<Carrier> {
        let attachment = self.0.get_mut(file.id.as_index())?.as_mut()?;
        attachment.sources += 1;
        Some(attachment.carrier)
    }

    /// Adds a file with its first source.
    pub fn insert_with_first_source(&mut self, file: &Arc<DiskFile>, carrier: Carrier) {
        let index = file.id.as_index();
        if self.0.len() <= index {
            self.0.resize_with(index + 1, || None);
        }
        self.0[index] = Some(AttachedFile {
            _file: file.clone(),
            sources: 1,
            carrier,
        });
    }

    /// Counts one source less. The last one removes the file and returns its backend.
    pub fn remove_source(&mut self, file: &DiskFile) -> Option<Carrier> {
        let entry = self.0.get_mut(file.id.as_index())?;
        let attachment = entry.as_mut()?;
        attachment.sources -= 1;
        if attachment.sources > 0 {
            return None;
        }
        entry.take().map(|attachment| attachment.carrier)
    }
}
