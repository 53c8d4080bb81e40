//! A matrix of real front-ends: versions of QEMU, firmware, devices and kernels, each combination a cell.
//!
//! In each cell the firmware loads a boot loader from the served disk, and that a Linux, which works while the daemon is killed, and
//! finds at its second boot what it wrote at its first. Cells that cannot exist have a reason and not a result.

mod cell;
mod outcome;
mod packages;
mod run_cell;
mod schedule;

pub use cell::{Cell, Device, Filter};
pub use outcome::{Outcome, Passed, Reconnection, Verdict};
pub use packages::{Packages, packages};
pub use run_cell::run_cell;
pub use schedule::run;
