//! A running daemon is upgraded in place: another process goes on, and whoever is connected notices a pause at most.
//!
//! - `load`: verified load across many upgrades, and across programs that cannot take over.
//! - `kept`: what was changed while it ran, locks, sockets, the pidfile, the service manager's knowledge.
//! - `refused`: what cannot be handed over is said before anything has happened.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on fails where it is"
)]

#[allow(dead_code, reason = "shared with another suite")]
#[path = "../qmp/client.rs"]
mod client;
mod daemon;
mod kept;
mod load;
#[allow(dead_code, reason = "shared with another suite")]
#[path = "../cli/process.rs"]
mod process;
mod refused;
