//! The memory segments of a part of a request, for a task that carries out a request in parts.

use std::ops::Range;

use engine::Request;

/// The segments of these bytes of the disk, which lie within the request's; none if the request has none.
///
/// # Safety
/// The request's list of segments is valid.
pub(crate) unsafe fn segments_of_part(request: &Request, bytes: Range<u64>) -> Vec<libc::iovec> {
    let to_usize = |bytes| usize::try_from(bytes).unwrap_or(usize::MAX);
    let mut skipped = to_usize(bytes.start - request.offset);
    let mut left = to_usize(bytes.end - bytes.start);
    let mut segments = Vec::new();
    for index in 0..request.iov_count as usize {
        // SAFETY: our caller promises that the list is valid.
        let mut segment = unsafe { *request.iov.add(index) };
        let before = skipped.min(segment.iov_len);
        skipped -= before;
        segment.iov_base = segment.iov_base.wrapping_byte_add(before);
        segment.iov_len = (segment.iov_len - before).min(left);
        left -= segment.iov_len;
        if segment.iov_len > 0 {
            segments.push(segment);
        }
    }
    segments
}

#[cfg(test)]
mod tests {
    use engine::Op;

    use super::*;

    #[test]
    fn segments_are_cut_at_both_ends_of_a_part() {
        let memory = [0u8; 100];
        let at = |start: usize, len: usize| libc::iovec {
            iov_base: memory[start..].as_ptr().cast_mut().cast(),
            iov_len: len,
        };
        let mut list = [at(0, 10), at(20, 10), at(40, 10)];
        let request = Request {
            iov: list.as_mut_ptr(),
            iov_count: 3,
            ..Request::without_data(Op::Read, 1000, 30, 0)
        };
        for (bytes, expected) in [
            (1000..1030, vec![(0, 10), (20, 10), (40, 10)]),
            (1000..1004, vec![(0, 4)]),
            (1005..1025, vec![(5, 5), (20, 10), (40, 5)]),
            (1010..1020, vec![(20, 10)]),
            (1022..1023, vec![(42, 1)]),
        ] {
            // SAFETY: the list is above.
            let segments = unsafe { segments_of_part(&request, bytes) };
            let found = segments.iter().map(|segment| {
                let start = segment.iov_base as usize - memory.as_ptr() as usize;
                (start, segment.iov_len)
            });
            assert_eq!(found.collect::<Vec<_>>(), expected);
        }
    }
}
