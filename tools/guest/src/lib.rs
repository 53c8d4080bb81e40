//! A real Linux guest in QEMU, for tests and the demonstration.
//!
//! Only a real guest shows that real drivers, a real block layer and a real file system are content
//! with the server: its rings are filled by independent code. This crate fetches Debian's kernel,
//! packs it with a few tools, boots it on a disk that a vhost-user server provides, and reports what
//! the guest did, step by step.
//!
//! It measures nothing: QEMU emulates the processor, so guests are slow. It needs no root rights.
//!
//! ```no_run
//! use guest::{Boot, Server, ServerOptions};
//! # fn main() -> guest::Result<()> {
//! let folder = guest::disk_folder()?;
//! let options = ServerOptions::new(&folder.path().join("disk.img"), 256 << 20);
//! let server = Server::start(&guest::blockplane()?, &options)?;
//! let report = Boot::new(&server, "first_boot").run()?;
//! println!("{}", report.transcript());
//! server.stop()?;
//! # Ok(())
//! # }
//! ```

mod attach;
mod boot;
mod boot_disk;
mod cache;
mod cpio;
mod debian;
mod demo;
mod emulator;
mod error;
mod grub;
mod initramfs;
mod kernel;
mod modules;
mod monitor;
mod parts;
mod qemu;
mod report;
mod server;

pub use boot::Boot;
pub use boot_disk::boot_disk;
pub use cache::{disk_folder, target_dir};
pub use demo::demo;
pub use emulator::QemuVersion;
pub use error::{Error, Result};
pub use initramfs::pattern;
pub use kernel::KernelVersion;
pub use qemu::RunningGuest;
pub use report::{Report, Step};
pub use server::{Device, RbdImage, Server, ServerOptions, blockplane};
