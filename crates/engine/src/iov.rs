//! Changes a request's buffer list (iovecs) in place after a short transfer: skips what is done, zeroes what lies past the end of the
//! file.
//!
//! The list belongs to the submitter, who lends it until completion. It is changed in place because a copy would be an
//! allocation.

use libc::iovec;

/// Skips `done` bytes in place: empties the buffers that they fill, trims the one in which they end, and returns the index of
/// that one. Empty buffers before it are skipped as well. All buffers together are then what remains.
pub fn skip_bytes(iov: &mut [iovec], mut done: u64) -> usize {
    for (index, buffer) in iov.iter_mut().enumerate() {
        let len = buffer.iov_len as u64;
        if done >= len {
            done -= len;
            buffer.iov_base = buffer.iov_base.wrapping_byte_add(buffer.iov_len);
            buffer.iov_len = 0;
            continue;
        }
        // Less than `iov_len`, so it is a usize.
        let skip = usize::try_from(done).unwrap_or(0);
        buffer.iov_base = buffer.iov_base.wrapping_byte_add(skip);
        buffer.iov_len -= skip;
        return index;
    }
    iov.len()
}

/// Fills the buffers with zeros.
///
/// # Safety
/// Every buffer is valid for writes. A guest may access it at the same time; there are no references to it.
pub unsafe fn zero_fill(iov: &[iovec]) {
    for buffer in iov {
        if buffer.iov_len > 0 {
            // SAFETY: the caller promises that the buffer is valid.
            unsafe { buffer.iov_base.cast::<u8>().write_bytes(0, buffer.iov_len) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The list of these buffers.
    fn iov(buffers: &mut [Vec<u8>]) -> Vec<iovec> {
        buffers
            .iter_mut()
            .map(|b| iovec {
                iov_base: b.as_mut_ptr().cast(),
                iov_len: b.len(),
            })
            .collect()
    }

    #[test]
    fn advance_stops_inside_on_and_between_buffers() {
        // (bytes done, whole buffers skipped, bytes skipped in the next one)
        for (done, skipped, inside) in [
            (0, 0, 0),
            (1, 0, 1),
            (2, 0, 2),
            (3, 2, 0),
            (4, 2, 1),
            (7, 2, 4),
            (8, 3, 0),
            (9, 3, 1),
        ] {
            let mut buffers = [vec![0; 3], vec![], vec![0; 5], vec![0; 2]];
            let before = iov(&mut buffers);
            let mut after = iov(&mut buffers);
            assert_eq!(skip_bytes(&mut after, done), skipped, "{done} bytes");
            let left: u64 = after.iter().map(|buffer| buffer.iov_len as u64).sum();
            assert_eq!(left, 10 - done, "{done} bytes");
            assert_eq!(
                after[skipped].iov_len,
                before[skipped].iov_len - inside,
                "{done} bytes"
            );
            assert_eq!(
                after[skipped].iov_base as usize,
                before[skipped].iov_base as usize + inside,
                "{done} bytes"
            );
        }
    }

    #[test]
    fn advance_past_the_end_skips_everything() {
        let mut buffers = [vec![0; 3], vec![0; 5]];
        assert_eq!(skip_bytes(&mut iov(&mut buffers), 8), 2);
        assert_eq!(skip_bytes(&mut iov(&mut buffers), 80), 2);
    }

    #[test]
    fn zero_fill_touches_the_buffers_and_nothing_else() {
        let mut memory = vec![7_u8; 16];
        let base = memory.as_mut_ptr();
        let at = |offset: usize, len| iovec {
            iov_base: base.wrapping_add(offset).cast(),
            iov_len: len,
        };
        // SAFETY: both ranges lie in `memory`, which is not accessed meanwhile.
        unsafe { zero_fill(&[at(2, 3), at(0, 0), at(8, 4)]) };
        assert_eq!(memory, [7, 7, 0, 0, 0, 7, 7, 7, 0, 0, 0, 0, 7, 7, 7, 7]);
    }
}
