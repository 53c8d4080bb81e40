//! The virtio block device (VIRTIO 1.2, section 5.2) as a pure state machine.
//!
//! A [`Queue`] takes descriptor chains off a virtqueue, turns them into block requests for a
//! [disk](block::DiskIo), and turns completions into status bytes and used entries. It makes no syscall, reads
//! no clock and knows no file, so that the same code runs on an iothread, in a unit test, under a
//! fuzzer and in a simulator.
//!
//! Who signals the guest, who maps its memory, and which thread all this runs on is decided above.

mod config;
mod device;
mod merge;
mod parse;
mod probes;
mod queue;
mod slots;
mod wire;

pub use config::CONFIG_BYTES;
pub use device::{Device, DeviceOptions, OptionsError, SERIAL_BYTES};
pub use merge::{MAX_MERGED_REQUESTS, MergeLimits};
pub use parse::RequestError;
pub use queue::{AdmitError, Queue, Retried};
pub use wire::Status;
