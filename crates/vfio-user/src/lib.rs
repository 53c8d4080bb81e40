//! The vfio-user transport, server side: a PCI device behind a Unix socket.
//!
//! The front-end, a virtual machine monitor, gives the device to its guest: it forwards what the guest does to registers,
//! shares the guest's memory, and takes interrupts. What the device does with that is behind [`PciDevice`], and
//! not known here.
//!
//! - [`Server`]: a device and its front-end's socket, never blocking: it shares an iothread with whatever the
//!   device needs; [`Watches`] tells the iothread's loop what to watch. [`Driver`] gives it a thread of its own.
//! - [`ConfigSpace`]: what every PCI device has.
//! - [`wire`]: the messages.
//! - [`testing`]: a device to test with.
//!
//! A front-end may send anything. A message that makes no sense ends its connection, one that cannot be carried out
//! is answered with an error, and neither does anything else.
//!
//! Not here: regions that the front-end maps, MSI, migration, a second socket for what the device asks.

mod bus;
mod commands;
mod config_space;
mod device;
mod dma;
mod driver;
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
mod watches;
pub mod wire;

pub use config_space::{Bar, ConfigSpace, Identity};
pub use device::{DmaId, Host, PciDevice};
pub use driver::Driver;
pub use server::Server;
pub use watches::{Watched, Watches};
