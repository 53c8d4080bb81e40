//! The device as a guest's driver sees it, with rings in memory and disks that are lists of bytes.
//!
//! - `commands`: responses to commands, and their data.
//! - `framing`: layouts of a request in descriptors, and malformed requests.
//! - `order`: commands that wait for others.
//! - `atomic`: COMPARE AND WRITE on several queues.
//! - `management`: task management functions across queues.
//! - `events`: units that are added, removed or resized.
//! - `transfers`: runs of plain reads and writes, and commands that interrupt them.
//!
//! Random bytes as requests are those of a fuzz target: `virtio-scsi` of `tools/fuzz-targets`.

#![allow(clippy::unwrap_used, reason = "a test ends when it surprises")]
#![allow(
    clippy::cast_possible_truncation,
    reason = "a test's numbers are small"
)]

mod atomic;
mod commands;
mod events;
mod framing;
mod harness;
mod management;
mod order;
mod transfers;
