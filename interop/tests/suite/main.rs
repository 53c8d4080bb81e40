//! The suite: one module per subject. See README.md for how to run it.
#![allow(clippy::unwrap_used)] // a test that cannot go on fails where it is

mod errors;
mod monitor;
mod patterns;
mod queues;
mod reconnect;
mod rig;
mod shapes;
mod variants;
mod zeroes;
