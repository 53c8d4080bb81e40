//! The interface between the transport and the device behind it: [`VirtioDevice`] is a device, [`StartedQueue`] one of
//! its queues that runs.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use virtqueue::queue_setup::{QueueCommand, QueueSetup, StartError};

/// A device that a front-end may be connected to.
///
/// All calls of a server come one at a time.
pub trait VirtioDevice: Send + Sync {
    /// Its name in messages: the id of its export.
    fn name(&self) -> &str;
    /// A front-end has connected, or has disconnected and its queues have stopped.
    fn on_connection_change(&self, connected: bool);
    /// The device's own feature bits, without those of the ring and of the transport.
    fn features(&self) -> u64;
    /// Sets the feature bits that the driver has acknowledged. `settle` as for [`VirtioDevice::write_config_space`].
    fn set_features(&self, acked: u64, settle: &dyn Fn());
    /// The number of queues.
    fn num_queues(&self) -> u16;
    /// Most entries of a queue.
    fn max_queue_size(&self) -> u16;
    /// Whether packed queues are offered.
    fn offers_packed_queues(&self) -> bool;
    /// The configuration space; bytes behind its end read as zero.
    fn config_space(&self) -> Vec<u8>;
    /// Writes to the configuration space; false when the driver may not. `settle` waits for the requests that
    /// the queues had taken before the call.
    fn write_config_space(&self, offset: usize, bytes: &[u8], settle: &dyn Fn()) -> bool;
    /// Resets the device to its initial state. All queues are stopped.
    fn reset(&self);
    /// Called before a queue starts while none runs.
    ///
    /// # Errors
    /// Why no queue can run. The front-end is disconnected.
    fn before_first_queue(&self) -> Result<(), String> {
        Ok(())
    }
    /// Called when all queues have stopped, before the front-end gets the reply to the message that has stopped the last one.
    /// `is_migrating`: the front-end logs dirty pages, and the guest is about to run elsewhere.
    fn after_last_queue(&self, _is_migrating: bool) {}
    /// Starts the queue of this number.
    ///
    /// # Errors
    /// [`StartError`].
    fn start_queue(
        &self,
        index: u16,
        setup: QueueSetup,
    ) -> Result<Box<dyn StartedQueue>, StartError>;
    /// How long a front-end that keeps an in-flight region waits for a queue that stops, before it is disconnected
    /// instead; `None`: without a limit.
    fn stop_timeout_with_inflight_region(&self) -> Option<Duration> {
        None
    }
}

/// A running queue. Dropping it stops it.
pub trait StartedQueue: Send {
    /// Sends a command, and does not wait.
    fn send_command(&self, command: QueueCommand);
    /// Makes the queue use the node that is behind the device now, after an exchange. The queue may have requests in
    /// flight only if the device [can be switched](crate::FrontEndHandle::exchange_while_running); those complete on
    /// the previous node. The reply comes when all requests are done that the queue had taken before; the channel
    /// closes if the queue is gone.
    fn switch_node(&self) -> Receiver<()>;
    /// Takes no more requests. When those in flight are done, the reply is the queue's base, in the form of `GET_VRING_BASE`; the
    /// channel closes if the queue's thread is gone.
    fn begin_stop(self: Box<Self>) -> Receiver<u32>;
}

impl dyn StartedQueue + '_ {
    /// Sends a command with a channel for the reply, which closes if the queue is gone.
    pub(crate) fn send_for_reply<T>(
        &self,
        command: impl FnOnce(Sender<T>) -> QueueCommand,
    ) -> Receiver<T> {
        let (sender, reply) = channel();
        self.send_command(command(sender));
        reply
    }

    /// Sends a command and waits for the reply; `None`: the queue is gone.
    pub(crate) fn send_and_wait<T>(
        &self,
        command: impl FnOnce(Sender<T>) -> QueueCommand,
    ) -> Option<T> {
        self.send_for_reply(command).recv().ok()
    }
}
