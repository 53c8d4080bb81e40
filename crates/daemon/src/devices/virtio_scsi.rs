//! A virtio-scsi controller over vhost-user: its list of units with the nodes behind them, which changes while it runs, and the
//! [`VirtioDevice`] that the vhost-user server calls.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use block::{GuestBlockMode, Node};
use iothread::{
    DeviceCommand, DeviceSetup, ExportReporter, ReportSender, ReportedExport, ScsiDisk, ScsiSetup,
};
use options::{ExportOptions, LunOptions, VhostUserScsiOptions};
use scsi::{TransportId, Unit};
use telemetry::queue::QueueStats;
use vhost_user::{StartedQueue, VirtioDevice};
use virtio_scsi::{Address, Device, DeviceOptions, FIXED_QUEUES};
use virtqueue::queue_setup::{QueueSetup, StartError};

use super::image_use::ImageUse;
use super::queues::QueueStarter;
use super::scsi_unit::{
    check_writable_and_set_guest_block_size, create_unit_with_pr_file, world_wide_name,
};
use crate::disk::export_stats::iothread_index_of_queue;
use crate::disk::exported_disk::{ExportedDisk, GuestDevice, NodeSlot, new_scsi_unit_stats};
use crate::disk::pr_file::PrFile;
use crate::error::BoxError;

/// A controller. It lives as long as its export, while front-ends come and go.
pub(crate) struct VirtioScsiController {
    name: String,
    device: Arc<Device>,
    write_through: bool,
    /// Number of iothreads that run its queues.
    iothread_count: usize,
    reported: Arc<ReportedExport>,
    reports: ReportSender,
    disks: Mutex<Vec<ControllerDisk>>,
}

/// A unit and its node.
#[derive(Clone)]
pub(crate) struct ControllerDisk {
    address: Address,
    unit: Arc<Unit>,
    node_name: String,
    node: NodeSlot,
    /// One for each iothread.
    stats: Vec<Arc<QueueStats>>,
    reports: Arc<ExportReporter>,
    pr_file: Option<Arc<PrFile>>,
}

impl VirtioScsiController {
    /// A controller without disks.
    pub fn new(
        options: &ExportOptions,
        kind: &VhostUserScsiOptions,
        iothread_count: usize,
        reported: &Arc<ReportedExport>,
        reports: ReportSender,
    ) -> Result<Self, BoxError> {
        let device = DeviceOptions {
            request_queues: kind.num_queues,
            queue_size: kind.queue_size,
            initiator: TransportId::Sas(world_wide_name(options.id.as_bytes())),
        };
        Ok(VirtioScsiController {
            name: options.id.clone(),
            device: Arc::new(Device::new(device)?),
            write_through: options.settings.writethrough,
            iothread_count,
            reported: reported.clone(),
            reports,
            disks: Mutex::default(),
        })
    }

    /// Locks the mutex of the list of its disks.
    fn lock_disk_list(&self) -> MutexGuard<'_, Vec<ControllerDisk>> {
        self.disks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its disks, for changes of their nodes.
    pub fn exported_disks(&self) -> Vec<ExportedDisk> {
        let disks = self.lock_disk_list();
        let disks = disks.iter().map(|disk| ExportedDisk {
            node_name: disk.node_name.clone(),
            guest_device: GuestDevice::VirtioScsi {
                device: self.device.clone(),
                address: disk.address,
                unit: disk.unit.clone(),
            },
            node: disk.node.clone(),
            stats: disk.stats.clone(),
            pr_file: disk.pr_file.clone(),
        });
        disks.collect()
    }

    /// Its disks as a queue on its iothread gets them.
    fn disks_for_queue(&self, queue: u16) -> Vec<ScsiDisk> {
        let iothread = iothread_index_of_queue(queue, self.iothread_count);
        let disks = self.lock_disk_list();
        let disks = disks.iter().map(|disk| ScsiDisk {
            address: disk.address,
            node: disk.node.get(),
            stats: disk.stats[iothread].clone(),
            reports: Some(disk.reports.clone()),
        });
        disks.collect()
    }

    /// The nodes behind its disks.
    pub fn nodes(&self) -> Vec<Arc<Node>> {
        let disks = self.lock_disk_list();
        disks.iter().map(|disk| disk.node.get()).collect()
    }

    /// The device that the driver sees.
    pub fn virtio_scsi_device(&self) -> &Device {
        &self.device
    }

