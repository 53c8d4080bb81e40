//! The virtio SCSI host device (VIRTIO 1.3, section 5.6) as a pure state machine.
//!
//! What commands mean is the `scsi` crate's; here is how they come and go. A [`Queue`] takes descriptor chains off a virtqueue,
//! hands their CDBs to tasks and what these ask of a disk to [its disks](block::DiskIo), and turns completions into responses and used
//! entries. The data stays where the guest has it. A [`ControlQueue`] ends commands, whichever queue has them; an
//! [`EventQueue`] tells of units that come, go, and change their size.
//!
//! It makes no syscall, reads no clock and knows no file. Queues of one [`Device`] may run on different threads: what one has
//! to say to another goes through a [`Port`], which whoever runs the queue makes.

mod address;
mod cancel;
mod config;
mod control;
mod device;
mod error;
mod event;
mod guest_bytes;
mod hand_over;
mod parse;
mod port;
mod queue;
mod slots;
mod table;
mod usual;
mod wire;

pub use address::Address;
pub use cancel::{Cancel, Outcome};
pub use config::CONFIG_BYTES;
pub use control::ControlQueue;
pub use device::{CONTROL_QUEUE, Device, DeviceOptions, EVENT_QUEUE, FIXED_QUEUES, OptionsError};
pub use error::{AdmitError, RequestError};
pub use event::{Event, EventQueue};
pub use hand_over::DeviceState;
pub use port::{Port, ToQueue};
pub use queue::{Batch, Queue, QueueDisk};
pub use wire::Response;
