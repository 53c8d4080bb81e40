//! A virtio-blk device behind a vhost-user socket: features, configuration space and start of queues, as the vhost-user server calls them.

use std::sync::Arc;
use std::time::Duration;

use iothread::{DeviceCommand, DeviceSetup};
use vhost_user::{StartedQueue, VirtioDevice};
use virtio_blk::Device;
use virtqueue::queue_setup::{QueueSetup, StartError};

use super::image_use::ImageUse;
use super::queues::QueueStarter;
use crate::disk::exported_disk::NodeSlot;

/// A virtio-blk device and its queues.
pub(crate) struct VhostUserBlkDevice {
    pub device: Arc<Device>,
    pub node: NodeSlot,
    pub packed: bool,
    pub stop_timeout_with_inflight_region: Option<Duration>,
    pub queue_starter: QueueStarter,
    pub image_use: Arc<ImageUse>,
}

impl VhostUserBlkDevice {
    /// Flushes the disk after the write cache was turned off, since from then on the guest takes all its writes as stable. This
    /// includes writes in flight, which complete first. Returns whether it succeeded.
    fn flush_after_settling(&self, settle: &dyn Fn()) -> bool {
        settle();
        let result = self.node.get().flush_blocking();
        if let Err(error) = &result {
            tracing::error!(
                export = self.queue_starter.export.id(),
                %error,
                advice = "look for errors of the disk below (dmesg); writes of the guest may not be on stable storage",
                "flushing the disk failed while the guest turned the write cache off"
            );
        }
        result.is_ok()
    }
}

impl VirtioDevice for VhostUserBlkDevice {
    fn name(&self) -> &str {
        self.queue_starter.export.id()
    }

    fn on_connection_change(&self, connected: bool) {
        self.queue_starter.on_connection_change(connected);
    }

    fn features(&self) -> u64 {
        self.device.features()
    }

    fn set_features(&self, acked: u64, settle: &dyn Fn()) {
        self.device.set_features(acked);
        if !self.device.is_write_cache_enabled() {
            // The previous driver may have left unflushed writes, and this one cannot flush.
            self.flush_after_settling(settle);
        }
    }

    fn num_queues(&self) -> u16 {
        self.device.options().num_queues
    }

    fn max_queue_size(&self) -> u16 {
        self.device.options().queue_size
    }

    fn offers_packed_queues(&self) -> bool {
        self.packed
    }

    fn stop_timeout_with_inflight_region(&self) -> Option<Duration> {
        self.stop_timeout_with_inflight_region
    }

    fn config_space(&self) -> Vec<u8> {
        self.device.config_space().to_vec()
    }

    /// Writes a field; the disk is flushed if that turns the write cache off, which fails if the flush does.
    fn write_config_space(&self, offset: usize, bytes: &[u8], settle: &dyn Fn()) -> bool {
        let before = self.device.config_space();
        if !self.device.write_config(offset, bytes) {
            return false;
        }
        if self.device.is_write_cache_enabled() || self.flush_after_settling(settle) {
            return true;
        }
        // Earlier writes are not stable: the cache stays on, and the driver reads that.
        let restored = self
            .device
            .write_config(offset, &before[offset..offset + bytes.len()]);
        debug_assert!(restored, "it was valid before");
        false
    }

    fn reset(&self) {
        self.device.reset();
    }

    fn before_first_queue(&self) -> Result<(), String> {
        self.image_use.begin()
    }

    fn after_last_queue(&self, is_migrating: bool) {
        self.image_use.end(is_migrating);
    }

    /// Starts a queue on its iothread; the node behind the disk may be replaced while it runs.
    fn start_queue(
        &self,
        index: u16,
        setup: QueueSetup,
    ) -> Result<Box<dyn StartedQueue>, StartError> {
        let node = self.node.clone();
        let device = DeviceSetup::Blk {
            device: self.device.clone(),
            node: node.get(),
        };
        self.queue_starter
            .start_queue(index, setup, device, move |queue| {
                queue.begin_device_command(|reply| DeviceCommand::SetNode(node.get(), reply))
            })
    }
}
