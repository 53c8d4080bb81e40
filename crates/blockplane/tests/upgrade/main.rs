//! A running daemon is upgraded in place: another process goes on, and whoever is connected notices a pause at most.
//!
//! - `load`: verified load across many upgrades, and across programs that cannot take over.
//! - `kept`: what was changed while it ran, locks, sockets, the pidfile, the service manager's knowledge.
//! - `locked`: images, the pidfile and files of reservations are locked all the time.
//! - `scsi`: the same with SCSI controllers, and what they know of their initiators.
//! - `adapter`: host adapters without a front-end.
//! - `refused`: what cannot be handed over is said before anything has happened.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on fails where it is"
)]

mod adapter;
#[path = "../crash/blocks.rs"]
mod blocks;
#[allow(dead_code, reason = "shared with another suite")]
#[path = "../qmp/client.rs"]
mod client;
#[allow(dead_code, reason = "shared with another suite")]
#[path = "../qmp/contender.rs"]
mod contender;
mod daemon;
#[allow(dead_code, reason = "shared with another suite")]
#[path = "../crash/device.rs"]
mod device;
#[allow(dead_code, reason = "shared with another suite")]
#[path = "../iothreads/guest.rs"]
mod guest;
mod kept;
#[path = "../crash/link.rs"]
mod link;
mod load;
mod locked;
#[allow(dead_code, reason = "shared with another suite")]
#[path = "../cli/process.rs"]
mod process;
#[path = "../crash/random.rs"]
mod random;
mod refused;
#[path = "../crash/ring.rs"]
mod ring;
mod scsi;
#[allow(dead_code, reason = "shared with another suite")]
#[path = "../crash/guest.rs"]
mod verifying;
#[allow(dead_code, reason = "shared with another suite")]
#[path = "../hostile/wire.rs"]
mod wire;
