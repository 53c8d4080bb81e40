//! Unix sockets that listen for front-ends and monitors, and checks of the descriptors that front-ends pass over them.
//!
//! - [`accept`]: what servers do about results of accept(2);
//! - [`listener`]: sockets that clients connect to, bound here or inherited;
//! - [`passed_fds`]: descriptors of memory that a front-end passes.

pub mod accept;
pub mod listener;
pub mod passed_fds;
