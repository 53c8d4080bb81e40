//! PCI configuration space of the adapter (manual, chapter 4, PCI registers).

use crate::chip::{Bar, BarAddresses};
use vfio_user::{ConfigSpace, PciIdentity};

const IDENTITY: PciIdentity = PciIdentity {
    vendor: 0x1000,
    device: 0x0012,
    revision: 0,
    // A SCSI bus controller.
    class: 0x01_0000,
    subsystem_vendor: 0x1000,
    subsystem: 0x1000,
    interrupt_pin: 1,
    min_grant: 0x1e,
    max_latency: 0x40,
    latency_timer: 0xff,
};

const WINDOWS: [vfio_user::Bar; 6] = [
    vfio_user::Bar::Io { bytes: 0x100 },
    vfio_user::Bar::Memory { bytes: 0x400 },
    vfio_user::Bar::Memory { bytes: 0x2000 },
    vfio_user::Bar::None,
    vfio_user::Bar::None,
    vfio_user::Bar::None,
];

/// The adapter's configuration space as after power-on.
pub fn new_config_space() -> ConfigSpace {
    ConfigSpace::new(&IDENTITY, WINDOWS)
}

/// The chip's window that a region of the transport is; `None`: the region is configuration space.
pub fn bar_of_region(region: u32) -> Option<Bar> {
    match region {
        0 => Some(Bar::Io),
        1 => Some(Bar::Registers),
        2 => Some(Bar::Ram),
        _ => None,
    }
}

/// Where the guest has put the windows.
pub fn bar_addresses(config: &ConfigSpace) -> BarAddresses {
    let address = |index| config.bar_address_if_enabled(index).unwrap_or(0);
    BarAddresses {
        io: address(0),
        registers: address(1),
        ram: address(2),
    }
}