    /// Creates a disk for a node; [`insert_disk`](Self::insert_disk) adds it. The node's size of the guest's blocks is to be kept when
    /// the guest has the disk. For `handover_pending` see [`create_unit_with_pr_file`].
    pub fn create_disk_and_set_guest_block_size(
        &self,
        lun: &LunOptions,
        node: Arc<Node>,
        handover_pending: bool,
    ) -> Result<(ControllerDisk, GuestBlockMode), BoxError> {
        let block_mode = check_writable_and_set_guest_block_size(&node, lun)?;
        let (unit, pr_file) =
            create_unit_with_pr_file(&self.name, lun, &node, self.write_through, handover_pending)?;
        let reports = ExportReporter::new(self.reports.clone(), &self.reported, &lun.node_name);
        let disk = ControllerDisk {
            address: unit_address(lun)?,
            unit,
            node_name: lun.node_name.clone(),
            node: NodeSlot::new(node),
            stats: new_scsi_unit_stats(self.iothread_count),
            reports: Arc::new(reports),
            pr_file,
        };
        Ok((disk, block_mode))
    }

    /// Adds a disk. No queue runs, or all are stopped and get their disks again before they resume.
    pub fn insert_disk(&self, disk: ControllerDisk) -> Result<(), BoxError> {
        let (address, unit) = (disk.address, disk.unit.clone());
        // Added first, since the driver sends commands as soon as it has received the event.
        self.lock_disk_list().push(disk);
        let added = self.device.add_unit_and_report(address, unit);
        if added.is_err() {
            self.lock_disk_list().pop();
        }
        Ok(added?)
    }

    /// Removes a disk. All queues are stopped and get their disks again before they resume.
    pub fn remove_disk(&self, lun: &LunOptions) -> Result<(), BoxError> {
        let address = unit_address(lun)?;
        self.device.remove_unit_and_report(address);
        self.lock_disk_list().retain(|disk| disk.address != address);
        Ok(())
    }
}

/// The address that the options of a unit give.
fn unit_address(lun: &LunOptions) -> Result<Address, BoxError> {
    Ok(Address {
        target: lun.target.try_into()?,
        lun: lun.lun,
    })
}

/// A controller and its queues, as the vhost-user server sees them.
pub(crate) struct VhostUserScsiDevice {
    pub controller: Arc<VirtioScsiController>,
    pub packed: bool,
    pub queue_starter: QueueStarter,
    pub image_use: Arc<ImageUse>,
}

impl VhostUserScsiDevice {
    fn virtio_scsi_device(&self) -> &Arc<Device> {
        &self.controller.device
    }
}

impl VirtioDevice for VhostUserScsiDevice {
    fn name(&self) -> &str {
        &self.controller.name
    }

    fn on_connection_change(&self, connected: bool) {
        self.queue_starter.on_connection_change(connected);
    }

    fn features(&self) -> u64 {
        self.virtio_scsi_device().features()
    }

    fn set_features(&self, acked: u64, _: &dyn Fn()) {
        self.virtio_scsi_device().set_features(acked);
    }

    fn num_queues(&self) -> u16 {
        self.virtio_scsi_device().options().request_queues + FIXED_QUEUES
    }

    fn max_queue_size(&self) -> u16 {
        self.virtio_scsi_device().options().queue_size
    }

    fn offers_packed_queues(&self) -> bool {
        self.packed
    }

    fn config_space(&self) -> Vec<u8> {
        self.virtio_scsi_device().config_space().to_vec()
    }

    fn write_config_space(&self, offset: usize, bytes: &[u8], _: &dyn Fn()) -> bool {
        self.virtio_scsi_device().write_config(offset, bytes)
    }

    fn reset(&self) {
        self.virtio_scsi_device().reset_with_units();
    }

    fn before_first_queue(&self) -> Result<(), String> {
        self.image_use.begin()
    }

    fn after_last_queue(&self, is_migrating: bool) {
        self.image_use.end(is_migrating);
    }

    /// Starts a queue on its iothread with the controller's disks, which may change while it runs.
    fn start_queue(
        &self,
        index: u16,
        setup: QueueSetup,
    ) -> Result<Box<dyn StartedQueue>, StartError> {
        let controller = self.controller.clone();
        let device = DeviceSetup::Scsi(ScsiSetup {
            device: self.virtio_scsi_device().clone(),
            index,
            disks: controller.disks_for_queue(index),
        });
        self.queue_starter
            .start_queue(index, setup, device, move |queue| {
                queue.begin_device_command(|reply| {
                    DeviceCommand::SetDisks(controller.disks_for_queue(index), reply)
                })
            })
    }
}
