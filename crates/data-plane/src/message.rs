//! What the control plane says to an iothread. None of it is on a request's way.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use block::Node;
use engine::PoolError;
use virtqueue::control::{Descriptors, StartError};
use virtqueue::{GuestMemory, QueueLog};

use crate::affinity::AffinityError;
use crate::device::{ScsiDisk, ScsiMessage};
use crate::parked_requests::Resume;
use crate::socket_device::SocketDevice;
use crate::vring::VringSetup;

/// What the control plane sends. A `u32` is the place of a started queue.
pub enum Message {
    /// Start a queue; the answer is its place.
    Start(Box<VringSetup>, Sender<Result<u32, StartError>>),
    /// Start a socket device with these disks; the answer is its place, which the other messages take as well.
    StartSocketDevice(Box<dyn SocketDevice>, Vec<Arc<Node>>, Sender<u32>),
    /// Stop a socket device if no front-end is connected; the answer says whether none was.
    StopIfIdle(u32, Sender<bool>),
    /// Take no front-end of a socket device if none is connected; the answer says whether none was.
    Park(u32, Sender<bool>),
    /// Let front-ends connect again.
    Unpark(u32),
    /// Take no more requests, wait for those in flight; the answer is where it stands.
    Stop(u32, Sender<u32>),
    /// Requests that are parked when the queue stops stay in its record, if it has one.
    LeaveParked(u32),
    /// Take requests, or do not.
    Enable(u32, bool),
    /// The guest's memory is mapped anew; the answer says that the queue uses the new map.
    SetMemory(u32, Arc<GuestMemory>, Sender<()>),
    /// What the queue writes to the guest's memory is logged there, or is not; the answer says that it is so.
    SetLog(u32, Option<QueueLog>, Sender<()>),
    /// Answer with the queue's descriptors.
    Descriptors(u32, Sender<io::Result<Descriptors>>),
    /// Answer when all that was taken so far is done.
    Settle(u32, Sender<()>),
    /// The queue goes on with another node in the place of its own; the answer says that it does. What is in flight goes the old
    /// way to its end: [`Message::Settle`] says when.
    SetNode(u32, Arc<Node>, Sender<()>),
    /// These are the controller's disks from now on; the queue is disabled and has nothing in flight. The answer says that
    /// they are.
    SetDisks(u32, Vec<ScsiDisk>, Sender<()>),
    /// A message from another queue of the same SCSI controller.
    ToScsi(u32, ScsiMessage),
    /// Retry or answer parked requests.
    Resume(u32, Resume),
    /// Report requests that were admitted before the second time, in ticks, and not before the first, and are not done.
    ReportLate(u32, u64, u64),
    /// Signal the guest there.
    SetCall(u32, Option<OwnedFd>),
    /// Listen for kicks there; the answer says whether that is possible.
    SetKick(u32, Option<OwnedFd>, Sender<Result<(), StartError>>),
    /// Tell of a broken queue there.
    SetErr(u32, Option<OwnedFd>),
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
