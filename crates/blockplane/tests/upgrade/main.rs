//! A running daemon is upgraded in place: another process goes on, and whoever is connected notices a pause at most.
//!
//! - `load`: verified load across many upgrades, and across programs that cannot take over.
//! - `kept`: what was changed while it ran, locks, sockets, the pidfile, the service manager's knowledge.
//! - `locked`: images, the pidfile and files of reservations are locked all the time.
//! - `round_trip`: every setting that can be seen, changed from what it usually is.
//! - `disabled`: queues that their front-end has disabled.
//! - `scsi`: the same with SCSI controllers, and what they know of their initiators.
//! - `adapter`: host adapters without a front-end.
//! - `refused`: what cannot be handed over is said before anything has happened.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on fails where it is"
)]

mod adapter;
#[allow(dead_code, reason = "shared with another suite")]
#[path = "../qmp/contender.rs"]
mod contender;
mod daemon;
mod disabled;
mod kept;
mod load;
mod locked;
mod refused;
mod round_trip;
mod scsi;

use test_support::verifying::{blocks, device, guest as verifying, random};
use test_support::vhost_user::wire;
use test_support::{guest, process, qmp as client};
