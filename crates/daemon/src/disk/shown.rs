//! The disks that exports show, and how those who change a disk reach them, whatever kind of export it is.

use std::sync::{Arc, Mutex, PoisonError};

use block::Node;
use iothread::{SocketDeviceCommand, SocketDeviceHandle};
use telemetry::queue::QueueStats;
use vhost_user::Server;
use virtio_blk::Device;
use virtio_scsi::Address;

use crate::disk::pr_file::PrFile;

/// The node that an export shows: another opening of it may take its place.
#[derive(Clone)]
pub(crate) struct Shown(Arc<Mutex<Arc<Node>>>);

impl Shown {
    pub fn new(node: Arc<Node>) -> Self {
        Shown(Arc::new(Mutex::new(node)))
    }

    pub fn get(&self) -> Arc<Node> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Queues take it over when they are told to.
    pub fn set(&self, node: Arc<Node>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = node;
    }
}

/// What a guest sees of a disk.
#[derive(Clone)]
pub(crate) enum Form {
    /// A virtio disk.
    Blk(Arc<Device>),
    /// A logical unit of a SCSI controller.
    Scsi(Arc<scsi::Unit>),
    /// One of a virtio SCSI controller, which tells its driver what becomes of it.
    VirtioScsi {
        device: Arc<virtio_scsi::Device>,
        address: Address,
        unit: Arc<scsi::Unit>,
    },
}

impl Form {
    /// Requests are checked against this size from now on. True if the guest sees another one than before.
    pub fn resize(&self, bytes: u64) -> bool {
        match self {
            Form::Blk(device) => device.resize(bytes),
            Form::Scsi(unit) => unit.resize(bytes),
            Form::VirtioScsi {
                device, address, ..
            } => device.resize(*address, bytes),
        }
    }

    /// Bytes of a logical block.
    pub fn logical_block_size(&self) -> u32 {
        match self {
            Form::Blk(device) => device.options().logical_block_size,
            Form::Scsi(unit) | Form::VirtioScsi { unit, .. } => unit.block_bytes(),
        }
    }

    /// Whether guests may write to it.
    pub fn writable(&self) -> bool {
        match self {
            Form::Blk(device) => !device.options().read_only,
            Form::Scsi(unit) | Form::VirtioScsi { unit, .. } => !unit.options().read_only,
        }
    }

    /// Whether a configuration space says how large it is. (A SCSI unit says it itself, with the next command.)
    pub fn has_config(&self) -> bool {
        matches!(self, Form::Blk(_))
    }
}

/// A disk of an export.
#[derive(Clone)]
pub(crate) struct ShownDisk {
    /// The node's name.
    pub name: String,
    pub form: Form,
    pub node: Shown,
    /// What is counted of a SCSI unit, by the iothreads that run its queues, in their order. Of a disk that is an export by
    /// itself the export counts.
    pub stats: Vec<Arc<QueueStats>>,
    /// What keeps a SCSI unit's reservations.
    pub pr_file: Option<Arc<PrFile>>,
}

impl ShownDisk {
    /// The unit, of a SCSI controller.
    pub fn unit(&self) -> Option<&Arc<scsi::Unit>> {
        match &self.form {
            Form::Blk(_) => None,
            Form::Scsi(unit) | Form::VirtioScsi { unit, .. } => Some(unit),
        }
    }
}

/// Figures of a unit, nothing counted yet: an iothread's are its own.
pub(crate) fn figures_of_unit(iothreads: usize) -> Vec<Arc<QueueStats>> {
    (0..iothreads).map(|_| Arc::default()).collect()
}

/// What serves an export.
pub(crate) enum Serving {
    /// A thread of its own has the socket, iothreads have the queues.
    VhostUser(Server),
    /// An iothread has all of it.
    Controller(Arc<SocketDeviceHandle>),
}

impl Serving {
    /// Takes no more front-ends if there is none at the moment; false if there is one.
    #[must_use]
    pub fn stop_if_idle(&self) -> bool {
        match self {
            Serving::VhostUser(server) => server.stop_if_idle(),
            Serving::Controller(controller) => controller.stop_if_idle(),
        }
    }

    /// Takes no more front-ends and ends the connection of the present one.
    pub fn begin_stop(&self) {
        match self {
            Serving::VhostUser(server) => server.begin_stop(),
            Serving::Controller(controller) => controller.begin_stop(),
        }
    }

    /// Waits until all that was in flight is done.
    pub fn end(self) {
        match self {
            Serving::VhostUser(server) => drop(server),
            Serving::Controller(controller) => controller.stop(),
        }
    }

    pub fn front_ends(&self) -> FrontEnds {
        match self {
            Serving::VhostUser(server) => FrontEnds::VhostUser(server.front_ends()),
            Serving::Controller(controller) => FrontEnds::Controller(controller.clone()),
        }
    }
}

/// To reach those who use an export.
pub(crate) enum FrontEnds {
    VhostUser(vhost_user::FrontEnds),
    Controller(Arc<SocketDeviceHandle>),
}

impl FrontEnds {
    /// Returns when all is done that was taken so far.
    pub fn settle(&self) {
        match self {
            FrontEnds::VhostUser(front_ends) => front_ends.settle(),
            FrontEnds::Controller(controller) => {
                controller.ask(SocketDeviceCommand::Settle);
            }
        }
    }

    /// Lets another node take the place of a disk's. Where both lead to the same opened disk, queues do not stop: what they have
    /// taken goes the old way while they take more. Else they first finish what they have taken. Returns when nothing uses the old
    /// node any more.
    pub fn exchange(&self, shown: &Shown, node: &Arc<Node>) {
        let set = || shown.set(node.clone());
        match self {
            FrontEnds::VhostUser(front_ends) if shown.get().shares_disk_with(node) => {
                front_ends.switch(set);
            }
            FrontEnds::VhostUser(front_ends) => front_ends.exchange(set),
            FrontEnds::Controller(controller) if shown.get().shares_disk_with(node) => {
                set();
                controller.ask(|reply| SocketDeviceCommand::SetNode(node.clone(), reply));
            }
            FrontEnds::Controller(controller) => {
                controller.send(SocketDeviceCommand::Enable(false));
                controller.ask(SocketDeviceCommand::Settle);
                set();
                controller.ask(|reply| SocketDeviceCommand::SetNode(node.clone(), reply));
                controller.send(SocketDeviceCommand::Enable(true));
            }
        }
    }

    /// Tells the present front-end that the disk has another size.
    pub fn notify_config_changed(&self) {
        if let FrontEnds::VhostUser(front_ends) = self {
            front_ends.notify_config_changed();
        }
    }
}
