//! The virtio block device (VIRTIO 1.2, section 5.2) as a pure state machine.
//!
//! A [`Queue`] pops descriptor chains from a virtqueue, turns them into block requests for a
//! [disk](block::DiskIo), and turns completions into status bytes and used entries. It makes no system call, reads
//! no clock and opens no file, so that the same code runs on an iothread, in a unit test, under a
//! fuzzer and in a simulator.
//!
//! The caller signals the guest, maps its memory, and chooses the thread that runs this.

mod config_space;
mod device;
mod merge;
mod parse;
mod probes;
mod queue;
mod slots;
mod wire;

pub use config_space::CONFIG_BYTES;
pub use device::{Device, DeviceOptions, OptionsError, SERIAL_BYTES};
pub use merge::{MAX_MERGED_REQUESTS, MergeLimits};
pub use parse::RequestError;
pub use queue::{AdmitError, Queue, RetryOutcome};
pub use wire::Status;
