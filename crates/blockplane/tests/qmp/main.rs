//! Monitors of the real program: what can be asked, and what it changes.

#![allow(clippy::unwrap_used)] // a test that cannot go on fails where it is

mod chardev;
mod client;
#[allow(dead_code)] // of what starts programs, not all is needed here
#[path = "../cli/process.rs"]
mod process;
