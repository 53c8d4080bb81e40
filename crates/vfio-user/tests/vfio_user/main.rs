//! A server of vfio-user and its front-ends. Those that send anything are in `tools/fuzz-targets`.
//!
//! - `commands`, `dma`: the reply to each command; memory that is accessed by messages.
//! - `order`: what is sent before what.
//! - `qemu`: replayed messages of QEMU.
//! - `cloud_hypervisor`: an independent client.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test that cannot go on fails where it is"
)]

mod cloud_hypervisor;
mod commands;
mod dma;
mod order;
mod qemu;
mod transcript;
