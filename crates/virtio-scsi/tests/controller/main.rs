//! The device as a guest's driver sees it, with rings in memory and disks that are lists of bytes.
//!
//! - `commands`: what is answered to which command, and where its data goes.
//! - `framing`: how a request may be cut into descriptors, and what breaks a queue.
//! - `order`: commands that wait for others.
//! - `atomic`: what reads, changes and writes blocks at once, on several queues.
//! - `management`: task management functions across queues.
//! - `events`: units that come, go, and change.
//! - `transfers`: plain reads and writes that are done together, and what comes between them.
//! - `garbage`: random bytes as requests.

#![allow(clippy::unwrap_used, reason = "a test ends when it surprises")]
#![allow(
    clippy::cast_possible_truncation,
    reason = "a test's numbers are small"
)]

mod atomic;
mod commands;
mod events;
mod framing;
mod garbage;
mod harness;
mod management;
mod order;
mod transfers;
