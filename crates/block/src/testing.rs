//! Support for tests: nodes and a loop for unit tests of this crate, and a driver for these and for the simulator.

mod route_changing_driver;
#[cfg(test)]
mod unit_tests;

#[cfg(test)]
pub(crate) use unit_tests::{
    attach, attached, fault, file, file_with_cache, filter, io, null, rules, run_for_a_while,
    run_phases, run_until_completed, submit, submit_range, target, window, write,
};
