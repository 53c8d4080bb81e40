//! Settings of queues that are to be started, and of the devices behind them.

use std::sync::Arc;

use block::Node;
use telemetry::queue::{QueueName, QueueStats};
use virtio_scsi::{Address, Device, QueueMessage};
use virtqueue::control::QueueSetup;

use super::reports::{ExportReports, QueueReports};

/// Settings of a queue that is to be started.
pub struct VringSetup {
    /// What messages and tracers call it.
    pub name: QueueName,
    /// The device that it is a queue of.
    pub device: DeviceSetup,
    /// Its rings and what is around them.
    pub queue: QueueSetup,
    /// Whether the guest's memory is pinned and registered with the iothread's ring.
    pub fixed_buffers: bool,
    /// Its statistics. No other running queue has them.
    pub stats: Arc<QueueStats>,
    /// Where failed requests and a broken queue are reported, beside the log.
    pub reports: Option<QueueReports>,
}

/// The device that a queue is started for.
pub enum DeviceSetup {
    /// virtio-blk.
    Blk {
        /// How its guest sees it.
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
    /// Which of its queues.
    pub index: u16,
    /// Its units' disks.
    pub disks: Vec<ScsiDisk>,
}

/// A unit and the disk behind it.
#[derive(Clone)]
pub struct ScsiDisk {
    /// Where the guest finds it.
    pub address: Address,
    /// The disk.
    pub node: Arc<Node>,
    /// What the queue's commands to it are counted in, beside the queue's own figures: other queues do so as well if they
    /// run on the same iothread.
    pub stats: Arc<QueueStats>,
    /// Where failed requests are reported, beside the log.
    pub reports: Option<Arc<ExportReports>>,
}

/// A message to a queue, with the queue's number: places are used again.
pub struct ScsiMessage {
    pub(crate) queue: u64,
    pub(crate) message: QueueMessage,
}
