//! The daemon: its state, the actions that change it, and the interfaces that call them.
//!
//! Imports point down in this list:
//! - `run`: the daemon from its start to its orderly end;
//! - `monitor`: QMP commands;
//! - `actions`: typed changes of the state; `command_threads`: commands that wait for a disk;
//! - `control`: the main thread, which owns the state, the monitors, the metrics and the connection to the service manager;
//! - `metrics`, served by `openmetrics`: Prometheus metrics;
//! - `state`: iothreads, secrets, throttle groups, nodes, exports and chardevs by name;
//! - `devices`: devices and servers of exports; `disk`: what nodes and exports share of disks;
//! - `process`, `upgrade`, `service`: privileges and signals, the channel between two versions of the daemon, and the service
//!   manager.

mod actions;
mod command_threads;
mod control;
mod devices;
mod disk;
mod errno_text;
mod error;
mod metrics;
mod monitor;
mod openmetrics;
pub mod process;

pub mod run;
pub mod service;
mod state;
#[cfg(test)]
mod testing;
pub mod upgrade;

pub use devices::scsi_unit::world_wide_name;
pub use error::BoxError;

/// The QMP schema, as `query-qmp-schema` returns it.
#[must_use]
pub fn qmp_schema() -> serde_json::Value {
    monitor::qmp_interface().schema()
}
