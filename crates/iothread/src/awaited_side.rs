//! The side of a source (a queue, a socket device) that its next event is expected from.

use block::AttachedDisk;

use crate::event_loop::AwaitedSide;

/// The side of a source with so many requests in flight on its disks.
pub(crate) fn awaited_side(in_flight: u32, disks: &[AttachedDisk]) -> AwaitedSide {
    match in_flight {
        0 => AwaitedSide::Guest,
        _ if disks.iter().all(AttachedDisk::is_served_by_library) => AwaitedSide::Library,
        in_flight => AwaitedSide::Disk { in_flight },
    }
}
