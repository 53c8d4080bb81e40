//! The disk as the guest sees it: the server's export, and the device that QEMU connects to it.

use std::time::Duration;

/// The device in the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// A virtio disk, over vhost-user.
    VirtioBlk,
    /// A virtio SCSI controller, over vhost-user, with the disk as target 0 LUN 0, an empty one as LUN 1, and one of the
    /// same size as target 2 LUN 5; there is a node `spare` to be added. Of a server without a monitor, with the disk alone.
    Controller {
        /// If there is another disk, as target 1 LUN 0: what each of its requests takes. It reads as zeroes.
        slow: Option<Duration>,
    },
    /// An LSI 53C895A, over vfio-user, with the disk at target 0; a second one needs a server with a monitor.
    HostAdapter {
        /// If there is a second disk, at target 1: what each of its requests takes. It reads as zeroes.
        slow: Option<Duration>,
    },
}

/// The chipset, and so the PCI bus and how its interrupts are routed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chipset {
    /// PCI Express.
    Q35,
    /// PCI: the i440FX.
    Pc,
}

impl Device {
    /// Processors of the guest: virtio has a queue for each.
    pub(crate) const fn cpus(self, num_queues: u16) -> u16 {
        match self {
            Self::VirtioBlk | Self::Controller { .. } => num_queues,
            Self::HostAdapter { .. } => 2,
        }
    }
}

impl Chipset {
    /// As QEMU calls it.
    pub(crate) const fn machine(self) -> &'static str {
        match self {
            Self::Q35 => "q35",
            Self::Pc => "pc",
        }
    }
}
