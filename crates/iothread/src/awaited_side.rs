//! The side of a source (a queue, a socket device) that its next event is expected from.

use block::AttachedDisk;

use crate::event_loop::AwaitedSide;

/// The side of a source with so many requests in flight on its disks. An adapter without disks awaits the guest.
pub(crate) fn awaited_side(in_flight: u32, disks: &[AttachedDisk]) -> AwaitedSide {
    if !disks.is_empty() && disks.iter().all(AttachedDisk::is_served_by_library) {
        return AwaitedSide::Library;
    }
    match in_flight {
        0 => AwaitedSide::Guest,
        in_flight => AwaitedSide::Disk { in_flight },
    }
}
