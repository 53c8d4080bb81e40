//! Parts of disks that nodes and exports share: backends, counters, faults, reservations, retries of locks.

pub(crate) mod aio;
pub(crate) mod export_stats;
pub(crate) mod exported_disk;
pub(crate) mod faults;
pub(crate) mod lock_retry;
pub(crate) mod pr_file;
