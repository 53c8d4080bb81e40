//! Guest driver and guest memory for tests.
//!
//! [`TestMemory`] is guest memory without a guest: shared anonymous memory, as one region or several,
//! with unmapped pages around each so that an access outside ends the test. [`DriverRing`] lays out
//! a split virtqueue in it and acts as a guest driver; it can also break the rules,
//! through raw writes of descriptors and indices. [`PackedDriverRing`] is the same for a packed one.
//!
//! For tests only: it panics on misuse and on exhaustion, and it is not fast.
//!
//! ```ignore
//! use virtqueue::testing::{Buffer, DriverRing, TestMemory};
//! use virtqueue::{Chain, RingFeatures};
//!
//! let memory = TestMemory::new(1 << 20);
//! let mut driver = DriverRing::new(&memory, 8, RingFeatures::default());
//! let mut queue = driver.device_queue();
//!
//! let request = memory.alloc_bytes(b"hello");
//! let answer = memory.alloc(512, 512);
//! let head = driver.add(&[Buffer::readable(request, 5), Buffer::writable(answer, 512)]);
//! driver.publish();
//!
//! let mut chain = Chain::new();
//! assert_eq!(queue.pop(&memory.guest_memory(), &mut chain), Ok(Some(head)));
//! assert_eq!(memory.gather(chain.readable()), b"hello");
//! assert_eq!(chain.writable_len(), 512);
//!
//! queue.push(head, 512);
//! assert!(queue.publish());
//! assert_eq!(driver.take_used(), [(head, 512)]);
//! ```

mod driver;
mod memory;
mod packed_driver;

pub use driver::{Buffer, DESC_F_INDIRECT, DESC_F_NEXT, DESC_F_WRITE, DriverRing, RawDescriptor};
pub use memory::{TestMemory, USER_ADDR_OFFSET};
pub use packed_driver::{
    Event, PACKED_DESC_F_AVAIL, PACKED_DESC_F_USED, PackedDriverRing, RawPackedDescriptor,
};
