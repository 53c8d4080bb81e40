//! The chip as drivers see it: registers, programs, and whole commands with targets at the other end.
//!
//! - `registers`, `instructions`, `block_moves`: against the manual.
//! - `firmware`, `queueing`: whole commands, as SeaBIOS and as operating systems give them.
//! - `messages`, `resets`, `far_memory`: what else may happen.
//! - `cves`, `fuzz`: hostile guests.
//! - `places`: programs in the chip's own memory, and out of it.
//! - `machine`, `world`, `driver`: what they are made with, beside `lsi-driver`.

#![allow(clippy::unwrap_used, reason = "a test ends when it surprises")]

mod block_moves;
mod cves;
mod driver;
mod far_memory;
mod firmware;
mod fuzz;
mod instructions;
mod machine;
mod messages;
mod places;
mod queueing;
mod registers;
mod resets;
mod world;

use lsi_driver::{assemble, offsets, program as driver_program};
