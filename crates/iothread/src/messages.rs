//! Messages between the control plane and an iothread: commands to it, and reports from its queues. No request waits for one.

mod parked_requests;
mod reports;
mod setup;

use std::sync::Arc;
use std::sync::mpsc::Sender;

use block::Node;
use engine::PoolError;
use virtqueue::control::{QueueCommand, StartError};

use crate::affinity::AffinityError;
use crate::socket_device::SocketDevice;

pub(crate) use parked_requests::QueueRegistration;
pub use parked_requests::{IoStatus, Resume, WaitingRequests};
pub use reports::{
    DroppedReports, ExportReports, IoErrors, QueueReports, Report, Reports, mailbox,
};
pub use setup::{DeviceSetup, ScsiDisk, ScsiMessage, ScsiSetup, VringSetup};

/// A message to an iothread. A `u32` is the place of a started queue or socket device. Commands to a place where there is none are
/// dropped, with the senders of their answers.
pub enum Message {
    /// Start a queue; the answer is its place.
    Start(Box<VringSetup>, Sender<Result<u32, StartError>>),
    /// Start a socket device with these disks; the answer is its place.
    StartSocketDevice(Box<dyn SocketDevice>, Vec<Arc<Node>>, Sender<u32>),
    /// Stop a queue or a socket device: take no more requests, wait for those in flight; the answer is where it stands.
    Stop(u32, Sender<u32>),
    /// A command for a queue.
    Queue(u32, QueueCommand),
    /// A command for the device of a queue.
    Device(u32, DeviceCommand),
    /// A command for a socket device.
    SocketDevice(u32, SocketDeviceCommand),
    /// Change the batch limit of Linux AIO.
    SetAioMaxBatch(u32),
    /// Change how many requests an engine has in flight.
    SetAioMaxEvents(u32),
    /// Change how many worker threads stay, and are there at most; the answer says whether that can be.
    SetThreadPool(u32, u32, Sender<Result<(), PoolError>>),
    /// Run on these CPUs, or where the process may; the answer says whether that can be.
    SetCpuAffinity(String, Vec<u16>, Sender<Result<(), AffinityError>>),
    /// Answer, to show that the loop goes round.
    Ping(Sender<()>),
}

/// A command that concerns the disks behind a queue's device; its front-end does not know of it.
pub enum DeviceCommand {
    /// The queue goes on with another node in the place of its own. The answer says that all is done that it had taken before:
    /// nothing uses the old node any more. It does not wait for what is taken later, which the new node may delay.
    SetNode(Arc<Node>, Sender<()>),
    /// The same for the controller's disks. If units have come or gone, the queue is disabled and has nothing in flight.
    SetDisks(Vec<ScsiDisk>, Sender<()>),
    /// A message from another queue of the same SCSI controller.
    ToScsi(ScsiMessage),
    /// Retry or answer parked requests.
    Resume(Resume),
    /// Report requests that were admitted before the second time, in ticks, and not before the first, and are not done.
    ReportLate(u64, u64),
}

/// A command for a socket device.
pub enum SocketDeviceCommand {
    /// Submit requests to the engines, or do not.
    Enable(bool),
    /// Answer when all requests are done that were submitted so far.
    Settle(Sender<()>),
    /// Go on with another node in the place of those that have its name. The answer says that all is done that was submitted before.
    SetNode(Arc<Node>, Sender<()>),
    /// Stop if no front-end is connected and nothing is in flight; the answer says whether that was so.
    StopIfIdle(Sender<bool>),
    /// Take no front-end if none is connected; the answer says whether none was.
    Park(Sender<bool>),
    /// Take front-ends again, or for the first time if it was made parked.
    Unpark,
}
