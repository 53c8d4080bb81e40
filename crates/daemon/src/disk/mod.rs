//! Parts of disks that nodes and exports share: choice of the I/O backend, counters, fault rules, the file of reservations, retries
//! for locked images.

pub(crate) mod aio;
pub(crate) mod export_stats;
pub(crate) mod exported_disk;
pub(crate) mod faults;
pub(crate) mod lock_retry;
pub(crate) mod pr_file;
