//! Request types in tracepoints, in the numbers of VIRTIO (section 5.2.6) for all devices.

use block::Op;

/// The type of a request: `VIRTIO_BLK_T_*`.
#[must_use]
pub fn request_type(op: Op) -> u32 {
    match op {
        Op::Read => 0,
        Op::Write => 1,
        Op::Flush => 4,
        Op::Discard => 11,
        Op::WriteZeroes { .. } => 13,
    }
}

/// The status of a request that succeeded, or not: `VIRTIO_BLK_S_OK` and `VIRTIO_BLK_S_IOERR`.
#[must_use]
pub fn status(succeeded: bool) -> u64 {
    u64::from(!succeeded)
}
