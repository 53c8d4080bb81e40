//! A guest's driver on the other end of vfio-user, and disks whose requests are completed by the tests.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test that cannot go on fails where it is"
)]

mod far;
mod machine;
mod memory;
mod order;
mod sense;
mod transfers;

use lsi_driver::{assemble, driver};
