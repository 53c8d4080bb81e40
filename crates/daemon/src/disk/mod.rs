//! Parts of disks that nodes and exports share: choice of the I/O backend, counters, fault rules, files of reservations and of
//! dirty bitmaps, retries for locked images.

pub(crate) mod aio;
pub(crate) mod bitmap_file;
pub(crate) mod export_stats;
pub(crate) mod exported_disk;
pub(crate) mod faults;
pub(crate) mod lock_retry;
pub(crate) mod locking;
pub(crate) mod pr_file;
pub(crate) mod replaced_file;
