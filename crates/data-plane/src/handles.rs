//! Started queues and socket devices, as the control plane sees them.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use block::Node;
use event_loop::{Remote, Stopped};
use virtqueue::control::{Descriptors, StartError};
use virtqueue::{GuestMemory, QueueLog};

use crate::device::ScsiDisk;
use crate::message::Message;

/// Sends a message to an iothread, and waits for the answer.
pub(crate) fn ask<T>(
    remote: &Remote<Message>,
    message: impl FnOnce(Sender<T>) -> Message,
) -> Result<T, Stopped> {
    let (reply, answer) = mpsc::channel();
    remote.send(message(reply))?;
    answer.recv().map_err(|_| Stopped)
}

/// A socket device on its iothread. Dropping it stops it, waiting for what is in flight.
pub struct SocketDeviceHandle {
    remote: Remote<Message>,
    /// `None` once it was told to stop.
    place: Mutex<Option<u32>>,
    /// Says that it has.
    ending: Mutex<Option<mpsc::Receiver<u32>>>,
}

impl SocketDeviceHandle {
    pub(crate) fn new(remote: Remote<Message>, place: u32) -> Self {
        SocketDeviceHandle {
            remote,
            place: Mutex::new(Some(place)),
            ending: Mutex::default(),
        }
    }

    /// Hands requests over to the engines, or does not.
    pub fn enable(&self, enabled: bool) {
        self.send(|place| Message::Enable(place, enabled));
    }

    /// Returns once all requests are done that were handed over so far.
    pub fn settle(&self) {
        self.ask(Message::Settle);
    }

    /// Goes on with another opening of the disk that has its name; returns once it does. It was disabled before, and
    /// has settled.
    pub fn set_node(&self, node: Arc<Node>) {
        self.ask(|place, reply| Message::SetNode(place, node, reply));
    }

    /// Stops it if no front-end is connected and nothing is in flight; false if not.
    #[must_use]
    pub fn stop_if_idle(&self) -> bool {
        let mut running = lock(&self.place);
        let Some(place) = *running else {
            return true;
        };
        let idle = ask(&self.remote, |reply| Message::StopIfIdle(place, reply));
        // An iothread that is gone has taken the socket device with it.
        let idle = idle.unwrap_or(true);
        if idle {
            *running = None;
        }
        idle
    }

    /// Lets nobody connect until it is told to [go on](Self::go_on); false, and nothing changes, if somebody is there.
    #[must_use]
    pub fn park(&self) -> bool {
        self.ask(Message::Park).unwrap_or(true)
    }

    /// Front-ends are taken again, or for the first time if it was made parked.
    pub fn go_on(&self) {
        self.send(Message::Unpark);
    }

    /// Sends the front-end away and takes no other.
    pub fn begin_stop(&self) {
        if let Some(place) = lock(&self.place).take() {
            let (reply, answer) = mpsc::channel();
            // An error drops the reply, which ends the wait.
            let _ = self.remote.send(Message::Stop(place, reply));
            *lock(&self.ending) = Some(answer);
        }
    }

    /// The same, and waits for what is in flight.
    pub fn stop(&self) {
        self.begin_stop();
        if let Some(ending) = lock(&self.ending).take() {
            let _ = ending.recv();
        }
    }

    fn send(&self, message: impl FnOnce(u32) -> Message) {
        if let Some(place) = *lock(&self.place) {
            // An iothread that is gone has taken the socket device with it.
            let _ = self.remote.send(message(place));
        }
    }

    /// `None`: it is gone.
    fn ask<T>(&self, message: impl FnOnce(u32, Sender<T>) -> Message) -> Option<T> {
        let place = (*lock(&self.place))?;
        ask(&self.remote, |reply| message(place, reply)).ok()
    }
}

