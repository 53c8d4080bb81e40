//! The record of what is in flight in a queue: memory of the front-end's, which outlives the daemon.

use std::sync::Arc;

use virtqueue::InflightRegion;

use crate::shared_words::SharedWords;

/// Memory for it.
pub struct Record {
    region: InflightRegion,
}

impl Record {
    /// A new one.
    #[must_use]
    pub fn new(packed: bool, entries: u16) -> Self {
        let words = InflightRegion::len_bytes(packed, entries) / 8;
        let memory = Arc::new(SharedWords::new(words));
        let host = memory.host();
        // SAFETY: the words are allocated until the owner is dropped, and there are no references to them.
        let region = unsafe { InflightRegion::new(host, packed, entries, memory) };
        Record { region }
    }

    /// For a queue.
    #[must_use]
    pub fn region(&self) -> InflightRegion {
        self.region.clone()
    }
}
