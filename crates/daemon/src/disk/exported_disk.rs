//! The disks of an export: the node behind each of them, and the device that a guest sees.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use block::{GuestBlockMode, Node, NodeError};
use telemetry::queue::QueueStats;
use virtio_blk::Device;
use virtio_scsi::Address;

use crate::disk::pr_file::PrFile;

const SECTOR_BYTES: u32 = 512;

/// The node behind an exported disk. Reopening replaces it.
#[derive(Clone)]
pub(crate) struct NodeSlot(Arc<NodeAndExchange>);

struct NodeAndExchange {
    node: Mutex<Arc<Node>>,
    /// Held while queues are sent a node.
    exchange: Mutex<()>,
}

impl NodeSlot {
    /// A slot with this node.
    pub fn new(node: Arc<Node>) -> Self {
        NodeSlot(Arc::new(NodeAndExchange {
            node: Mutex::new(node),
            exchange: Mutex::default(),
        }))
    }

    /// Whether it is the slot of the same disk of an export.
    pub fn is_same(&self, other: &NodeSlot) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The present node.
    pub fn get(&self) -> Arc<Node> {
        self.0
            .node
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Replaces the node. Queues that run keep the old one until they are sent the new one.
    pub fn set(&self, node: Arc<Node>) {
        *self.0.node.lock().unwrap_or_else(PoisonError::into_inner) = node;
    }

    /// Begins to send queues a node. Other threads wait with that: of two at once, the later one might send an old node.
    pub fn begin_exchange(&self) -> MutexGuard<'_, ()> {
        let exchange = self.0.exchange.lock();
        exchange.unwrap_or_else(PoisonError::into_inner)
    }
}

/// The device that a guest sees.
#[derive(Clone)]
pub(crate) enum GuestDevice {
    /// A virtio-blk disk.
    Blk(Arc<Device>),
    /// A logical unit of a SCSI controller.
    Scsi(Arc<scsi::Unit>),
    /// A logical unit of a virtio-scsi controller, which sends its driver an event when the unit changes.
    VirtioScsi {
        device: Arc<virtio_scsi::Device>,
        address: Address,
        unit: Arc<scsi::Unit>,
    },
    /// An export of the NBD server.
    Nbd(Arc<nbd_server::Export>),
}

impl GuestDevice {
    /// Sets the size against which requests are checked. True if it differs from the size that the guest saw before.
    pub fn resize(&self, bytes: u64) -> bool {
        match self {
            GuestDevice::Blk(device) => device.resize(bytes),
            GuestDevice::Scsi(unit) => unit.resize(bytes),
            GuestDevice::VirtioScsi {
                device, address, ..
            } => device.resize_unit(*address, bytes),
            GuestDevice::Nbd(export) => export.resize(bytes),
        }
    }

    /// Prepares a node that is to be behind it for the blocks that its guests write.
    ///
    /// # Errors
    /// See [`Node::set_guest_block_size`].
    pub fn try_set_block_size_of(&self, node: &Node) -> Result<GuestBlockMode, NodeError> {
        let block_bytes = match self {
            GuestDevice::Blk(device) => device.options().logical_block_size,
            GuestDevice::Scsi(unit) | GuestDevice::VirtioScsi { unit, .. } => unit.block_bytes(),
            GuestDevice::Nbd(export) if !export.is_writable() => {
                return Ok(GuestBlockMode::of_any_guest());
            }
            GuestDevice::Nbd(export) if node.uses_direct_io() => export.min_block_size(),
            // What is smaller than a sector is the disk's own matter.
            GuestDevice::Nbd(export) => export.min_block_size().max(SECTOR_BYTES),
        };
        node.set_guest_block_size(block_bytes)
    }

    /// Whether guests may write to it.
    pub fn is_writable(&self) -> bool {
        match self {
            GuestDevice::Blk(device) => !device.options().read_only,
            GuestDevice::Scsi(unit) | GuestDevice::VirtioScsi { unit, .. } => {
                !unit.options().read_only
            }
            GuestDevice::Nbd(export) => export.is_writable(),
        }
    }

    /// Whether its size is in a configuration space. (A SCSI unit reports it by a unit attention.)
    pub fn has_size_in_config_space(&self) -> bool {
        matches!(self, GuestDevice::Blk(_))
    }
}

/// A disk of an export.
#[derive(Clone)]
pub(crate) struct ExportedDisk {
    /// Name of the node behind it.
    pub node_name: String,
    pub guest_device: GuestDevice,
    pub node: NodeSlot,
    /// Counters of a SCSI unit, one for each iothread that runs its queues, in their order. Empty for virtio-blk and NBD, which are
    /// counted by [`ExportStats`](crate::disk::export_stats::ExportStats).
    pub stats: Vec<Arc<QueueStats>>,
    /// The file that keeps a SCSI unit's persistent reservations.
    pub pr_file: Option<Arc<PrFile>>,
}

impl ExportedDisk {
    /// The SCSI unit; `None` for virtio-blk and NBD.
    pub fn scsi_unit(&self) -> Option<&Arc<scsi::Unit>> {
        match &self.guest_device {
            GuestDevice::Blk(_) | GuestDevice::Nbd(_) => None,
            GuestDevice::Scsi(unit) | GuestDevice::VirtioScsi { unit, .. } => Some(unit),
        }
    }
}

/// Creates the counters of a SCSI unit: one set for each iothread, so that no two threads write the same one.
pub(crate) fn new_scsi_unit_stats(iothread_count: usize) -> Vec<Arc<QueueStats>> {
    (0..iothread_count).map(|_| Arc::default()).collect()
}
