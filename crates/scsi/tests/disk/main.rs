//! The disk as an initiator sees it: commands in, status, sense and data out.
//!
//! - `answers`: what says what there is.
//! - `modes`: mode pages.
//! - `blocks`, `comparing`: what moves, clears and compares blocks.
//! - `atomic`: what reads, changes and writes blocks at once.
//! - `refusals`: what is refused, and how.
//! - `attentions`: what initiators are told.
//! - `reservations`, `persistent`: who may do what.
//! - `many`: more initiators than the word of a unit has bits, up to the most that can register.
//! - `tasks`: tasks that wait, and that are cancelled.
//! - `kept`: reservations that outlive the program.
//! - `threads`: one unit, many threads.
//! - `model`: random commands against a model disk.
//! - `hostile`: random bytes as commands.

#![allow(clippy::unwrap_used, reason = "a test ends when it surprises")]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "numbers of a small disk"
)]

mod answers;
mod atomic;
mod attentions;
mod blocks;
mod comparing;
mod hostile;
mod kept;
mod many;
mod model;
mod modes;
mod persistent;
mod refusals;
mod reservations;
mod rig;
mod tasks;
mod threads;
