//! The virtio SCSI host device (VIRTIO 1.3, section 5.6) as a pure state machine.
//!
//! The `scsi` crate executes commands; this crate is their transport. A [`Queue`] pops descriptor chains from a virtqueue,
//! passes their CDBs to tasks and the block requests of tasks to [its disks](block::DiskIo), and turns completions into responses
//! and used entries. The data is not copied. A [`ControlQueue`] ends commands, whichever queue has them; an [`EventQueue`]
//! reports units that are added, removed or resized.
//!
//! It makes no system call, reads no clock and opens no file. Queues of one [`Device`] may run on different threads: they send
//! each other messages through a [`MessagePort`], which the caller supplies.

mod address;
mod command_parser;
mod config;
mod control_queue;
mod device;
mod error;
mod event_queue;
mod fast_path;
mod guest_bytes;
mod handover;
mod messages;
mod queue;
mod slots;
mod unit_event;
mod unit_table;
mod wire;

pub use address::Address;
pub use config::CONFIG_BYTES;
pub use control_queue::ControlQueue;
pub use device::{CONTROL_QUEUE, Device, DeviceOptions, EVENT_QUEUE, FIXED_QUEUES, OptionsError};
pub use error::{AdmitError, RequestError};
pub use event_queue::EventQueue;
pub use handover::DeviceState;
pub use messages::{MessagePort, QueueMessage, TmfOutcome, TmfSharedByQueues};
pub use queue::{AdmitMemoryAndTime, DiskAddressAndStats, Queue};
pub use unit_event::UnitEvent;
pub use wire::Response;
