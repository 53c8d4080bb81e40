//! A server of vfio-user and its front-ends.
//!
//! - `commands`, `dma`: the reply to each command; memory that is accessed by messages.
//! - `order`: what is sent before what.
//! - `hostile`: front-ends that send anything.
//! - `qemu`: replayed messages of QEMU.
//! - `on_iothread`: a device on an iothread, also with an independent client.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test that cannot go on fails where it is"
)]

mod commands;
mod dma;
mod hostile;
mod on_iothread;
mod order;
mod qemu;
mod transcript;
