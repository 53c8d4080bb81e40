//! Backends on the real kernel, with files.
//!
//! - `both`: requests and their results, by Linux AIO and by io_uring.
//! - `uring`: what only io_uring has.
//!
//! That requests allocate nothing is tested where an iothread serves them.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

mod both;
mod support;
mod uring;
