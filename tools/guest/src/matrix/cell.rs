//! The cells of the matrix, and why some of them cannot exist.

use std::fmt;

use crate::device;
use crate::emulator::QemuVersion;
use crate::firmware::Firmware;
use crate::kernel::KernelVersion;

/// What the guest has its disk behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Device {
    /// A virtio disk with split queues.
    BlkSplit,
    /// A virtio disk with packed queues. Firmware has no driver for them and uses split ones.
    BlkPacked,
    /// A virtio SCSI controller.
    Scsi,
    /// An LSI 53C895A.
    Lsi,
}

impl Device {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::BlkSplit, Self::BlkPacked, Self::Scsi, Self::Lsi];

    /// Its name in options and tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::BlkSplit => "split",
            Self::BlkPacked => "packed",
            Self::Scsi => "scsi",
            Self::Lsi => "lsi",
        }
    }

    /// Linux's name of the driver.
    pub(super) const fn driver(self) -> &'static str {
        match self {
            Self::BlkSplit | Self::BlkPacked => "virtio_blk",
            Self::Scsi => "virtio_scsi",
            Self::Lsi => "sym53c8xx",
        }
    }

    pub(super) const fn exported(self) -> device::Device {
        match self {
            Self::BlkSplit | Self::BlkPacked => device::Device::VirtioBlk,
            Self::Scsi => device::Device::Controller { slow: None },
            Self::Lsi => device::Device::HostAdapter { slow: None },
        }
    }
}

/// One combination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cell {
    /// The front-end.
    pub qemu: QemuVersion,
    /// What loads the boot loader.
    pub firmware: Firmware,
    /// What the disk is behind.
    pub device: Device,
    /// The guest.
    pub kernel: KernelVersion,
}

impl Cell {
    /// Every combination, in the order of the table.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let mut cells = Vec::new();
        for qemu in QemuVersion::ALL {
            for firmware in Firmware::ALL {
                for device in Device::ALL {
                    for kernel in KernelVersion::ALL {
                        cells.push(Self {
                            qemu,
                            firmware,
                            device,
                            kernel,
                        });
                    }
                }
            }
        }
        cells
    }

    /// Why there can be no such guest.
    #[must_use]
    pub fn not_applicable(self) -> Option<&'static str> {
        match (self.device, self.firmware) {
            (Device::Lsi, _) if self.qemu < QemuVersion::V11_1 => {
                Some("vfio-user came with QEMU 11.1")
            }
            (Device::Lsi, Firmware::Ovmf) => Some("Debian's OVMF has no driver for this adapter"),
            _ => None,
        }
    }

    /// Why the daemon cannot be killed under this guest.
    #[must_use]
    pub fn no_reconnection(self) -> Option<&'static str> {
        match self.device {
            Device::Lsi => Some("QEMU's vfio-user does not connect again"),
            Device::Scsi if self.qemu < QemuVersion::V10_0 => {
                Some("vhost-user-scsi connects again since QEMU 8.2")
            }
            _ => None,
        }
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "QEMU {}, {}, {}, Linux {}",
            self.qemu.name(),
            self.firmware.name(),
            self.device.name(),
            self.kernel.name()
        )
    }
}

/// Some of the cells: of each dimension one value, or all.
#[derive(Clone, Copy, Debug, Default)]
pub struct Filter {
    /// Only this front-end.
    pub qemu: Option<QemuVersion>,
    /// Only this firmware.
    pub firmware: Option<Firmware>,
    /// Only this device.
    pub device: Option<Device>,
    /// Only this kernel.
    pub kernel: Option<KernelVersion>,
}

impl Filter {
    /// Whether the cell is one of them.
    #[must_use]
    pub fn matches(&self, cell: Cell) -> bool {
        self.qemu.is_none_or(|qemu| qemu == cell.qemu)
            && self
                .firmware
                .is_none_or(|firmware| firmware == cell.firmware)
            && self.device.is_none_or(|device| device == cell.device)
            && self.kernel.is_none_or(|kernel| kernel == cell.kernel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_combination_is_a_cell_and_only_the_adapter_is_ever_impossible() {
        let cells = Cell::all();
        assert_eq!(cells.len(), 3 * 2 * 4 * 2);
        for cell in cells {
            assert!(
                cell.not_applicable().is_none() || cell.device == Device::Lsi,
                "{cell}"
            );
        }
    }

    #[test]
    fn a_filter_selects_by_each_dimension() {
        let filter = Filter {
            qemu: Some(QemuVersion::V10_0),
            device: Some(Device::BlkPacked),
            ..Filter::default()
        };
        let cells = Cell::all();
        let selected: Vec<&Cell> = cells.iter().filter(|cell| filter.matches(**cell)).collect();
        assert_eq!(selected.len(), 2 * 2);
        assert!(
            selected
                .iter()
                .all(|cell| cell.qemu == QemuVersion::V10_0 && cell.device == Device::BlkPacked)
        );
    }
}
