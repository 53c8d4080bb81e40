//! A chain that was recovered from the record of an earlier process.

use crate::packed::PackedDescriptor;

/// A chain that was in flight when the process before this one ended.
#[derive(Debug)]
pub(crate) struct RecoveredChain {
    /// Its entry in the record. Split: its head.
    pub entry: u16,
    /// Packed: its descriptors as the driver made them available. Split: none, they are still in the table.
    pub descriptors: Vec<PackedDescriptor>,
}
