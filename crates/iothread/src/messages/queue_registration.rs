//! Registration of a running queue with its export, for the commands that the export sends to its queues.

use std::sync::Arc;

use telemetry::queue::QueueStats;

use super::Message;
use super::reports::ExportReporter;
use crate::event_loop::Remote;

/// Registration of a queue with its export, which ends when this is dropped.
pub(crate) struct QueueRegistration {
    export: Arc<ExportReporter>,
    stats: Arc<QueueStats>,
}

impl QueueRegistration {
    /// Registers the queue with these statistics, which has this index on the iothread that `remote` leads to.
    pub fn register(
        export: Arc<ExportReporter>,
        remote: &Remote<Message>,
        source_index: u32,
        stats: Arc<QueueStats>,
    ) -> Self {
        export
            .queues()
            .add_queue(remote.clone(), source_index, stats.clone());
        QueueRegistration { export, stats }
    }
}

impl Drop for QueueRegistration {
    fn drop(&mut self) {
        self.export.queues().remove_queue(&self.stats);
    }
}
