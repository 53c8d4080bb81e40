//! Disks in memory that check their requests and complete them later.

use std::sync::Arc;

use block::{Allocation, DiscardLimits, DiskCall, DiskIo, Geometry, Op, Request};
use engine::{Completion, Errno};
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

/// Where a request's data are.
fn segments(request: &Request) -> Vec<(*mut u8, usize)> {
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

/// Carries out a request that was [checked](check).
pub fn carry_out(contents: &mut [u8], request: &Request) {
    // SAFETY: the submitter keeps list and memory until the completion; a disk's memory is its own.
    unsafe { test_support::disk::carry_out(contents, request) };
}

/// What a request waits for.
pub enum Waits {
    Disk(usize, Request),
    Call(DiskCall),
}

/// Disks, and what they have not yet done.
pub struct Disks {
    pub contents: Vec<Vec<u8>>,
    /// With their tokens.
    pub waiting: Vec<(u64, Waits)>,
    /// Requests that all of them take.
    pub room: usize,
    pub read_only: bool,
    /// Whether the device has blocking calls for workers.
    pub expects_calls: bool,
}

impl Disks {
    pub fn new(count: usize, room: usize) -> Self {
        Disks {
            contents: vec![vec![0; DISK]; count],
            waiting: Vec::new(),
            room,
            read_only: false,
            expects_calls: true,
        }
    }

    fn start(&mut self, token: u64, waits: Waits) {
        let is_used = self.waiting.iter().any(|(used, _)| *used == token);
        assert!(!is_used, "one request of a slot");
        self.waiting.push((token, waits));
    }

    /// A disk has done what it was asked, or not.
    pub fn complete(&mut self, which: usize, fails: bool) -> Option<Completion> {
        let at = which.checked_rem(self.waiting.len())?;
        let (token, waits) = self.waiting.remove(at);
        let result = match waits {
            _ if fails => Err(Errno::IO),
            Waits::Call(call) => call.run_with_allocations(allocations),
            Waits::Disk(disk, request) => {
                carry_out(&mut self.contents[disk], &request);
                Ok(())
            }
        };
        Some(Completion { token, result })
    }
}

impl DiskIo for Disks {
    fn room(&self, _: u32) -> usize {
        self.room.saturating_sub(self.waiting.len())
    }

    unsafe fn submit(&mut self, disk: u32, request: Request) {
        assert!(self.waiting.len() < self.room, "there is room");
        let writes = !matches!(request.op, Op::Read | Op::Flush);
        assert!(!(self.read_only && writes), "{request:?}");
        check(&request);
        self.start(request.token, Waits::Disk(disk as usize, request));
    }

    fn submit_blocking_call(&mut self, _: u32, call: DiskCall, number: u32) {
        assert!(self.expects_calls, "this device has no calls");
        self.start(number.into(), Waits::Call(call));
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
