//! Descriptors that front-ends pass over their sockets, looked at before they are used.
//!
//! - [`Mapping`]: a piece of the guest's memory. A file that could keep us waiting is refused, and one
//!   that shrinks later does not kill us.
//! - [`checked`]: an eventfd to signal or to be signalled with, and nothing else.
//!
//! What a descriptor is for, and where the guest sees the memory, is the transports' business.

mod eventfd;
mod mapping;
mod truncation;

pub use eventfd::{NotAnEventFd, checked};
pub use mapping::{MAX_TOTAL_BYTES, MapError, Mapping};
