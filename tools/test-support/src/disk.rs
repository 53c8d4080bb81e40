//! A disk in memory, for tests of devices that hand requests to one.

use std::slice;

use block::{Allocation, Op, Request};

/// Of blocks that have space or have none.
const BLOCK: usize = 512;

/// Carries a request out on the bytes of a disk. What is discarded reads as zeroes.
///
/// # Safety
///
/// The request's list is valid, and none of its segments lies in the disk's memory.
pub unsafe fn carry_out(disk: &mut [u8], request: &Request) {
    let range = |len: u64| usize::try_from(len).unwrap();
    if request.op == Op::Flush {
        return;
    }
    let mut bytes = &mut disk[range(request.offset)..][..range(request.len)];
    if !matches!(request.op, Op::Read | Op::Write) {
        bytes.fill(0);
        return;
    }
    // SAFETY: our caller's promise.
    let list = unsafe { slice::from_raw_parts(request.iov, request.iov_count as usize) };
    for segment in list {
        let (part, rest) = bytes.split_at_mut(segment.iov_len);
        let base = segment.iov_base.cast::<u8>();
        // SAFETY: within the segment, which is none of the disk's memory.
        unsafe {
            match request.op {
                Op::Read => part.as_ptr().copy_to_nonoverlapping(base, part.len()),
                _ => part.as_mut_ptr().copy_from_nonoverlapping(base, part.len()),
            }
        }
        bytes = rest;
    }
    assert!(bytes.is_empty(), "segments are as long as {request:?}");
}

/// The pieces of a range with and without space, at most so many: blocks of zeroes have none.
#[must_use]
pub fn allocations(bytes: &[u8], most: usize) -> Vec<Allocation> {
    let mut pieces: Vec<Allocation> = Vec::new();
    for block in bytes.chunks(BLOCK) {
        // At once and not byte by byte: this crate is not optimised.
        let allocated = *block != [0; BLOCK][..block.len()];
        let (len, full) = (BLOCK as u64, pieces.len() == most);
        match pieces.last_mut() {
            Some(piece) if piece.allocated == allocated => piece.len += len,
            _ if full => break,
            _ => pieces.push(Allocation { len, allocated }),
        }
    }
    pieces
}
