//! Settings of queues that are to be started and of the devices behind them, and messages between queues of a SCSI controller.

use std::sync::Arc;

use block::Node;
use telemetry::queue::{QueueName, QueueStats};
use virtio_scsi::{Address, Device, QueueMessage};
use virtqueue::queue_setup::QueueSetup;

use super::reports::{ExportReporter, QueueReporter};

/// Settings of a queue that is to be started.
pub struct VringSetup {
    /// Its name in the log and in tracepoints.
    pub name: QueueName,
    /// The device that it is a queue of.
    pub device: DeviceSetup,
    /// Its rings, descriptors and memory.
    pub queue: QueueSetup,
    /// Whether the guest's memory is pinned and registered with the iothread's ring.
    pub fixed_buffers: bool,
    /// Its statistics, which no other running queue shares.
    pub stats: Arc<QueueStats>,
    /// Receives reports of failed requests and a broken queue, beside the log.
    pub reports: Option<QueueReporter>,
}

/// The device that a queue is started for.
pub enum DeviceSetup {
    /// virtio-blk.
    Blk {
        /// The device.
        device: Arc<virtio_blk::Device>,
        /// The disk.
        node: Arc<Node>,
    },
    /// virtio-scsi: a controller with disks.
    Scsi(ScsiSetup),
}

/// Settings of a controller's queue that is to be started.
pub struct ScsiSetup {
    /// The controller.
    pub device: Arc<Device>,
    /// Index of the queue.
    pub index: u16,
    /// Its units' disks.
    pub disks: Vec<ScsiDisk>,
}

/// A unit and the disk behind it.
#[derive(Clone)]
pub struct ScsiDisk {
    /// Its SCSI address.
    pub address: Address,
    /// The disk.
    pub node: Arc<Node>,
    /// Statistics of commands to this disk, beside the queue's own. Queues on the same iothread share them.
    pub stats: Arc<QueueStats>,
    /// Receives reports of failed requests, beside the log.
    pub reports: Option<Arc<ExportReporter>>,
}

/// A message to a queue, with the queue's number, since indices are reused.
pub struct ScsiMessage {
    pub(crate) queue_number: u64,
    pub(crate) message: QueueMessage,
}
