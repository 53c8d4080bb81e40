//! The seam between an iothread and the devices whose queues it runs.
//!
//! An iothread knows rings, disks and descriptors, and drives the queues of all devices alike: it admits a budget of requests,
//! completes slices of block requests, and ends the batch before it signals the guest. What a request means is the
//! device's. All calls come from the iothread, and none blocks.

mod blk;
mod parked;
mod scsi;

use std::sync::Arc;

use blk::BlkQueue;
use block::{AttachedDisk, IoContext, Node};
use engine::Completion;
use scsi::ScsiQueue;
use telemetry::queue::{Admission, AdmitTime, QueueName, QueueStats};
use virtqueue::{Chain, GuestMemory};

use crate::event_loop::Remote;
use crate::messages::{DeviceSetup, Message, QueueReports, Resume, ScsiDisk, ScsiMessage};

/// The parts of a queue and its iothread that its device works with.
pub(crate) struct QueueContext<'a> {
    pub ring: &'a mut virtqueue::Queue,
    pub memory: &'a Arc<GuestMemory>,
    pub io: &'a mut IoContext,
    /// Its place on its iothread.
    pub place: u32,
    /// Where failed requests are reported, beside the log.
    pub reports: Option<&'a QueueReports>,
    /// Whether the queue may take requests.
    pub enabled: bool,
    /// In ticks.
    pub now: u64,
}

/// Requests of the guest that a queue has.
#[derive(Clone, Copy)]
pub(crate) struct InFlight {
    /// All of them.
    pub requests: u32,
    /// Those that the disk has failed, and that wait for a decision.
    pub parked: u32,
}

/// The way in which parked requests leave a queue that stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// They stay in the in-flight region, if there is one.
    Record,
    /// They are given back to the ring if that is possible, else answered as failed.
    Return,
}

/// A guest broke a queue: the reason.
pub(crate) type Broken = Box<dyn std::error::Error>;

/// The queue of a device, without its ring.
pub(crate) trait QueueDevice {
    fn name(&self) -> &QueueName;

    fn stats(&self) -> &QueueStats;

    /// Its disks, when it ends.
    fn into_disks(self: Box<Self>) -> Vec<AttachedDisk>;

    fn in_flight(&self) -> InFlight;

    /// Takes up to `budget` requests from the ring.
    fn admit(
        &mut self,
        cx: QueueContext<'_>,
        chain: &mut Chain,
        budget: usize,
    ) -> Result<Admission, Broken>;

    /// Whether used entries were pushed by anything but completions since this was last asked.
    fn take_answered(&mut self) -> bool;

    /// Block requests of this queue are done.
    fn complete(&mut self, done: &[Completion], cx: QueueContext<'_>);

    /// What completed so far counts in the statistics. True if requests wait for room in an engine.
    fn end_batch(&mut self) -> bool;

    /// Submits what waited for room in an engine. False: something still does.
    fn submit_deferred(&mut self, cx: QueueContext<'_>) -> bool;

    /// Retries parked requests, or answers them as failed. False: some wait for room.
    fn resume_parked(&mut self, _how: Resume, _cx: QueueContext<'_>) -> bool {
        true
    }

    /// The queue was enabled. As for [`resume_parked`](Self::resume_parked).
    fn enabled(&mut self, _cx: QueueContext<'_>) -> bool {
        true
    }

    /// No chain is popped any more.
    fn end_admissions(&mut self, _ring: &mut virtqueue::Queue) {}

    /// The queue has stopped: only parked requests are left.
    fn stop(&mut self, _how: Stop, _cx: QueueContext<'_>) {}

    /// Whether chains are requests, which have to be answered.
    fn has_requests(&self) -> bool {
        true
    }

    /// Requests that are admitted from now on are of a new generation, which begins at the time that is returned.
    fn begin_generation(&mut self) -> AdmitTime;

    /// Requests of older generations that have left the queue: when they were admitted, and how many.
    fn take_old(&mut self) -> Option<(AdmitTime, u32)>;

    /// Parked requests of older generations.
    fn parked_of_old(&self) -> u32 {
        0
    }

    /// Reports requests that were admitted in this time and are not done; parked ones were reported.
    fn report_late(&self, _after: u64, _until: u64, _now: u64, _reports: &QueueReports) {}

    /// The disk whose backend may have the guest's memory registered.
    fn registered_disk(&self) -> Option<&AttachedDisk> {
        None
    }

    /// Another disk takes the place of the one that it has, which is returned. Requests may be in flight.
    fn set_disk(&mut self, disk: AttachedDisk) -> AttachedDisk {
        disk
    }

    /// Other disks take the place of those that it has, which are returned. Requests may be in flight if the addresses stay.
    fn set_disks(&mut self, _: Vec<ScsiDisk>, disks: Vec<AttachedDisk>) -> Vec<AttachedDisk> {
        disks
    }

    /// A message of another queue of the device. False: it was for an earlier queue.
    fn handle_message(&mut self, _message: ScsiMessage, _cx: QueueContext<'_>) -> bool {
        false
    }
}

/// The queue of a device for a ring of `size` entries, at this place of the iothread that `remote` leads to. `attach` attaches to a
/// disk.
pub(crate) fn new_queue(
    setup: DeviceSetup,
    name: QueueName,
    size: u16,
    place: u32,
    stats: Arc<QueueStats>,
    remote: &Remote<Message>,
    mut attach: impl FnMut(&Arc<Node>) -> AttachedDisk,
) -> Box<dyn QueueDevice> {
    match setup {
        DeviceSetup::Blk { device, node } => {
            let queue = virtio_blk::Queue::new(name, device, size, &stats);
            Box::new(BlkQueue::new(queue, attach(&node)))
        }
        DeviceSetup::Scsi(setup) => Box::new(ScsiQueue::new(
            setup,
            name,
            size,
            place,
            stats,
            remote.clone(),
            attach,
        )),
    }
}
