//! Support for tests: options of files and rules of faults for those of users as well, nodes and a loop for unit tests of this crate, and a
//! driver for these and for the simulator.

#[cfg(any(test, feature = "simulation"))]
mod route_changing_driver;
#[cfg(test)]
mod unit_tests;

use std::path::Path;

use engine::Op;

use crate::{Aio, FaultAction, FaultRule, FileOptions, Locking};

#[cfg(test)]
pub(crate) use unit_tests::{
    attach, attached, file, file_with_cache, filter, io, null, rules, run_phases,
    run_until_completed, run_until_idle, submit, submit_range, target, window, write,
};

/// Direct I/O with flushes and discards, not locked.
pub fn file_options(path: &Path, aio: Aio) -> FileOptions {
    FileOptions {
        path: path.to_owned(),
        direct: true,
        no_flush: false,
        unmap: true,
        aio,
        aio_max_batch: 0,
        locking: Locking::Off,
        force_share: false,
    }
}

/// A rule for all requests of one kind, or for all.
pub fn fault(op: Option<Op>, action: FaultAction) -> FaultRule {
    FaultRule {
        begins: None,
        op,
        bytes: None,
        times: None,
        one_in: 1,
        action,
    }
}
