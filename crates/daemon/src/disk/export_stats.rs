//! The live counters of an export, one set for each queue, which iothreads update and monitors read; and which iothread
//! runs each queue. They live as long as the export does, while front-ends and their queues come and go.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use iothread::IothreadHandle;
use telemetry::queue::QueueStats;

/// Counters of the queues of an export.
pub(crate) struct ExportStats {
    /// A front-end is connected.
    pub connected: AtomicBool,
    /// Maximum number of entries of a queue.
    pub queue_size: u16,
    /// One for each queue that the export offers, whether it has been started or not.
    pub queues: Vec<ExportQueueStats>,
}

/// Counters of a queue of an export, and the iothread that runs it.
pub(crate) struct ExportQueueStats {
    /// The name of the iothread that runs it.
    pub iothread: String,
    pub stats: Arc<QueueStats>,
}

impl ExportStats {
    /// Counters for `num_queues` queues on these iothreads, all zero.
    pub fn new(num_queues: u16, queue_size: u16, iothreads: &[Arc<IothreadHandle>]) -> Self {
        let queues = (0..num_queues).map(|queue| ExportQueueStats {
            iothread: iothreads[iothread_index_of_queue(queue, iothreads.len())]
                .id()
                .to_owned(),
            stats: Arc::default(),
        });
        ExportStats {
            connected: AtomicBool::new(false),
            queue_size,
            queues: queues.collect(),
        }
    }
}

/// Index of the iothread that runs a queue, among the iothreads of its export: queues are spread over them in turn.
pub(crate) fn iothread_index_of_queue(queue: u16, iothread_count: usize) -> usize {
    usize::from(queue) % iothread_count
}
