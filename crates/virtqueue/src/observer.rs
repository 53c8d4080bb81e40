//! Callbacks between a queue and its device, for fuzzing: which chains the device has, and so which memory it may write.

use std::fmt;

use crate::chain::{Chain, ChainId};

/// Callbacks of a fuzz target for chains that are popped and pushed.
pub trait QueueObserver: Send {
    /// A chain was popped, and the device is about to see it.
    fn on_popped(&mut self, id: ChainId, chain: &Chain);

    /// The device pushes a chain.
    fn on_pushed(&mut self, id: ChainId, written_bytes: u32);
}

impl fmt::Debug for dyn QueueObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("QueueObserver")
    }
}
