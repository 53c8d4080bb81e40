//! Counters of an export. They live as long as the export does, while front-ends and their queues come and go.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use iothread::DataThread;
use telemetry::queue::QueueStats;

/// Counters of an export.
pub(crate) struct ExportStats {
    /// A front-end is connected.
    pub connected: AtomicBool,
    /// Maximum number of entries of a queue.
    pub queue_size: u16,
    /// One for each queue that the export offers, whether it has been started or not.
    pub queues: Vec<ExportQueue>,
}

/// A queue of an export: its iothread and its counters.
pub(crate) struct ExportQueue {
    /// The name of the iothread that runs it.
    pub iothread: String,
    pub stats: Arc<QueueStats>,
}

impl ExportStats {
    /// All counters are zero. Queue *i* runs on iothread *i* modulo their count.
    pub fn new(num_queues: u16, queue_size: u16, iothreads: &[Arc<DataThread>]) -> Self {
        let queue_iothreads = iothreads.iter().cycle().take(num_queues.into());
        let queues = queue_iothreads.map(|iothread| ExportQueue {
            iothread: iothread.id().to_owned(),
            stats: Arc::default(),
        });
        ExportStats {
            connected: AtomicBool::new(false),
            queue_size,
            queues: queues.collect(),
        }
    }
}
