//! The package: made, looked into, installed into a folder by dpkg, its daemon started by the lines of its
//! units, used, and removed again.
//!
//! Not covered: systemd itself. What it would hand over, the test hands over in its place; whether the units
//! are right, `systemd-analyze` says.

#![allow(clippy::unwrap_used)] // a test that cannot go on fails where it is

mod contents;
mod install;
mod machine;
mod services;
mod units;
