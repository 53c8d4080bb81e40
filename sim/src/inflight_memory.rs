//! Memory of a queue's in-flight region, which belongs to the front-end and outlives the daemon.

use std::sync::Arc;

use virtqueue::InflightRegion;

use crate::shared_words::SharedWords;

/// The memory of an in-flight region.
pub struct InflightMemory {
    region: InflightRegion,
}

impl InflightMemory {
    /// A new one.
    #[must_use]
    pub fn new(packed: bool, entries: u16) -> Self {
        let words = InflightRegion::len_bytes(packed, entries) / 8;
        let memory = Arc::new(SharedWords::new(words));
        let host = memory.host();
        // SAFETY: the words are allocated until the owner is dropped, and there are no references to them.
        let region = unsafe { InflightRegion::new(host, packed, entries, memory) };
        InflightMemory { region }
    }

    /// For a queue.
    #[must_use]
    pub fn region(&self) -> InflightRegion {
        self.region.clone()
    }
}
