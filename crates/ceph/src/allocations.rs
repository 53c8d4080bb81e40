//! Allocated ranges of an image.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::ptr;

use engine::Errno;
use libc::size_t;

use crate::ImageGeometry;
use crate::errno::check;
use crate::features::has_feature;
use crate::ffi::ImagePointer;
use crate::library::{DIFF_STOPPED, FAST_DIFF_FEATURE, FAST_DIFF_INVALID_FLAG, Functions};

/// A range of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First byte.
    pub offset: u64,
    /// Bytes, not 0.
    pub len: u64,
    /// Whether it has objects; a range without reads as zeroes.
    pub allocated: bool,
}

/// Ranges with and without objects in `range`, at most `most`. Waits for the cluster; the image is open.
pub(crate) fn read(
    functions: &'static Functions,
    image: ImagePointer,
    geometry: &ImageGeometry,
    range: Range<u64>,
    most: usize,
) -> Result<Vec<Extent>, Errno> {
    let mut extents = Extents::new(range.clone(), most);
    if !is_cheap(functions, image, geometry)? {
        extents.add_allocated(range);
        return Ok(extents.finish());
    }
    // Versions before 2022 report wrong ranges unless the first byte is that of an object.
    let begin = range.start - range.start % geometry.object_bytes.max(1);
    // SAFETY: the image is open; the callback gets `extents`, which outlives the call.
    let iterated = unsafe {
        (functions.rbd_diff_iterate2)(
            image.0,
            ptr::null(),
            begin,
            range.end - begin,
            1,
            1,
            add_range,
            (&raw mut extents).cast(),
        )
    };
    if iterated != DIFF_STOPPED {
        check(iterated)?;
    }
    Ok(extents.finish())
}

/// Whether librbd has a table of the objects, and its ranges are right.
fn is_cheap(
    functions: &'static Functions,
    image: ImagePointer,
    geometry: &ImageGeometry,
) -> Result<bool, Errno> {
    let (mut flags, mut overlap) = (0, 0);
    let has_table = has_feature(functions, image, FAST_DIFF_FEATURE)?;
    // SAFETY: the image is open.
    check(unsafe { (functions.rbd_get_flags)(image.0, &raw mut flags) })?;
    // SAFETY: the image is open.
    let parent = check(unsafe { (functions.rbd_get_overlap)(image.0, &raw mut overlap) });
    let is_clone = match parent {
        Ok(()) => overlap > 0,
        Err(Errno::NOENT) => false,
        Err(errno) => return Err(errno),
    };
    Ok(has_table
        && flags & FAST_DIFF_INVALID_FLAG == 0
        && geometry.stripe_unit == geometry.object_bytes
        && geometry.stripe_count == 1
        && !is_clone)
}

/// Called by librbd for each range with objects, in order.
///
/// # Safety
/// `extents` is the `Extents` of [`read`].
unsafe extern "C" fn add_range(
    offset: u64,
    len: size_t,
    exists: c_int,
    extents: *mut c_void,
) -> c_int {
    // SAFETY: our caller promises it; there is no other reference during the call.
    let extents = unsafe { &mut *extents.cast::<Extents>() };
    if exists != 0 {
        extents.add_allocated(offset..offset.saturating_add(len as u64));
    }
    if extents.is_full() { DIFF_STOPPED } else { 0 }
}

/// Extents of a range, made from those of its objects.
struct Extents {
    /// The part that has no extent yet; empty as soon as there are as many as wanted.
    rest: Range<u64>,
    most: usize,
    list: Vec<Extent>,
}

impl Extents {
    fn new(range: Range<u64>, most: usize) -> Self {
        Self {
            rest: range,
            most,
            list: Vec::new(),
        }
    }

    /// Appends the gap before an allocated range, and the part of it inside of ours.
    fn add_allocated(&mut self, range: Range<u64>) {
        self.push(range.start, false);
        self.push(range.end, true);
    }

    /// Appends a range up to `end`, or makes the last one longer.
    fn push(&mut self, end: u64, allocated: bool) {
        let (offset, end) = (self.rest.start, end.min(self.rest.end));
        if end <= offset {
            return;
        }
        let is_full = self.list.len() == self.most;
        match self.list.last_mut() {
            Some(last) if last.allocated == allocated => last.len += end - offset,
            _ if is_full => {
                self.rest.start = self.rest.end;
                return;
            }
            _ => self.list.push(Extent {
                offset,
                len: end - offset,
                allocated,
            }),
        }
        self.rest.start = end;
    }

    /// Whether nothing more is wanted.
    fn is_full(&self) -> bool {
        self.rest.is_empty()
    }

    /// The extents, to the end if there is room.
    fn finish(mut self) -> Vec<Extent> {
        self.push(self.rest.end, false);
        self.list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ends of the extents of 100..1000 for these allocated ranges, and whether each is allocated. They have no gaps.
    fn extents(most: usize, allocated: &[Range<u64>]) -> Vec<(u64, bool)> {
        let mut extents = Extents::new(100..1000, most);
        for range in allocated {
            extents.add_allocated(range.clone());
            if extents.is_full() {
                break;
            }
        }
        let mut end = 100;
        let ends = extents.finish().into_iter().map(|extent| {
            assert_eq!(extent.offset, end);
            end += extent.len;
            (end, extent.allocated)
        });
        ends.collect()
    }

    #[test]
    fn extents_cover_the_range_without_gaps() {
        assert_eq!(extents(9, &[]), [(1000, false)]);
        let found = extents(9, &[0..200, 300..400]);
        assert_eq!(
            found,
            [(200, true), (300, false), (400, true), (1000, false)]
        );
        assert_eq!(extents(9, &[0..150, 150..2000]), [(1000, true)]);
        let found = extents(9, &[0..50, 900..2000]);
        assert_eq!(found, [(900, false), (1000, true)]);
    }

    #[test]
    fn extents_end_at_the_most_that_are_wanted() {
        let all = [(200, true), (300, false), (400, true)];
        for most in 0..=3 {
            let found = extents(most, &[0..200, 300..400, 500..600]);
            assert_eq!(found, all[..most]);
        }
        let adjacent = extents(2, &[0..200, 200..400, 400..500]);
        assert_eq!(adjacent, [(500, true), (1000, false)]);
    }
}
