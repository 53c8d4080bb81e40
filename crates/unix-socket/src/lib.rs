//! Unix sockets, as both transports use them.
//!
//! - [`listener`]: sockets that clients connect to, made here or inherited;
//! - [`passed_fds`]: descriptors that a front-end passes: memory to map, eventfds to signal.

pub mod listener;
pub mod passed_fds;
