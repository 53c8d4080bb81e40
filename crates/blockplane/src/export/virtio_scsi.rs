//! A virtio SCSI controller over vhost-user, and the nodes behind its units.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use block::Node;
use data_plane::{
    DataThread, ExportReports, QueueReports, Reports, ScsiDisk, ScsiSetup, Serves, VringHandle,
    VringSetup,
};
use options::{ExportOptions, LunOptions, VhostUserScsiOptions};
use qmp::Handle;
use scsi::{Identity, TransportId, Unit, UnitOptions};
use serde_json::json;
use vhost_user::{QueueSetup, Server, StartError, StartedQueue, Target};
use virtio_blk::QueueName;
use virtio_scsi::{Address, Device, DeviceOptions, FIXED_QUEUES};
use virtqueue::GuestMemory;

use super::listener;
use crate::Failure;
use crate::figures::Figures;
use crate::objects::{Export, ExportState, Objects};
use crate::shown::{Form, Serving, Shown, ShownDisk};

/// Starts serving a controller.
pub(super) fn start(
    options: &ExportOptions,
    kind: &VhostUserScsiOptions,
    objects: &mut Objects,
) -> Result<(), Failure> {
    let controller = Controller::new(options, kind, objects.reports.clone())?;
    let controller = Arc::new(controller);
    for lun in &kind.scsi.luns {
        let node = objects.node(&lun.node_name)?;
        controller.insert(controller.disk(lun, node)?)?;
    }
    let listener = listener(&kind.scsi.addr, objects)?;
    let iothreads = objects.iothreads_of(&options.iothreads)?;
    let queues = kind.num_queues + FIXED_QUEUES;
    let figures = Arc::new(Figures::new(queues, kind.queue_size, &iothreads));
    let reports = ExportReports::new(objects.reports.clone(), &options.id, &options.node_name);
    let target = ScsiTarget {
        controller: controller.clone(),
        iothreads,
        packed: kind.packed,
        events: objects.events.clone(),
        figures: figures.clone(),
        reports: Arc::new(reports),
    };
    let server = Server::spawn(listener, Arc::new(target))?;
    objects.exports.push(Export {
        options: options.clone(),
        disks: controller.shown(),
        controller: Some(controller),
        figures,
        state: ExportState::Serving(Serving::VhostUser(server)),
    });
    Ok(())
}

/// A controller, whoever is connected to it.
pub(crate) struct Controller {
    name: String,
    device: Arc<Device>,
    write_through: bool,
    reports: Reports,
    disks: Mutex<Vec<Disk>>,
}

/// A unit, and the node that it shows.
#[derive(Clone)]
pub(crate) struct Disk {
    address: Address,
    unit: Arc<Unit>,
    name: String,
    node: Shown,
    reports: Arc<ExportReports>,
}

impl Controller {
    fn new(
        options: &ExportOptions,
        kind: &VhostUserScsiOptions,
        reports: Reports,
    ) -> Result<Self, Failure> {
        let device = DeviceOptions {
            request_queues: kind.num_queues,
            queue_size: kind.queue_size,
            initiator: TransportId::Sas(world_wide_name(&options.id)),
        };
        Ok(Controller {
            name: options.id.clone(),
            device: Arc::new(Device::new(device)?),
            write_through: options.writethrough,
            reports,
            disks: Mutex::default(),
        })
    }

    fn disks(&self) -> MutexGuard<'_, Vec<Disk>> {
        self.disks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its disks, for those who change them.
    pub fn shown(&self) -> Vec<ShownDisk> {
        let disks = self.disks();
        let disks = disks.iter().map(|disk| ShownDisk {
            name: disk.name.clone(),
            form: Form::VirtioScsi {
                device: self.device.clone(),
                address: disk.address,
                unit: disk.unit.clone(),
            },
            node: disk.node.clone(),
        });
        disks.collect()
    }

    /// Its disks, for a queue.
    fn served(&self) -> Vec<ScsiDisk> {
        let disks = self.disks();
        let disks = disks.iter().map(|disk| ScsiDisk {
            address: disk.address,
            node: disk.node.get(),
            reports: Some(disk.reports.clone()),
        });
        disks.collect()
    }

