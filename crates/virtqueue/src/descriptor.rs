//! Descriptor of a split queue (section 2.7.5), and reads of descriptors of either format: both have
//! 16 bytes, which begin with the address of the buffer and its length.
//!
//! A descriptor is read once, into a copy, and all checks use the copy: the guest may change the original meanwhile, without effect.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Bytes of a descriptor.
pub(crate) const DESCRIPTOR_LEN_BYTES: u16 = 16;

/// `VIRTQ_DESC_F_NEXT`: the chain continues at `next`.
pub(crate) const F_NEXT: u16 = 1;
/// `VIRTQ_DESC_F_WRITE`: the device may write the buffer, and not read it.
pub(crate) const F_WRITE: u16 = 2;
/// `VIRTQ_DESC_F_INDIRECT`: the buffer is a table of descriptors.
pub(crate) const F_INDIRECT: u16 = 4;

/// A descriptor: `struct virtq_desc` in host byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descriptor {
    pub addr: u64,
    pub len: u32,
    pub flags: u16,
    pub next: u16,
}

/// Reads the descriptor at `at`, every byte exactly once.
///
/// # Safety
/// The 16 bytes at `at` are mapped and readable, and no Rust reference to them exists.
#[inline]
pub(crate) unsafe fn read_descriptor_words(at: NonNull<u8>) -> [u64; 2] {
    if at.cast::<AtomicU64>().is_aligned() {
        // SAFETY: the caller's promise, and aligned as just seen.
        unsafe { read_aligned_descriptor_words(at) }
    } else {
        // An indirect table may be at any address: the specification requires no alignment.
        let mut words = [[0u8; 8]; 2];
        for (offset, byte) in words.as_flattened_mut().iter_mut().enumerate() {
            // SAFETY: within the 16 bytes that the caller promised; a byte is always aligned.
            *byte = unsafe { AtomicU8::from_ptr(at.add(offset).as_ptr()) }.load(Ordering::Relaxed);
        }
        words.map(u64::from_ne_bytes)
    }
}

/// As [`read_descriptor_words`], for a descriptor in a ring.
///
/// # Safety
/// As for [`read_descriptor_words`], and `at` is aligned to eight bytes.
#[inline]
pub(crate) unsafe fn read_aligned_descriptor_words(at: NonNull<u8>) -> [u64; 2] {
    let words = at.cast::<u64>();
    // SAFETY: mapped, unborrowed and aligned by the caller's promise. Atomic because the guest may be
    // writing it now.
    unsafe {
        [
            AtomicU64::from_ptr(words.as_ptr()).load(Ordering::Relaxed),
            AtomicU64::from_ptr(words.add(1).as_ptr()).load(Ordering::Relaxed),
        ]
    }
}

impl Descriptor {
    /// Decodes the descriptor's two little-endian words.
    #[inline]
    pub fn from_words(words: [u64; 2]) -> Descriptor {
        let rest = u64::from_le(words[1]);
        Descriptor {
            addr: u64::from_le(words[0]),
            len: (rest & 0xffff_ffff) as u32,
            flags: ((rest >> 32) & 0xffff) as u16,
            next: (rest >> 48) as u16,
        }
    }
}
