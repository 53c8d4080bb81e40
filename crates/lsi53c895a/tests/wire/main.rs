//! A guest's driver on the other end of vfio-user, and disks whose requests are completed by the tests.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "what is shared with other crates' tests is used in parts; a test that cannot go on fails where it is"
)]

#[path = "../../../lsi53c895a/tests/chip/driver.rs"]
mod driver;
mod far;
mod machine;
mod memory;
mod order;
mod sense;
mod transfers;

use lsi_driver::{assemble, offsets, program as driver_program};