    /// A disk that shows a node, if it can.
    pub fn disk(&self, lun: &LunOptions, node: Arc<Node>) -> Result<Disk, Failure> {
        if lun.writable && node.read_only() {
            return Err(format!(
                "--export: node '{}' is read-only; export it without writable=on",
                lun.node_name
            )
            .into());
        }
        node.use_block_size(lun.logical_block_size)?;
        let serial = lun.serial.clone().unwrap_or_default();
        let named = match serial.as_str() {
            "" => format!("{}:{}:{}", self.name, lun.target, lun.lun),
            serial => serial.to_owned(),
        };
        let options = UnitOptions {
            identity: Identity {
                serial,
                naa: Some(world_wide_name(&named)),
                ..Identity::default()
            },
            logical_block_size: lun.logical_block_size,
            read_only: !lun.writable,
            write_through: self.write_through,
            thin: node.unmap(),
            ..UnitOptions::default()
        };
        let reports = ExportReports::new(self.reports.clone(), &self.name, &lun.node_name);
        Ok(Disk {
            address: address(lun)?,
            unit: Arc::new(Unit::new(options, node.geometry())?),
            name: lun.node_name.clone(),
            node: Shown::new(node),
            reports: Arc::new(reports),
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

/// A locally assigned name of 64 bits (NAA 3), which is the same whenever the text is.
fn world_wide_name(text: &str) -> u64 {
    // FNV-1a: nobody has an interest in two that are the same.
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    3 << 60 | hash >> 4
}

/// A controller and where its queues run.
struct ScsiTarget {
    controller: Arc<Controller>,
    iothreads: Vec<Arc<DataThread>>,
    packed: bool,
    events: Handle,
    figures: Arc<Figures>,
    reports: Arc<ExportReports>,
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
        let event = if connected {
            "BLOCK_EXPORT_CONNECTED"
        } else {
            "BLOCK_EXPORT_DISCONNECTED"
        };
        self.figures.connected.store(connected, Ordering::Relaxed);
        self.events.emit(event, json!({"id": self.controller.name}));
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

    fn start_queue(&self, setup: QueueSetup) -> Result<Box<dyn StartedQueue>, StartError> {
        let iothread = &self.iothreads[usize::from(setup.index) % self.iothreads.len()];
        let started = iothread.start_vring(VringSetup {
            name: QueueName::new(&self.controller.name, setup.index),
            serves: Serves::Scsi(ScsiSetup {
                device: self.device().clone(),
                index: setup.index,
                disks: self.controller.served(),
            }),
            memory: setup.memory,
            layout: setup.layout,
            features: setup.features,
            base: setup.base,
            kick: setup.kick,
            call: setup.call,
            err: setup.err,
            enabled: setup.enabled,
            fixed_buffers: false,
            stats: self.figures.queues[usize::from(setup.index)].stats.clone(),
            reports: Some(QueueReports {
                export: self.reports.clone(),
                queue: setup.index,
            }),
        });
        match started {
            Ok(handle) => Ok(Box::new(Queue(handle, self.controller.clone()))),
            Err(data_plane::StartError::Ring(error)) => Err(StartError::Ring(error)),
            Err(error) => Err(StartError::FrontEnd(error.to_string())),
        }
    }
}

/// A queue on its iothread, as the transport sees it.
struct Queue(VringHandle, Arc<Controller>);

impl StartedQueue for Queue {
    fn enable(&self, enabled: bool) {
        self.0.enable(enabled);
    }

    fn set_memory(&self, memory: Arc<GuestMemory>) {
        self.0.set_memory(memory);
    }

    fn settle(&self) {
        self.0.settle();
    }

    fn renew(&self) {
        self.0.set_disks(self.1.served());
    }

    fn set_call(&self, call: Option<std::os::fd::OwnedFd>) {
        self.0.set_call(call);
    }

    fn set_err(&self, err: Option<std::os::fd::OwnedFd>) {
        self.0.set_err(err);
    }

    fn set_kick(&self, kick: Option<std::os::fd::OwnedFd>) -> Result<(), StartError> {
        self.0
            .set_kick(kick)
            .map_err(|error| StartError::FrontEnd(error.to_string()))
    }

    fn stop(self: Box<Self>) -> Option<u32> {
        self.0.stop()
    }
}
