//! Tests of the chip: registers, programs, and whole commands with targets at the other end.
//!
//! - `registers`, `instructions`, `block_moves`: against the manual.
//! - `firmware`, `queueing`: whole commands, as SeaBIOS and as operating systems give them.
//! - `messages`, `resets`, `far_memory`: messages, resets, and memory without a mapping.
//! - `cves`, `fuzz`: hostile guests.
//! - `fast_path`: programs in the chip's own memory and in guest memory.
//! - `no_alloc`: transfers in mapped memory allocate nothing.
//! - `machine`, `world`: helpers, beside `lsi-driver`.

#![allow(clippy::unwrap_used, reason = "a test ends when it surprises")]

mod block_moves;
mod cves;
mod far_memory;
mod fast_path;
mod firmware;
mod fuzz;
mod instructions;
mod machine;
mod messages;
mod no_alloc;
mod queueing;
mod registers;
mod resets;
mod world;

use lsi_driver::{assemble, driver};
