//! Support for tests: nodes and a loop for unit tests of this crate, and a driver for these and for the simulator.

mod route_changing_driver;
#[cfg(test)]
mod unit_tests;

#[cfg(test)]
pub(crate) use unit_tests::{
    attach, attached, fault, file, file_with_cache, filter, io, null, rules, run_phases,
    run_until_completed, run_until_idle, submit, submit_range, target, window, write,
};
