//! Copies bytes between the daemon's memory and a chain's segments in guest memory, and splits lists of segments. The guest may
//! change its memory at any time: each byte is read once.

use libc::iovec;

/// Copies bytes from the beginning of segments. Returns how many were copied.
///
/// # Safety
/// The segments are those of a chain, or parts of them, and their memory map is held.
#[inline]
pub(crate) unsafe fn copy_from_guest(segments: &[iovec], to: &mut [u8]) -> usize {
    let mut done = 0;
    for segment in segments {
        let count = segment.iov_len.min(to.len() - done);
        // SAFETY: mapped, as promised to us; `to` has room for `count` more.
        unsafe {
            let from = segment.iov_base.cast::<u8>();
            std::ptr::copy_nonoverlapping(from, to.as_mut_ptr().add(done), count);
        }
        done += count;
        if done == to.len() {
            break;
        }
    }
    done
}

/// Copies as many bytes to the segments as fit. Returns how many were copied.
///
/// # Safety
/// As for [`copy_from_guest`].
#[inline]
pub(crate) unsafe fn copy_to_guest(segments: &[iovec], from: &[u8]) -> usize {
    let mut done = 0;
    for segment in segments {
        let count = segment.iov_len.min(from.len() - done);
        // SAFETY: as above, the other way round.
        unsafe {
            let to = segment.iov_base.cast::<u8>();
            std::ptr::copy_nonoverlapping(from.as_ptr().add(done), to, count);
        }
        done += count;
        if done == from.len() {
            break;
        }
    }
    done
}

/// Splits segments: calls `head` with those of the first `len` bytes, and appends those of the rest to `tail`.
#[inline]
pub(crate) fn split_segments(
    segments: &[iovec],
    len: usize,
    mut head: impl FnMut(iovec),
    tail: &mut Vec<iovec>,
) {
    let mut left = len;
    for (index, segment) in segments.iter().enumerate() {
        if left == 0 {
            tail.extend_from_slice(&segments[index..]);
            return;
        }
        let count = segment.iov_len.min(left);
        left -= count;
        head(iovec {
            iov_base: segment.iov_base,
            iov_len: count,
        });
        if count < segment.iov_len {
            tail.push(iovec {
                iov_base: segment.iov_base.wrapping_byte_add(count),
                iov_len: segment.iov_len - count,
            });
        }
    }
}
