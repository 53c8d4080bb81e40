//! Random requests of a driver, and segments as a driver knows them.

use libc::iovec;
use proptest::collection::vec;
use proptest::prelude::*;
use virtqueue::testing::{Buffer, TestMemory};

/// A piece of guest memory: address and length.
pub type Piece = (u64, usize);

/// The buffers of a request in `len` bytes at `start`: readable and then writable ones, at least one.
pub fn buffers(start: u64, len: u64) -> impl Strategy<Value = Vec<Buffer>> {
    let buffer = move |writable| {
        let bytes = prop_oneof![8 => 1..600u64, 2 => 600..0x5000u64, 1 => Just(0)];
        (bytes, any::<prop::sample::Index>()).prop_map(move |(bytes, place)| Buffer {
            addr: start + place.index(usize::try_from(len - bytes + 1).unwrap()) as u64,
            len: u32::try_from(bytes).unwrap(),
            writable,
        })
    };
    let both = (vec(buffer(false), 0..5), vec(buffer(true), 0..5));
    both.prop_map(move |(mut buffers, writable)| {
        buffers.extend(writable);
        if buffers.is_empty() {
            buffers.push(Buffer::readable(start, 1));
        }
        buffers
    })
}

/// A device's segments as the guest knows them.
pub fn pieces(memory: &TestMemory, segments: &[iovec]) -> Vec<Piece> {
    segments
        .iter()
        .map(|segment| (memory.guest_addr_of(segment), segment.iov_len))
        .collect()
}
