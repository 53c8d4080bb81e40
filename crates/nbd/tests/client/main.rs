//! The client against servers that the tests script: data, broken connections, and what hostile servers send.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod ends;
mod given_up;
mod hostile;
mod losses;
mod outages;
mod rig;
mod server;
mod transfers;
