//! Support for tests: nodes and a loop for unit tests of this crate, and a driver for these and for the simulator.

mod route_changing_driver;
#[cfg(test)]
mod unit_tests;

#[cfg(test)]
pub(crate) use unit_tests::{attach, file, io, null, run_until_completed, submit, target};
