//! A guest's driver on the other end of vfio-user, and disks that answer when they are told to.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "what is shared with other crates' tests is used in parts; a test that cannot go on fails where it is"
)]

#[path = "../../../lsi53c895a/tests/chip/assemble.rs"]
mod assemble;
#[path = "../../../lsi53c895a/tests/chip/driver.rs"]
mod driver;
#[path = "../../../lsi53c895a/tests/chip/driver_program.rs"]
mod driver_program;
mod far;
mod machine;
mod memory;
#[path = "../../../lsi53c895a/tests/chip/offsets.rs"]
mod offsets;
mod order;
mod sense;
#[path = "../../../vfio-user/tests/support/mod.rs"]
mod support;
mod transfers;
