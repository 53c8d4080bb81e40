//! A virtio SCSI controller over vhost-user, and the nodes behind its units.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use block::Node;
use iothread::{DeviceCommand, DeviceSetup, ExportReports, Reports, ScsiDisk, ScsiSetup};
use options::{ExportOptions, LunOptions, VhostUserScsiOptions};
use scsi::{TransportId, Unit};
use telemetry::queue::QueueStats;
use vhost_user::{StartedQueue, Target};
use virtio_scsi::{Address, Device, DeviceOptions, FIXED_QUEUES};
use virtqueue::control::{QueueSetup, StartError};

use super::queues::Queues;
use super::unit::{unit, world_wide_name};
use crate::disk::exported_disk::{ExportedDisk, GuestDevice, NodeSlot, unit_stats};
use crate::disk::pr_file::PrFile;
use crate::failure::Failure;

/// A controller, whoever is connected to it.
pub(crate) struct ScsiController {
    name: String,
    device: Arc<Device>,
    write_through: bool,
    /// How many run its queues.
    iothreads: usize,
    reports: Reports,
    disks: Mutex<Vec<Disk>>,
}

/// A unit, and the node that it shows.
#[derive(Clone)]
pub(crate) struct Disk {
    address: Address,
    unit: Arc<Unit>,
    name: String,
    node: NodeSlot,
    /// By iothread.
    stats: Vec<Arc<QueueStats>>,
    reports: Arc<ExportReports>,
    pr_file: Option<Arc<PrFile>>,
}

impl ScsiController {
    pub fn new(
        options: &ExportOptions,
        kind: &VhostUserScsiOptions,
        iothreads: usize,
        reports: Reports,
    ) -> Result<Self, Failure> {
        let device = DeviceOptions {
            request_queues: kind.num_queues,
            queue_size: kind.queue_size,
            initiator: TransportId::Sas(world_wide_name(options.id.as_bytes())),
        };
        Ok(ScsiController {
            name: options.id.clone(),
            device: Arc::new(Device::new(device)?),
            write_through: options.settings.writethrough,
            iothreads,
            reports,
            disks: Mutex::default(),
        })
    }

    fn disks(&self) -> MutexGuard<'_, Vec<Disk>> {
        self.disks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its disks, for those who change them.
    pub fn exported_disks(&self) -> Vec<ExportedDisk> {
        let disks = self.disks();
        let disks = disks.iter().map(|disk| ExportedDisk {
            name: disk.name.clone(),
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

    /// Its disks, for a queue.
    fn served(&self, queue: u16) -> Vec<ScsiDisk> {
        let iothread = usize::from(queue) % self.iothreads;
        let disks = self.disks();
        let disks = disks.iter().map(|disk| ScsiDisk {
            address: disk.address,
            node: disk.node.get(),
            stats: disk.stats[iothread].clone(),
            reports: Some(disk.reports.clone()),
        });
        disks.collect()
    }

    /// What the driver sees of all of them.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// A disk that shows a node, if it can. One that is `awaited` is another process's still.
    pub fn create_disk(
        &self,
        lun: &LunOptions,
        node: Arc<Node>,
        awaited: bool,
    ) -> Result<Disk, Failure> {
        let (unit, pr_file) = unit(&self.name, lun, &node, self.write_through, awaited)?;
        let reports = ExportReports::new(self.reports.clone(), &self.name, &lun.node_name);
        Ok(Disk {
            address: address(lun)?,
            unit,
            name: lun.node_name.clone(),
            node: NodeSlot::new(node),
            stats: unit_stats(self.iothreads),
            reports: Arc::new(reports),
            pr_file,
        })
    }

    /// Adds a disk that was made for it. No queue runs, or all are at rest and will be told of their disks.
    pub fn insert(&self, disk: Disk) -> Result<(), Failure> {
        let (address, unit) = (disk.address, disk.unit.clone());
        // The driver asks for it as soon as it hears of it.
        self.disks().push(disk);
        let added = self.device.add(address, unit);
        if added.is_err() {
            self.disks().pop();
        }
        Ok(added?)
    }

    /// Removes a disk. All queues are at rest and will be told of their disks.
    pub fn remove(&self, lun: &LunOptions) -> Result<(), Failure> {
        let address = address(lun)?;
        self.device.remove(address);
        self.disks().retain(|disk| disk.address != address);
        Ok(())
    }
}

/// Where a unit is.
fn address(lun: &LunOptions) -> Result<Address, Failure> {
    Ok(Address {
        target: lun.target.try_into()?,
        lun: lun.lun,
    })
}

/// A controller and where its queues run.
pub(crate) struct ScsiTarget {
    pub controller: Arc<ScsiController>,
    pub packed: bool,
    pub queues: Queues,
}

impl ScsiTarget {
    fn device(&self) -> &Arc<Device> {
        &self.controller.device
    }
}

impl Target for ScsiTarget {
    fn name(&self) -> &str {
        &self.controller.name
    }

    fn connected(&self, connected: bool) {
        self.queues.connected(connected);
    }

    fn features(&self) -> u64 {
        self.device().features()
    }

    fn set_features(&self, acked: u64, _: &dyn Fn()) {
        self.device().set_features(acked);
    }

    fn num_queues(&self) -> u16 {
        self.device().options().request_queues + FIXED_QUEUES
    }

    fn max_queue_size(&self) -> u16 {
        self.device().options().queue_size
    }

    fn packed_queues(&self) -> bool {
        self.packed
    }

    fn config(&self) -> Vec<u8> {
        self.device().config().to_vec()
    }

    fn write_config(&self, offset: usize, bytes: &[u8], _: &dyn Fn()) -> bool {
        self.device().write_config(offset, bytes)
    }

    fn reset(&self) {
        self.device().reset();
    }

    fn start_queue(
        &self,
        index: u16,
        setup: QueueSetup,
    ) -> Result<Box<dyn StartedQueue>, StartError> {
        let controller = self.controller.clone();
        let device = DeviceSetup::Scsi(ScsiSetup {
            device: self.device().clone(),
            index,
            disks: controller.served(index),
        });
        self.queues.start(index, setup, device, move |queue| {
            queue.begin_device(|reply| DeviceCommand::SetDisks(controller.served(index), reply))
        })
    }
}
