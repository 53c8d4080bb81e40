//! Modules that check the descriptors that front-ends pass over their sockets, before these are used.
//!
//! - [`Mapping`]: a part of the guest's memory. A file whose pages could make the daemon wait is refused, and one
//!   that shrinks later does not end the daemon.
//! - [`check_eventfd_and_set_nonblocking`]: an eventfd, and no other file.
//!
//! The transports know the use of a descriptor and the guest addresses of memory.

mod eventfd;
mod mapping;
mod truncation;

pub use eventfd::{NotAnEventFd, check_eventfd_and_set_nonblocking};
pub use mapping::{MAX_TOTAL_BYTES, MapError, Mapping};
