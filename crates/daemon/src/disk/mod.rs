//! The parts of disks that nodes and exports share: openings, counters, reservations, faults.

pub(crate) mod aio;
pub(crate) mod faults;
pub(crate) mod figures;
pub(crate) mod handover;
pub(crate) mod pr_file;
pub(crate) mod shown;
