//! The disk as an initiator sees it: commands in, status, sense and data out.
//!
//! - `reports`: commands that report properties.
//! - `modes`: mode pages.
//! - `blocks`, `comparing`: commands that move, clear and compare blocks.
//! - `atomic`: read-modify-write commands.
//! - `refusals`: commands that are refused.
//! - `attentions`: unit attentions.
//! - `reservations`, `persistent`: reservations.
//! - `many`: more initiators than the word of a unit has bits, up to the most that can register.
//! - `tasks`: tasks that are cancelled, dropped and used again.
//! - `saved_reservations`: reservations that survive a restart.
//! - `threads`: one unit, many threads.
//! - `model`: random commands against a model disk.
//! - `conformance`: the disk under an independent suite.
//! - `no_alloc`: reads and writes do not allocate.
//!
//! Initiators that send anything are in `tools/fuzz-targets`.

#![allow(clippy::unwrap_used, reason = "a test ends when it surprises")]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "numbers of a small disk"
)]

mod atomic;
mod attentions;
mod blocks;
mod comparing;
mod conformance;
mod many;
mod model;
mod modes;
mod no_alloc;
mod persistent;
mod refusals;
mod reports;
mod reservations;
mod rig;
mod saved_reservations;
mod tasks;
mod threads;
