//! Interface between an iothread and the devices whose queues it runs.
//!
//! An iothread knows rings, disks and descriptors, and drives the queues of all devices alike: it admits a budget of requests,
//! completes slices of block requests, and ends the batch before it signals the guest. The device interprets the
//! requests. All calls come from the iothread, and none blocks.

mod blk;
mod parked;
mod scsi;

use std::sync::Arc;

use blk::BlkQueue;
use block::{AttachedDisk, IoContext, Node};
use engine::Completion;
use scsi::ScsiQueue;
use telemetry::queue::{AdmissionEnd, AdmitTimeAndKind, QueueName, QueueStats};
use virtqueue::{Chain, GuestMemory};

use crate::event_loop::Remote;
use crate::messages::{DeviceSetup, Message, QueueReporter, ResumeAction, ScsiDisk, ScsiMessage};

/// Parts of a queue and its iothread that its device uses.
pub(crate) struct QueueContext<'a> {
    pub ring: &'a mut virtqueue::Queue,
    pub memory: &'a Arc<GuestMemory>,
    pub io: &'a mut IoContext,
    /// Its index among the sources of its iothread.
    pub source_index: u32,
    /// Receives reports of failed requests, beside the log.
    pub reports: Option<&'a QueueReporter>,
    /// Whether the queue may take requests.
    pub enabled: bool,
    /// The current time, in ticks.
    pub now: u64,
}

/// Numbers of unfinished requests of a queue.
#[derive(Clone, Copy)]
pub(crate) struct InFlightCounts {
    /// All of them.
    pub requests: u32,
    /// Parked ones, which the disk has failed.
    pub parked: u32,
}

/// Handling of parked requests when their queue stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ParkedStopAction {
    /// They stay in the in-flight region, if there is one.
    LeaveInRegion,
    /// They are returned to the ring if that is possible, else answered as failed.
    ReturnToRing,
}

/// Error of a guest that broke its queue.
pub(crate) type BrokenQueueError = Box<dyn std::error::Error>;

/// The queue of a device, without its ring.
pub(crate) trait QueueDevice {
    fn queue_name(&self) -> &QueueName;

    fn queue_stats(&self) -> &QueueStats;

    fn disks(&self) -> &[AttachedDisk];

    /// Its disks, when it ends.
    fn into_disks(self: Box<Self>) -> Vec<AttachedDisk>;

    fn in_flight_counts(&self) -> InFlightCounts;

    /// Takes up to `budget` requests from the ring.
    fn admit(
        &mut self,
        cx: QueueContext<'_>,
        chain: &mut Chain,
        budget: usize,
    ) -> Result<AdmissionEnd, BrokenQueueError>;

    /// Whether used entries were pushed other than by completions since the last call.
    fn take_pushed_outside_completions(&mut self) -> bool;

    /// Completes block requests of this queue.
    fn complete(&mut self, done: &[Completion], cx: QueueContext<'_>);

    /// Counts the completions so far in the statistics. True if requests wait for room in an engine.
    fn count_completions_and_has_waiting(&mut self) -> bool;

    /// Submits requests that waited for room in an engine. False: some still wait.
    fn submit_waiting(&mut self, cx: QueueContext<'_>) -> bool;

    /// Retries parked requests, or answers them as failed. False: some wait for room.
    fn retry_or_fail_parked(&mut self, _how: ResumeAction, _cx: QueueContext<'_>) -> bool {
        true
    }

    /// Handles that the queue was enabled. As for [`retry_or_fail_parked`](Self::retry_or_fail_parked).
    fn on_enabled(&mut self, _cx: QueueContext<'_>) -> bool {
        true
    }

    /// Handles that no chain is popped any more.
    fn on_no_more_admissions(&mut self, _ring: &mut virtqueue::Queue) {}

    /// Handles that the queue has stopped: only parked requests are left.
    fn leave_return_or_fail_parked(&mut self, _how: ParkedStopAction, _cx: QueueContext<'_>) {}

    /// Whether chains are requests that have to be answered.
    fn chains_are_requests(&self) -> bool {
        true
    }

    /// Begins a generation of requests, which have admit times from the returned one on.
    fn begin_generation(&mut self) -> AdmitTimeAndKind;

    /// The admit time and the number of requests of an older generation that have left the queue.
    fn pop_finished_of_older_generation(&mut self) -> Option<(AdmitTimeAndKind, u32)>;

    /// Slots of requests in flight that were admitted before the current generation: the lower halves of their tokens.
    fn slots_of_older_generations(&self) -> Vec<u32>;

    /// Number of requests of older generations that the disk has failed and the error policy keeps until they are resumed. A
    /// queue settles without them.
    fn older_generation_parked_count(&self) -> u32 {
        0
    }

    /// Reports unfinished requests that were admitted in this period, but not parked ones.
    fn report_late_except_parked(
        &self,
        _after: u64,
        _until: u64,
        _now: u64,
        _reports: &QueueReporter,
    ) {
    }

    /// The disk whose backend may register the guest's memory.
    fn disk_for_fixed_buffers(&self) -> Option<&AttachedDisk> {
        None
    }

    /// Replaces its disk and returns the old one. Requests may be in flight.
    fn replace_disk(&mut self, disk: AttachedDisk) -> AttachedDisk {
        disk
    }

    /// Replaces its disks and returns the old ones. Requests may be in flight if the addresses stay.
    fn replace_disks(&mut self, _: Vec<ScsiDisk>, disks: Vec<AttachedDisk>) -> Vec<AttachedDisk> {
        disks
    }

    /// Handles a message of another queue of the device. False: it was for an earlier queue.
    fn handle_scsi_message(&mut self, _message: ScsiMessage, _cx: QueueContext<'_>) -> bool {
        false
    }
}

/// Creates the queue of a device for a ring of `size` entries, with this index on the iothread that `remote` leads to.
pub(crate) fn new_queue_device(
    setup: DeviceSetup,
    name: QueueName,
    size: u16,
    source_index: u32,
    stats: Arc<QueueStats>,
    remote: &Remote<Message>,
    mut attach: impl FnMut(&Arc<Node>) -> AttachedDisk,
) -> Box<dyn QueueDevice> {
    match setup {
        DeviceSetup::Blk { device, node } => {
            let queue = virtio_blk::Queue::new(name, device, size, &stats);
            Box::new(BlkQueue::new(queue, attach(&node)))
        }
        DeviceSetup::Scsi(setup) => Box::new(ScsiQueue::new_registered(
            setup,
            name,
            size,
            source_index,
            stats,
            remote.clone(),
            attach,
        )),
    }
}
