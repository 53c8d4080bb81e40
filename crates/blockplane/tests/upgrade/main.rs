//! Live upgrade of a running daemon: another process continues, and connected front-ends notice a pause at most.
//!
//! - `load`: verified load across many upgrades, and across programs that cannot take over.
//! - `preserved_state`: changes over a monitor, sockets, the pidfile, the service manager's state.
//! - `locks`: images, the pidfile and files of reservations are locked all the time.
//! - `round_trip`: every visible setting, with a value that is not the default.
//! - `disabled_queues`: queues that their front-end has disabled.
//! - `scsi`: the same with SCSI controllers, and the state of their initiators.
//! - `lsi_adapter`: host adapters without a front-end.
//! - `secrets`: contents of secrets, which no process has as its arguments.
//! - `bitmaps`: dirty bitmaps, with writes that are in flight.
//! - `throttle`: limits of throttle groups, and requests that wait for them.
//! - `refusals`: objects that cannot be handed over are refused before the upgrade begins.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on fails where it is"
)]

mod bitmaps;
mod disabled_queues;
mod load;
mod locks;
mod lsi_adapter;
mod preserved_state;
mod refusals;
mod round_trip;
mod scsi;
mod secrets;
mod throttle;

use test_support::verifying::{blocks, device};
use test_support::vhost_user::wire;
use test_support::{process, qmp as client, request_driver};
