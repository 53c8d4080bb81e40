//! Fuzzing: one target per interface that others write to. `README.md` says how to run them.
//!
//! A target interprets any bytes as a sequence of actions of a guest, front-end or client, with interruptions, and
//! asserts invariants. A panic, a run without end and memory without bound are findings.

mod descriptors;
mod disk;
mod driver;
mod front_end;
mod guest;
mod input;
pub mod lsi_adapter;
pub mod lsi_chip;
pub mod nbd_client;
pub mod nbd_server;
mod observed;
pub mod qmp_bytes;
pub mod rings;
mod scripts;
pub mod scsi_disk;
mod shared;
pub mod vfio_socket;
pub mod vhost_socket;
pub mod virtio_blk;
pub mod virtio_scsi;
pub mod words;
