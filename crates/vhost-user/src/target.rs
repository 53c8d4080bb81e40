//! The interface between the transport and the device behind it.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use virtqueue::control::{QueueCommand, QueueSetup, StartError};

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
    /// Sends it a command, and does not wait.
    fn send(&self, command: QueueCommand);
    /// What stands behind the device was exchanged: the queue goes on with what is there now. It may have requests in flight, which go
    /// on with what was there before, only if the target is one that [can be switched](crate::FrontEnds::switch). An answer comes when
    /// all is done that it had taken before, or its sender goes with the queue.
    fn renew(&self) -> Receiver<()>;
    /// Takes no more requests. When those in flight are done, the answer says where it stands, as `GET_VRING_BASE` wants it; its
    /// sender goes with what runs the queue.
    fn begin_stop(self: Box<Self>) -> Receiver<u32>;
}

impl dyn StartedQueue + '_ {
    /// Sends it a command. An answer comes, or its sender goes with the queue.
    pub(crate) fn begin<T>(&self, command: impl FnOnce(Sender<T>) -> QueueCommand) -> Receiver<T> {
        let (reply, answer) = channel();
        self.send(command(reply));
        answer
    }

    /// The same, and waits; `None`: the queue is gone.
    pub(crate) fn ask<T>(&self, command: impl FnOnce(Sender<T>) -> QueueCommand) -> Option<T> {
        self.begin(command).recv().ok()
    }
}
