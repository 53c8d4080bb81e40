//! Tests of [`block::IoContext`] as devices rely on it: driven with real files,
//! tmpfs and loop devices, through Linux AIO, io_uring and worker threads.
//!
//! Loop devices need root, and some tests need QEMU's tools or a kernel that allows io_uring. Where
//! they cannot be had a test [reports](test_support::report) that it does not run.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod allocation;
mod confined;
mod errors;
mod filter;
mod flush;
mod harness;
mod io_context;
mod locking;
mod model;
mod neighbours;
mod no_holes;
mod null;
mod partial_blocks;
mod resize;
mod space;
mod storage;
mod synchronous;
mod transfer;
mod window;
