//! Counters of an export, for as long as it exists: front-ends come and go, and queues with them.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use iothread::DataThread;
use telemetry::queue::QueueStats;

/// An export's figures.
pub(crate) struct Figures {
    /// A front-end is connected.
    pub connected: AtomicBool,
    /// Entries that a queue may have.
    pub queue_size: u16,
    /// Those of each queue that it may have.
    pub queues: Vec<QueueFigures>,
}

/// A queue's figures.
pub(crate) struct QueueFigures {
    /// The iothread that runs it.
    pub iothread: String,
    pub stats: Arc<QueueStats>,
}

impl Figures {
    /// Nothing counted yet. Queue *i* runs on iothread *i* modulo their count.
    pub fn new(num_queues: u16, queue_size: u16, iothreads: &[Arc<DataThread>]) -> Self {
        let in_turn = iothreads.iter().cycle().take(num_queues.into());
        let queues = in_turn.map(|iothread| QueueFigures {
            iothread: iothread.id().to_owned(),
            stats: Arc::default(),
        });
        Figures {
            connected: AtomicBool::new(false),
            queue_size,
            queues: queues.collect(),
        }
    }
}
