//! The guest's side of an LSI53C895A, for those who drive one: measurements, and the tests of the chip, the adapter and the
//! daemon. Written by the manual, and knows nothing of the crates that it drives.
//!
//! - [`assemble`]: programs for the chip's processor (SCRIPTS).
//! - [`program`]: the one of a driver, as operating systems have it, and where it wants what in memory.
//! - [`offsets`]: where registers are.
//! - [`slot`], [`driver`]: the machine that the adapter is in, and the part of a driver on the CPU, for tests.

pub mod assemble;
pub mod driver;
pub mod offsets;
pub mod program;
pub mod slot;
