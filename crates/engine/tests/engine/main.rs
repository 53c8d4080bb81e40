//! Backends on the real kernel, with files.
//!
//! - `linux_aio`, `uring`: requests and their results.
//! - `no_alloc`: the request path does not allocate.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

mod kernel;
mod linux_aio;
mod no_alloc;
mod support;
mod uring;
