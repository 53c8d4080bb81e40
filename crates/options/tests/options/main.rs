//! Command lines, configuration files and options of objects, from their text to what they mean.
//!
//! - `qsd_command_line`, `notations`: the options of qemu-storage-daemon in both notations.
//! - `serve`, `serve_device`, `config`: `blockplane serve`, and configuration files.
//! - `blkdebug`, `ceph`, `controller`, `monitor`, `nbd`, `throttle`: objects of one kind.
//! - `describe`: options that are described and read back.
//! - `golden`: texts that people and scripts read.

#![allow(
    clippy::unwrap_used,
    reason = "a test that unwraps an error fails, as it should"
)]

mod blkdebug;
mod ceph;
mod config;
mod controller;
mod describe;
mod golden;
mod kinds;
mod monitor;
mod nbd;
mod notations;
mod qsd_command_line;
mod serve;
mod serve_device;
mod throttle;
