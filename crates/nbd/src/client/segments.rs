//! Parts of a request's segments: lists for system calls, copies, zeroes. The request's own list stays as it is, since the request
//! may be sent again.

use libc::iovec;

/// Appends the segments of `len` bytes that begin `skip` bytes into a list, until `out` has `most` entries. Returns how many bytes
/// the appended segments have.
pub(super) fn append_part(
    list: &[iovec],
    mut skip: u64,
    len: u64,
    out: &mut Vec<iovec>,
    most: usize,
) -> u64 {
    let mut rest = len;
    for segment in list {
        if rest == 0 || out.len() >= most {
            break;
        }
        let bytes = segment.iov_len as u64;
        if skip >= bytes {
            skip -= bytes;
            continue;
        }
        let part = (bytes - skip).min(rest);
        // Both are at most `iov_len`.
        let (begin, iov_len) = (to_usize(skip), to_usize(part));
        out.push(iovec {
            iov_base: segment.iov_base.wrapping_byte_add(begin),
            iov_len,
        });
        rest -= part;
        skip = 0;
    }
    len - rest
}

/// Calls `fill` for each piece of the `len` bytes that begin `skip` bytes into a list, with the piece and the offset of it among
/// these bytes.
fn for_each_piece(
    list: &[iovec],
    mut skip: u64,
    len: u64,
    mut fill: impl FnMut(*mut u8, usize, usize),
) {
    let mut done = 0;
    for segment in list {
        let bytes = segment.iov_len as u64;
        if skip >= bytes {
            skip -= bytes;
            continue;
        }
        let part = (bytes - skip).min(len - done);
        if part == 0 {
            break;
        }
        let begin = segment.iov_base.cast::<u8>().wrapping_add(to_usize(skip));
        fill(begin, to_usize(part), to_usize(done));
        done += part;
        skip = 0;
    }
    debug_assert_eq!(done, len, "the range lies within the segments");
}

/// Copies bytes into the segments, `skip` bytes behind their beginning.
///
/// # Safety
/// The segments are valid for writes, and `skip` and the bytes lie within them. A guest may access them at the same time.
pub(super) unsafe fn copy_into(list: &[iovec], skip: u64, bytes: &[u8]) {
    for_each_piece(list, skip, bytes.len() as u64, |to, len, from| {
        let from = &bytes[from..][..len];
        // SAFETY: our caller promises that the segment is valid; `from` is memory of this process.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, len) };
    });
}

/// Appends `len` bytes of the segments to `out`, from `skip` bytes behind their beginning.
///
/// # Safety
/// The segments are valid for reads, and the range lies within them. A guest may access them at the same time.
pub(super) unsafe fn copy_from(list: &[iovec], skip: u64, len: u64, out: &mut Vec<u8>) {
    let begin = out.len();
    out.resize(begin + to_usize(len), 0);
    let to = out[begin..].as_mut_ptr();
    for_each_piece(list, skip, len, |from, len, at| {
        // SAFETY: our caller promises that the segment is valid; `at` and `len` lie within what was appended.
        unsafe { std::ptr::copy_nonoverlapping(from, to.wrapping_add(at), len) };
    });
}

/// Fills `len` bytes of the segments with zeroes, `skip` bytes behind their beginning.
///
/// # Safety
/// As for [`copy_into`].
pub(super) unsafe fn zero_part(list: &[iovec], skip: u64, len: u64) {
    for_each_piece(list, skip, len, |to, len, _| {
        // SAFETY: our caller promises that the segment is valid.
        unsafe { to.write_bytes(0, len) };
    });
}

/// A number that is known to be at most a length in memory.
pub(super) fn to_usize(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}
