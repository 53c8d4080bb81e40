//! The LSI 53C895A as the real program serves it: a driver's SCRIPTS on the other end of vfio-user, images behind.
//!
//! - `transfers`: what a guest writes is in the image, and it reads it back.
//! - `served`: the same from `blockplane serve`.
//! - `reservations`: persistent reservations that outlive the program.
//! - `traced`: what a tracer sees.
//! - `hostile`: guests and front-ends that do what they should not, beside one that must not notice.
//! - `managed`: exports are added, looked at and removed, front-ends come and go, disks change their size and are opened anew.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "what is shared with other suites is used in parts; a test that cannot go on fails where it is"
)]

#[path = "../../../lsi53c895a/tests/chip/driver.rs"]
mod driver;
mod hostile;
mod machine;
mod managed;
mod reservations;
mod served;
#[cfg(target_arch = "x86_64")]
mod traced;
mod transfers;

use lsi_driver::{assemble, offsets, program as driver_program};
use test_support::{process, qmp as client};
