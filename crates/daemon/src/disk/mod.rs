//! The parts of disks that nodes and exports share: openings, counters, reservations, faults.

pub(crate) mod aio;
pub(crate) mod export_stats;
pub(crate) mod exported_disk;
pub(crate) mod faults;
pub(crate) mod handover;
pub(crate) mod pr_file;
