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

    /// Where it ends inside of, on and between buffers is part of the model test of the engines.
    #[test]
    fn skipping_past_the_end_skips_everything() {
        for done in [8, 80] {
            let mut buffers = [3, 0, 5].map(|iov_len| iovec {
                iov_base: std::ptr::without_provenance_mut(0x1000),
                iov_len,
            });
            assert_eq!(skip_bytes(&mut buffers, done), 3, "{done}");
        }
    }
}
