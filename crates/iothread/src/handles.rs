//! Handles of started queues and socket devices, for the control plane: send them commands, and stop them.

use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Mutex, MutexGuard, PoisonError};

use virtqueue::queue_setup::QueueCommand;

use crate::event_loop::{Remote, StoppedError};
use crate::messages::{DeviceCommand, Message, SocketDeviceCommand};

/// Sends a message to an iothread, and waits for the answer.
pub(crate) fn send_and_wait<T>(
    remote: &Remote<Message>,
    message: impl FnOnce(Sender<T>) -> Message,
) -> Result<T, StoppedError> {
    let (reply, answer) = mpsc::channel();
    remote.send(message(reply))?;
    answer.recv().map_err(|_| StoppedError)
}

/// Stops the queue or socket device with this index. Its base is received when it has stopped; the sender is dropped
/// with the iothread.
fn begin_stop(remote: &Remote<Message>, source_index: u32) -> Receiver<u32> {
    let (reply, answer) = mpsc::channel();
    // An error drops the reply, which ends the wait.
    let _ = remote.send(Message::Stop(source_index, reply));
    answer
}

/// A socket device on its iothread. Dropping it stops it, waiting for what is in flight.
pub struct SocketDeviceHandle {
    remote: Remote<Message>,
    /// `None` once its stop was sent.
    source_index: Mutex<Option<u32>>,
    /// Receives when it has stopped. `None` before its stop was sent, and when it has stopped.
    ending: Mutex<Option<Receiver<u32>>>,
}

impl SocketDeviceHandle {
    pub(crate) fn new(remote: Remote<Message>, source_index: u32) -> Self {
        SocketDeviceHandle {
            remote,
            source_index: Mutex::new(Some(source_index)),
            ending: Mutex::default(),
        }
    }

    /// Sends it a command.
    pub fn send_unless_stopped(&self, command: SocketDeviceCommand) {
        // Under the lock: the index may be reused as soon as the stop was sent.
        if let Some(source_index) = *lock_ignoring_poison(&self.source_index) {
            // An iothread that is gone has taken the socket device with it.
            let _ = self
                .remote
                .send(Message::SocketDevice(source_index, command));
        }
    }

    /// Sends it a command. The answer is received later; its sender is dropped if the device has stopped, or stops before.
    pub fn send_for_reply<T>(
        &self,
        command: impl FnOnce(Sender<T>) -> SocketDeviceCommand,
    ) -> Receiver<T> {
        let (reply, answer) = mpsc::channel();
        self.send_unless_stopped(command(reply));
        answer
    }

    /// Sends it a command and waits for the answer; `None`: it has stopped, and nothing of it is in flight. Another thread may stop it
    /// meanwhile, or before.
    pub fn send_and_wait<T>(
        &self,
        command: impl FnOnce(Sender<T>) -> SocketDeviceCommand,
    ) -> Option<T> {
        let answer = self.send_for_reply(command).recv().ok();
        if answer.is_none() {
            self.wait_until_stopped();
        }
        answer
    }

    /// Stops it if no front-end is connected and nothing is in flight; false if not. True also if its stop was sent before:
    /// [`stop`](Self::stop) waits for its requests.
    #[must_use]
    pub fn stop_if_idle(&self) -> bool {
        let mut running = lock_ignoring_poison(&self.source_index);
        let Some(source_index) = *running else {
            return true;
        };
        let message =
            |reply| Message::SocketDevice(source_index, SocketDeviceCommand::StopIfIdle(reply));
        // An iothread that is gone has taken the socket device with it.
        let idle = send_and_wait(&self.remote, message).unwrap_or(true);
        if idle {
            *running = None;
        }
        idle
    }

    /// Begins to stop it: disconnects its front-end and accepts no other.
    pub fn begin_stop(&self) {
        // Locked until `ending` is set: who finds it stopped can wait for its end.
        let mut running = lock_ignoring_poison(&self.source_index);
        if let Some(source_index) = running.take() {
            *lock_ignoring_poison(&self.ending) = Some(begin_stop(&self.remote, source_index));
        }
    }

    /// Stops it and waits for requests in flight.
    pub fn stop(&self) {
        self.begin_stop();
        self.wait_until_stopped();
    }

    /// Waits for the requests in flight if its stop was sent; otherwise returns at once.
    fn wait_until_stopped(&self) {
        // Locked until it has stopped: others wait for that as well.
        let mut ending = lock_ignoring_poison(&self.ending);
        if let Some(ending) = ending.take() {
            let _ = ending.recv();
        }
    }
}

impl Drop for SocketDeviceHandle {
    fn drop(&mut self) {
        self.stop();
    }
}

fn lock_ignoring_poison<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A started queue. Dropping it stops the queue, waiting for what is in flight.
pub struct VringHandle {
    remote: Remote<Message>,
    source_index: u32,
    stopped: bool,
}

impl VringHandle {
    pub(crate) fn new(remote: Remote<Message>, source_index: u32) -> Self {
        VringHandle {
            remote,
            source_index,
            stopped: false,
        }
    }

    /// Sends it a command.
    pub fn send(&self, command: QueueCommand) {
        // An iothread that is gone has taken the queue with it.
        let _ = self.remote.send(Message::Queue(self.source_index, command));
    }

    /// Sends it a command and waits for the answer; `None`: it has stopped.
    pub fn send_and_wait<T>(&self, command: impl FnOnce(Sender<T>) -> QueueCommand) -> Option<T> {
        let message = |reply| Message::Queue(self.source_index, command(reply));
        send_and_wait(&self.remote, message).ok()
    }

    /// Sends its device a command. The answer is received, or its sender is dropped with the queue.
    #[must_use]
    pub fn begin_device_command<T>(
        &self,
        command: impl FnOnce(Sender<T>) -> DeviceCommand,
    ) -> Receiver<T> {
        let (reply, answer) = mpsc::channel();
        // An iothread that is gone has taken the queue with it.
        let _ = self
            .remote
            .send(Message::Device(self.source_index, command(reply)));
        answer
    }

    /// Begins to stop it. When the requests in flight are done, its base is received, as `GET_VRING_BASE` returns it; the sender is
    /// dropped with the iothread.
    #[must_use]
    pub fn begin_stop(mut self) -> Receiver<u32> {
        self.stopped = true;
        begin_stop(&self.remote, self.source_index)
    }

    /// Stops it and returns its base; `None` when the iothread has stopped.
    #[must_use]
    pub fn stop(self) -> Option<u32> {
        self.begin_stop().recv().ok()
    }
}

impl Drop for VringHandle {
    fn drop(&mut self) {
        if !self.stopped {
            let _ = begin_stop(&self.remote, self.source_index).recv();
        }
    }
}
