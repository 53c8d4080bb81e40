//! The LSI 53C895A as the real program serves it: a driver's SCRIPTS on the other end of vfio-user, images behind.
//!
//! - `transfers`: written data reaches the image and is read again.
//! - `serve`: the same with `blockplane serve`.
//! - `reservations`: persistent reservations that outlive the program.
//! - `probes`: USDT probes.
//! - `hostile`: hostile guests and front-ends beside one that must not notice.
//! - `monitor`: exports are added, queried and removed, front-ends reconnect, disks are resized and reopened.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "what is shared with other suites is used in parts; a test that cannot go on fails where it is"
)]

mod hostile;
mod machine;
mod monitor;
#[cfg(target_arch = "x86_64")]
mod probes;
mod reservations;
mod serve;
mod transfers;

use lsi_driver::{assemble, driver};
use test_support::{process, qmp as client};
