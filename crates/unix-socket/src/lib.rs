//! Unix sockets for both transports and for monitors.
//!
//! - [`listener`]: sockets that clients connect to, bound here or inherited;
//! - [`passed_fds`]: descriptors that a front-end passes: memory to map, eventfds to signal.

pub mod listener;
pub mod passed_fds;
