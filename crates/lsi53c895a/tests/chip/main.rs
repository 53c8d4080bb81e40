//! Tests of the chip: registers, programs, and whole commands with targets at the other end.
//!
//! - `registers`, `instructions`, `block_moves`: against the manual.
//! - `firmware`, `queueing`: whole commands, as SeaBIOS and as operating systems give them.
//! - `messages`, `resets`, `far_memory`: messages, resets, and memory without a mapping.
//! - `cves`: hostile guests. Those that send anything are in `tools/fuzz-targets`.
//! - `fast_path`: programs in the chip's own memory and in guest memory.
//! - `no_alloc`: transfers in mapped memory allocate nothing.
//!
//! The machine is that of `test_support::lsi_chip`.

#![allow(clippy::unwrap_used, reason = "a test ends when it surprises")]

mod block_moves;
mod cves;
mod far_memory;
mod fast_path;
mod firmware;
mod instructions;
mod messages;
mod no_alloc;
mod queueing;
mod registers;
mod resets;

use lsi_driver::{assemble, driver};

mod machine {
    pub use lsi_driver::offsets::*;
    pub use lsi_driver::slot::Slot;
    pub use test_support::lsi_chip::*;

    pub type Driver = lsi_driver::driver::Driver<Machine>;
}
