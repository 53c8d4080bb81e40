//! An export: its options, its disks, and its server.

use std::sync::Arc;
use std::thread::JoinHandle;

use iothread::ExportReports;
use options::ExportOptions;

use crate::devices::export_server::{ExportFrontEnds, ExportServer};
use crate::devices::virtio_scsi::ScsiController;
use crate::disk::export_stats::ExportStats;
use crate::disk::exported_disk::ExportedDisk;

/// An export.
pub(crate) struct Export {
    /// As they are now, also those that were changed since.
    pub options: ExportOptions,
    /// What its guest sees.
    pub disks: Vec<ExportedDisk>,
    /// Of virtio SCSI: where disks are added and removed.
    pub controller: Option<Arc<ScsiController>>,
    pub stats: Arc<ExportStats>,
    /// Of virtio-blk: what becomes of requests that the disk fails.
    pub reports: Option<Arc<ExportReports>>,
    pub state: ExportState,
}

/// What becomes of an export.
pub(crate) enum ExportState {
    Serving(ExportServer),
    /// A thread waits for its queues to drain.
    Ending(JoinHandle<()>),
}

impl Export {
    /// To reach its front-ends, unless it ends.
    pub fn front_ends(&self) -> Option<ExportFrontEnds> {
        match &self.state {
            ExportState::Serving(server) => Some(server.front_ends()),
            ExportState::Ending(_) => None,
        }
    }
}
