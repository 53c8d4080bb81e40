//! An export: its options, its disks, and its server.

use std::sync::Arc;
use std::thread::JoinHandle;

use iothread::ExportReports;
use options::ExportOptions;

use crate::devices::virtio_scsi::Controller;
use crate::disk::figures::Figures;
use crate::disk::shown::{FrontEnds, Serving, ShownDisk};

/// An export.
pub(crate) struct Export {
    /// As they are now, also those that were changed since.
    pub options: ExportOptions,
    /// What its guest sees.
    pub disks: Vec<ShownDisk>,
    /// Of virtio SCSI: where disks are added and removed.
    pub controller: Option<Arc<Controller>>,
    pub figures: Arc<Figures>,
    /// Of virtio-blk: what becomes of requests that the disk fails.
    pub reports: Option<Arc<ExportReports>>,
    pub state: ExportState,
}

/// What becomes of an export.
pub(crate) enum ExportState {
    Serving(Serving),
    /// A thread waits for its queues to drain.
    Ending(JoinHandle<()>),
}

impl Export {
    /// To reach its front-ends, unless it ends.
    pub fn front_ends(&self) -> Option<FrontEnds> {
        match &self.state {
            ExportState::Serving(server) => Some(server.front_ends()),
            ExportState::Ending(_) => None,
        }
    }
}
