//! Modules that check the memory that front-ends pass over their sockets, before it is used. (Eventfds: the crate `eventfd`.)
//!
//! - [`Mapping`]: a part of the guest's memory. A file whose pages could make the daemon wait is refused, and one
//!   that shrinks later does not end the daemon.
//!
//! The transports know the use of a descriptor and the guest addresses of memory.

mod mapping;
mod truncation;

pub use mapping::{MAX_TOTAL_BYTES, MapError, Mapping};