impl Drop for SocketDeviceHandle {
    fn drop(&mut self) {
        self.stop();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A started queue. Dropping it stops the queue, waiting for what is in flight.
pub struct VringHandle {
    remote: Remote<Message>,
    /// `None` once stopped.
    place: Option<u32>,
}

impl VringHandle {
    pub(crate) fn new(remote: Remote<Message>, place: u32) -> Self {
        VringHandle {
            remote,
            place: Some(place),
        }
    }

    /// Takes requests, or does not.
    pub fn enable(&self, enabled: bool) {
        self.send(|place| Message::Enable(place, enabled));
    }

    /// The guest's memory is mapped anew; returns once the queue uses the new map for all that it
    /// takes from now on. The old one is kept as long as requests in flight need it.
    pub fn set_memory(&self, memory: Arc<GuestMemory>) {
        self.ask(|place, reply| Message::SetMemory(place, memory, reply));
    }

    /// What the queue writes to the guest's memory is logged there, or is not; returns once that is so.
    pub fn set_log(&self, log: Option<QueueLog>) {
        self.ask(|place, reply| Message::SetLog(place, log, reply));
    }

    /// Returns once all is done that the queue had taken so far. It takes more meanwhile.
    pub fn settle(&self) {
        self.ask(Message::Settle);
    }

    /// The same without waiting: an answer comes, or its sender goes with the iothread.
    #[must_use]
    pub fn begin_settle(&self) -> mpsc::Receiver<()> {
        let (reply, settled) = mpsc::channel();
        self.send(|place| Message::Settle(place, reply));
        settled
    }

    /// Duplicates of the queue's descriptors.
    ///
    /// # Errors
    /// Too many files are open, or the iothread is gone.
    pub fn descriptors(&self) -> io::Result<Descriptors> {
        let found = self.ask(Message::Descriptors);
        found.unwrap_or_else(|| Err(io::Error::other(Stopped)))
    }

    /// Goes on with another node; returns once it does. What is in flight goes the old way to its end, see
    /// [`VringHandle::settle`].
    pub fn set_node(&self, node: Arc<Node>) {
        self.ask(|place, reply| Message::SetNode(place, node, reply));
    }

    /// Goes on with other disks of its controller; returns once it does. The queue was disabled before, and
    /// has settled.
    pub fn set_disks(&self, disks: Vec<ScsiDisk>) {
        self.ask(|place, reply| Message::SetDisks(place, disks, reply));
    }

    /// Signals the guest there.
    pub fn set_call(&self, call: Option<OwnedFd>) {
        self.send(|place| Message::SetCall(place, call));
    }

    /// Tells of a broken queue there.
    pub fn set_err(&self, err: Option<OwnedFd>) {
        self.send(|place| Message::SetErr(place, err));
    }

    /// Listens for kicks there.
    ///
    /// # Errors
    /// [`StartError::Kick`] when the descriptor cannot be watched; the old one still is then.
    pub fn set_kick(&self, kick: Option<OwnedFd>) -> Result<(), StartError> {
        let watched = self.ask(|place, reply| Message::SetKick(place, kick, reply));
        watched.unwrap_or(Err(StartError::Stopped))
    }

    /// Takes no more requests, waits for those in flight and says where the queue stands, as
    /// `GET_VRING_BASE` wants it; `None` when the iothread is gone.
    #[must_use]
    pub fn stop(mut self) -> Option<u32> {
        self.stop_now()
    }

    /// The same where nobody asks for that: requests that wait after an error stay in the queue's record, if it has one, and
    /// are taken again by whoever starts it next. It does not wait: an answer comes, or its sender goes.
    #[must_use]
    pub fn begin_leave(mut self) -> mpsc::Receiver<u32> {
        self.send(Message::LeaveParked);
        self.begin_stop()
    }

    fn begin_stop(&mut self) -> mpsc::Receiver<u32> {
        let (reply, answer) = mpsc::channel();
        if let Some(place) = self.place.take() {
            // An iothread that is gone has taken the queue with it, and the sender.
            let _ = self.remote.send(Message::Stop(place, reply));
        }
        answer
    }

    fn stop_now(&mut self) -> Option<u32> {
        self.begin_stop().recv().ok()
    }

    fn send(&self, message: impl FnOnce(u32) -> Message) {
        if let Some(place) = self.place {
            // An iothread that is gone has taken the queue with it.
            let _ = self.remote.send(message(place));
        }
    }

    /// `None`: it is gone.
    fn ask<T>(&self, message: impl FnOnce(u32, Sender<T>) -> Message) -> Option<T> {
        let place = self.place?;
        ask(&self.remote, |reply| message(place, reply)).ok()
    }
}

impl Drop for VringHandle {
    fn drop(&mut self) {
        self.stop_now();
    }
}
