//! What the transport needs of the device behind it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use virtqueue::control::{Descriptors, QueueSetup, StartError};
use virtqueue::{GuestMemory, QueueLog};

/// A device that a front-end may be connected to.
///
/// All calls come from the control thread of its server, one at a time.
pub trait Target: Send + Sync {
    /// What messages call it.
    fn name(&self) -> &str;
    /// A front-end has connected, or has gone with all its queues.
    fn connected(&self, connected: bool);
    /// The device's own feature bits, without those of the ring and of the transport.
    fn features(&self) -> u64;
    /// The driver has chosen among them. `settle` as for [`Target::write_config`].
    fn set_features(&self, acked: u64, settle: &dyn Fn());
    /// Queues.
    fn num_queues(&self) -> u16;
    /// Entries that a queue may have at most.
    fn max_queue_size(&self) -> u16;
    /// Whether packed queues are offered.
    fn packed_queues(&self) -> bool;
    /// The configuration space; what lies behind its end reads as zero.
    fn config(&self) -> Vec<u8>;
    /// The driver writes to it; false when it may not. `settle` waits until the queues have done all
    /// that they had taken before it was called.
    fn write_config(&self, offset: usize, bytes: &[u8], settle: &dyn Fn()) -> bool;
    /// Back to how it was made. All queues are stopped.
    fn reset(&self);
    /// Starts the queue of this number.
    ///
    /// # Errors
    /// [`StartError`].
    fn start_queue(
        &self,
        index: u16,
        setup: QueueSetup,
    ) -> Result<Box<dyn StartedQueue>, StartError>;
    /// How long a front-end that takes the record of what is in flight along waits for a queue that stops, before its connection
    /// ends instead; `None`: as long as it takes.
    fn stop_patience(&self) -> Option<Duration> {
        None
    }
}

/// A queue that runs. Dropping it stops it.
pub trait StartedQueue: Send {
    /// Takes requests, or does not.
    fn enable(&self, enabled: bool);
    /// The guest's memory is mapped anew.
    fn set_memory(&self, memory: Arc<GuestMemory>);
    /// What it writes to the guest's memory is logged there, or is not. Returns once that is so.
    fn set_log(&self, log: Option<QueueLog>);
    /// Waits until all is done that was taken so far; takes more meanwhile.
    fn settle(&self);
    /// The same without waiting: an answer comes, or its sender goes.
    fn begin_settle(&self) -> Receiver<()>;
    /// Duplicates of its descriptors.
    ///
    /// # Errors
    /// Too many files are open.
    fn descriptors(&self) -> io::Result<Descriptors>;
    /// What stands behind the device was exchanged: the queue goes on with what is there now. It may have requests in flight, which go
    /// on with what was there before, only if the target is one that [can be switched](crate::FrontEnds::switch).
    fn renew(&self);
    /// Signals the guest there.
    fn set_call(&self, call: Option<OwnedFd>);
    /// Tells of a broken queue there.
    fn set_err(&self, err: Option<OwnedFd>);
    /// Listens for kicks there.
    ///
    /// # Errors
    /// When the descriptor cannot be watched.
    fn set_kick(&self, kick: Option<OwnedFd>) -> Result<(), StartError>;
    /// Takes no more requests, waits for those in flight, and says where it stands, as
    /// `GET_VRING_BASE` wants it.
    fn stop(self: Box<Self>) -> Option<u32>;
    /// The same for a front-end that has gone, or is to go: it hears of nothing, and keeps the record of what was taken.
    /// What is not done, and would not be for long, stays in there for whoever starts the queue next.
    /// Whoever has no record just stops.
    ///
    /// It does not wait: an answer comes, or its sender goes.
    fn begin_leave(self: Box<Self>) -> Receiver<u32> {
        let (sender, answer) = channel();
        if let Some(base) = self.stop() {
            // Whoever does not wait for it has its reasons.
            let _ = sender.send(base);
        }
        answer
    }
}
