//! The daemon behind the program: state, the actions that change it, and the faces through which they are asked for.
//!
//! Imports point down in this list:
//! - `run`: a process from its start to its orderly end;
//! - faces: `monitor` (QMP), and in `control` the monitors' sockets, `metrics` (served by `openmetrics`) and the service manager;
//! - `actions`: typed changes of the state; `jobs`: those that have to wait for a disk;
//! - `control`: the main thread, which does one thing after the other;
//! - `state`: iothreads, nodes, exports and chardevs by name;
//! - `devices`: what front-ends connect to; `disk`: parts of disks;
//! - `process`, `upgrade`, `service`: the process, its channel to a successor, and the service manager.

mod actions;
mod control;
mod devices;
mod disk;
mod failure;
mod jobs;
mod metrics;
mod monitor;
mod openmetrics;
pub mod process;
mod reason;
pub mod run;
pub mod service;
mod state;
pub mod upgrade;

pub use devices::unit::world_wide_name;
pub use failure::Failure;

/// What monitors can be asked, as `query-qmp-schema` answers.
#[must_use]
pub fn schema() -> serde_json::Value {
    monitor::interface().schema()
}
