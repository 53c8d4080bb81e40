//! The locking mode of disks.

/// Converts the locking mode of the options into that of the block layer.
pub(crate) fn to_block_locking(locking: options::Locking) -> block::Locking {
    match locking {
        options::Locking::Auto => block::Locking::Auto,
        options::Locking::On => block::Locking::On,
        options::Locking::Off => block::Locking::Off,
    }
}
