//! The vfio-user transport, server side: a PCI device behind a Unix socket.
//!
//! The front-end, a virtual machine monitor, passes the device to its guest: it forwards the guest's register accesses,
//! shares the guest's memory, and receives interrupts. The device implements [`PciDevice`].
//!
//! - [`Server`]: a device and its front-end's socket. It never blocks, so that it can share an iothread with the disks of the
//!   device.
//! - [`ConfigSpace`]: the configuration space of a PCI device.
//! - [`wire`]: the messages.
//! - [`testing`]: a device for tests.
//!
//! A front-end may send anything. A malformed message ends its connection, a command that cannot be executed
//! gets an error reply, and neither has any other effect.
//!
//! Not implemented: regions that the front-end maps, MSI, migration, a second socket for messages of the device.

mod bus;
mod commands;
mod config_space;
mod device;
mod dma;
mod error;
mod incoming;
mod intx;
mod irqs;
mod limits;
mod maps;
mod outgoing;
mod payload;
mod registers;
mod server;
mod session;
pub mod testing;
mod version;
pub mod wire;

pub use config_space::{Bar, ConfigSpace, PciIdentity};
pub use device::{DmaId, PciDevice, PciHost};
pub use server::Server;
