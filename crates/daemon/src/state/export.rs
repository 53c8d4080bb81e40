//! An export in the daemon's state: its options, its disks, its counters, and its server while it is not being removed.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::thread::JoinHandle;

use iothread::{ExportReporter, ReportedExport};
use options::ExportOptions;

use crate::devices::export_server::{ExportFrontEndHandle, ExportServer};
use crate::devices::image_use::ImageUse;
use crate::devices::virtio_scsi::VirtioScsiController;
use crate::disk::export_stats::ExportStats;
use crate::disk::exported_disk::ExportedDisk;
use crate::error::BoxError;

/// How far the removal of an export has come.
pub(crate) enum ExportRemoval {
    /// It is removed.
    Done,
    /// It is removed when its requests in flight have completed: then the main thread gets a message, and the receiver a value.
    Draining(Receiver<()>),
}

/// An export.
pub(crate) struct Export {
    /// Its present options, with all changes since it was added.
    pub options: ExportOptions,
    pub reported: Arc<ReportedExport>,
    /// The disks that its guest sees.
    pub disks: Vec<ExportedDisk>,
    /// For virtio-scsi: disks are added and removed here.
    pub controller: Option<Arc<VirtioScsiController>>,
    pub stats: Arc<ExportStats>,
    /// For virtio-blk: error policy and parked requests.
    pub reports: Option<Arc<ExportReporter>>,
    /// `None`: its nodes are active as long as it exists.
    pub image_use: Option<Arc<ImageUse>>,
    pub state: ExportState,
}

/// The life cycle of an export.
pub(crate) enum ExportState {
    Serving(ExportServer),
    /// It was removed, and a thread waits for its queues to drain.
    Draining(JoinHandle<()>),
}

impl Export {
    /// Access to its front-ends; `None` if it is draining.
    pub fn front_end_handle(&self) -> Option<ExportFrontEndHandle> {
        match &self.state {
            ExportState::Serving(server) => Some(server.front_end_handle()),
            ExportState::Draining(_) => None,
        }
    }
}

/// Refuses while one of these exports that `is_affected` is draining, since its requests in flight cannot be waited for.
pub(crate) fn check_no_export_draining(
    exports: &[Export],
    is_affected: impl Fn(&Export) -> bool,
) -> Result<(), BoxError> {
    let draining = exports
        .iter()
        .find(|export| matches!(export.state, ExportState::Draining(_)) && is_affected(export));
    match draining {
        None => Ok(()),
        Some(export) => Err(format!(
            "export '{}' is being removed and has requests in flight: try again after its \
             BLOCK_EXPORT_DELETED",
            export.options.id
        )
        .into()),
    }
}
