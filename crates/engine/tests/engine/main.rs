//! Backends on the real kernel, with files.
//!
//! - `both`: requests and their results, by Linux AIO and by io_uring.
//! - `uring`: what only io_uring has.
//! - `no_alloc`: the request path does not allocate.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

mod both;
mod no_alloc;
mod support;
mod uring;
