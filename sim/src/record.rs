//! The record of what is in flight in a queue: memory of the front-end's, which outlives the daemon.

use std::ptr::NonNull;
use std::sync::Arc;

use virtqueue::InflightRegion;

/// Memory for it.
pub struct Record {
    region: InflightRegion,
}

impl Record {
    /// A new one.
    #[must_use]
    pub fn new(packed: bool, entries: u16) -> Self {
        let words = InflightRegion::len_bytes(packed, entries) / 8;
        let memory = Arc::new(Memory(Box::into_raw(vec![0_u64; words].into_boxed_slice())));
        let host = NonNull::new(memory.0.cast::<u8>()).expect("memory has an address");
        // SAFETY: the words are allocated until the owner is dropped, and nobody refers to them.
        let region = unsafe { InflightRegion::new(host, packed, entries, memory) };
        Record { region }
    }

    /// For a queue.
    #[must_use]
    pub fn region(&self) -> InflightRegion {
        self.region.clone()
    }
}

struct Memory(*mut [u64]);

// SAFETY: the pointer is only used to free the memory, once.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: it was made by `Box::into_raw`, and is freed once.
        drop(unsafe { Box::from_raw(self.0) });
    }
}
