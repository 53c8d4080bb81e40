//! Disk in memory that checks its requests and completes them later.

use std::sync::Arc;

use block::{Allocation, DiscardLimits, Geometry, Op, Request};
use engine::Errno;
use scsi::{ReservationStore, Unit, UnitOptions};

/// Its bytes.
pub const DISK: usize = 64 << 10;
/// Its blocks' bytes.
pub const BLOCK: usize = 512;

/// What a new disk is.
pub fn geometry() -> Geometry {
    Geometry {
        size: DISK as u64,
        logical_block_size: 512,
        physical_block_size: 512,
        min_io_size: 0,
        opt_io_size: 0,
        discard: DiscardLimits {
            max_bytes: 1 << 20,
            granularity: 512,
        },
    }
}

/// What the disk holds.
pub struct Contents(pub Vec<u8>);

impl Contents {
    pub fn new() -> Self {
        Contents(vec![0; DISK])
    }

    /// Carries out a request that was [checked](check).
    pub fn carry_out(&mut self, request: &Request) {
        let at = usize::try_from(request.offset).expect("checked");
        let len = usize::try_from(request.len).expect("checked");
        match request.op {
            Op::Flush | Op::Discard => {}
            Op::WriteZeroes { .. } => self.0[at..at + len].fill(0),
            Op::Read => {
                let mut from = &self.0[at..at + len];
                for (base, len) in segments(request) {
                    // SAFETY: the submitter keeps this memory until the completion.
                    unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), base, len) };
                    from = &from[len..];
                }
            }
            Op::Write => {
                let mut to = &mut self.0[at..at + len];
                for (base, len) in segments(request) {
                    // SAFETY: as above.
                    unsafe { std::ptr::copy_nonoverlapping(base, to.as_mut_ptr(), len) };
                    to = &mut to[len..];
                }
            }
        }
    }
}

/// Where a request's data are.
pub fn segments(request: &Request) -> Vec<(*mut u8, usize)> {
    if request.iov_count == 0 {
        return Vec::new();
    }
    // SAFETY: the submitter keeps the list until the completion.
    let list = unsafe { std::slice::from_raw_parts(request.iov, request.iov_count as usize) };
    list.iter()
        .map(|piece| (piece.iov_base.cast(), piece.iov_len))
        .collect()
}

/// A request is for blocks that are there, with as much memory as it says.
pub fn check(request: &Request) {
    let end = request
        .offset
        .checked_add(request.len)
        .expect("no disk is as large");
    assert!(end <= DISK as u64, "{request:?}");
    if request.op == Op::Flush {
        return;
    }
    assert!(
        request.len > 0 && (request.offset | request.len).is_multiple_of(BLOCK as u64),
        "{request:?}"
    );
    if matches!(request.op, Op::Read | Op::Write) {
        let sum: usize = segments(request).iter().map(|(_, len)| len).sum();
        assert_eq!(sum as u64, request.len, "{request:?}");
        assert!(
            segments(request)
                .iter()
                .all(|(base, len)| !base.is_null() && *len > 0)
        );
    }
}

/// What a file may say of its holes: pieces that begin and end within blocks.
#[allow(clippy::unnecessary_wraps, reason = "as a node answers")]
pub fn allocations(offset: u64, len: u64, most: usize) -> Result<Vec<Allocation>, Errno> {
    assert!(len > 0 && offset + len <= DISK as u64 && most > 0);
    let mut left = len;
    let pieces = std::iter::from_fn(|| {
        let len = left.min(1000 + left % 5000);
        left -= len;
        (len > 0).then_some(Allocation {
            len,
            allocated: left.is_multiple_of(2),
        })
    });
    Ok(pieces.take(most).collect())
}

/// A store that accepts reservations and checks that they can be restored.
#[derive(Debug)]
pub struct AcceptedReservations;

impl ReservationStore for AcceptedReservations {
    fn save(&self, text: &str) -> Result<(), Errno> {
        let unit = Unit::new(UnitOptions::default(), geometry()).expect("options");
        unit.restore_reservations(text).expect("what was saved");
        Ok(())
    }
}

/// A unit that keeps reservations.
pub fn keeping() -> UnitOptions {
    UnitOptions {
        reservation_store: Some(Arc::new(AcceptedReservations)),
        ..UnitOptions::default()
    }
}
