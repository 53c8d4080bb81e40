//! Bytes to and from segments of a chain. The guest may change them at any time: each is read once.

use libc::iovec;

/// Copies bytes of the guest's, from its first on; says how many there were.
///
/// # Safety
/// The segments are those of a chain, or parts of them, and their memory map is held.
#[inline]
pub(crate) unsafe fn copy_from(segments: &[iovec], to: &mut [u8]) -> usize {
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

/// Copies to the guest, as much as fits; says how much that was.
///
/// # Safety
/// As for [`copy_from`].
#[inline]
pub(crate) unsafe fn copy_to(segments: &[iovec], from: &[u8]) -> usize {
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

/// Appends the first `len` bytes of the segments to `head`, and what is behind them to `tail`.
#[inline]
pub(crate) fn cut(
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
