//! Messages between the control plane and an iothread: commands to it, and reports from its queues. No request waits for one.

mod export_queues;
mod queue_registration;
mod reports;
mod setup;

use std::sync::Arc;
use std::sync::mpsc::Sender;

use block::Node;
use engine::PoolError;
use virtqueue::queue_setup::{QueueCommand, StartError};

use crate::affinity::AffinityError;
use crate::socket_device::SocketDevice;

pub use export_queues::{ExportQueues, IoStatus, ResumeAction};
pub(crate) use queue_registration::QueueRegistration;
pub use reports::{
    DroppedReports, ExportReporter, LastIoError, QueueReporter, Report, ReportSender,
    ReportedExport, report_channel,
};
pub use setup::{DeviceSetup, ScsiDisk, ScsiMessage, ScsiSetup, VringSetup};

/// A message to an iothread. A `u32` is the index of a queue or socket device among the sources of the
/// iothread. Commands to an unused index are dropped, with the senders for their answers.
pub enum Message {
    /// Start a queue; the answer is its index.
    Start(Box<VringSetup>, Sender<Result<u32, StartError>>),
    /// Start a socket device with these disks; the answer is its index.
    StartSocketDevice(Box<dyn SocketDevice>, Vec<Arc<Node>>, Sender<u32>),
    /// Stop a queue or a socket device: admit no more requests, wait for those in flight; the answer is its base.
    Stop(u32, Sender<u32>),
    /// A command for a queue.
    Queue(u32, QueueCommand),
    /// A command for the device of a queue.
    Device(u32, DeviceCommand),
    /// A command for a socket device.
    SocketDevice(u32, SocketDeviceCommand),
    /// Change the batch limit of Linux AIO.
    SetAioMaxBatch(u32),
    /// Change the number of requests that an engine may have in flight.
    SetAioMaxEvents(u32),
    /// Change the least and the most worker threads; the answer is whether they are valid.
    SetThreadPool(u32, u32, Sender<Result<(), PoolError>>),
    /// Run on these CPUs, or where the process may; the answer is whether that is possible.
    SetCpuAffinity(String, Vec<u16>, Sender<Result<(), AffinityError>>),
    /// Answer, to show that the loop is alive.
    Ping(Sender<()>),
}

/// A command that concerns the disks behind a queue's device. It does not come from the front-end.
pub enum DeviceCommand {
    /// Replace the node of a queue. The answer comes when all requests that were admitted before are done, and nothing uses the old
    /// node any more. It does not wait for later requests, which the new node may delay.
    SetNode(Arc<Node>, Sender<()>),
    /// The same for the disks of a controller. If units were added or removed, the queue is disabled and has nothing in flight.
    SetDisks(Vec<ScsiDisk>, Sender<()>),
    /// A message from another queue of the same SCSI controller.
    ToScsi(ScsiMessage),
    /// Retry parked requests, or answer them as failed.
    Resume(ResumeAction),
    /// Report unfinished requests that were admitted from the first time on and before the second, in ticks.
    ReportLate(u64, u64),
}

/// A command for a socket device.
pub enum SocketDeviceCommand {
    /// Allow or forbid that it submits requests.
    Enable(bool),
    /// Run a turn: another thread has changed something that the device reads.
    Run,
    /// Answer when all requests that were submitted so far are done.
    Settle(Sender<()>),
    /// Replace nodes of the same name by this one. The answer comes when all requests that were submitted before are done.
    SetNode(Arc<Node>, Sender<()>),
    /// Stop if no front-end is connected and nothing is in flight; the answer is whether that was so.
    StopIfIdle(Sender<bool>),
    /// Accept no front-end if none is connected; the answer is whether none was.
    PauseAccepting(Sender<bool>),
    /// Accept front-ends again, or for the first time if it was created paused.
    ResumeAccepting,
}
