//! Fuzzing: one target per interface that others write to. `fuzz/README.md` says how to run them.
//!
//! A target interprets any bytes as a sequence of actions of a guest, front-end or client, with interruptions, and
//! asserts invariants. A panic, a run without end and memory without bound are findings.

#![allow(
    clippy::unwrap_used,
    reason = "what does not hold here is to stop everything"
)]

mod descriptors;
mod disk;
mod driver;
mod front_end;
mod guest;
mod input;
mod lsi_adapter;
mod lsi_chip;
mod nbd_client;
mod nbd_server;
mod observed;
mod qmp_bytes;
mod rings;
mod scripts;
mod scsi_disk;
mod vfio_socket;
mod vhost_socket;
mod virtio_blk;
mod virtio_scsi;
mod words;

/// A target, which panics if the interface did what it must not do. On a thread of its own it may run beside others.
pub type Target = fn(&[u8]);

/// All of them. Each has a corpus in `fuzz/corpora`.
pub const TARGETS: [(&str, Target); 14] = [
    ("config", words::configuration),
    ("lsi-adapter", lsi_adapter::run),
    ("lsi-chip", lsi_chip::run),
    ("nbd-client", nbd_client::run),
    ("nbd-server", nbd_server::run),
    ("options", words::command_line),
    ("qmp", qmp_bytes::run),
    ("ring-packed", rings::packed),
    ("ring-split", rings::split),
    ("scsi", scsi_disk::run),
    ("vfio-user", vfio_socket::run),
    ("vhost-user", vhost_socket::run),
    ("virtio-blk", virtio_blk::run),
    ("virtio-scsi", virtio_scsi::run),
];

/// The target of that name.
#[must_use]
pub fn find(name: &str) -> Option<Target> {
    let found = TARGETS.iter().find(|(known, _)| *known == name);
    found.map(|(_, target)| *target)
}
