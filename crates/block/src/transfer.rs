//! Reads and writes by a worker thread: whatever Linux AIO cannot do.
//!
//! - Through the page cache, the segments go to the kernel as they are.
//! - With direct I/O and unaligned memory they go through an aligned buffer.
//! - With direct I/O and a range smaller than the disk's blocks, a write reads the blocks at its
//!   edges first.

use std::ops::Range;
use std::os::fd::AsFd;

use engine::Errno;

use crate::alignment::AlignedBuffer;
use crate::node::FdBacking;
use crate::range_lock::RangeGuard;

/// `preadv(2)` takes no more segments at once.
const IOV_MAX: usize = 1024;

/// Bytes that an aligned buffer holds at most: large enough for a disk's full speed, small enough
/// for 64 workers.
const BUFFER_BYTES: u64 = 1 << 20;

/// Data segments in host memory.
pub(crate) struct Segments<'a>(&'a mut [libc::iovec]);

impl<'a> Segments<'a> {
    /// # Safety
    /// All segments are valid for reads and writes as long as this lives. (Others may write the
    /// memory meanwhile: it is never looked at as a reference.)
    pub unsafe fn new(list: &'a mut [libc::iovec]) -> Self {
        Segments(list)
    }

    fn as_slice(&self) -> &[libc::iovec] {
        self.0
    }

    /// Takes `count` bytes off the front.
    fn advance(&mut self, mut count: usize) {
        let list = std::mem::take(&mut self.0);
        let mut done = 0;
        for segment in list.iter_mut() {
            if segment.iov_len > count {
                segment.iov_base = segment.iov_base.wrapping_byte_add(count);
                segment.iov_len -= count;
                break;
            }
            count -= segment.iov_len;
            done += 1;
        }
        self.0 = &mut list[done..];
    }

    /// Copies from the front of the segments, and takes what was copied off them.
    fn read_into(&mut self, mut bytes: &mut [u8]) {
        while let (Some(segment), false) = (self.0.first(), bytes.is_empty()) {
            let count = segment.iov_len.min(bytes.len());
            // SAFETY: `new`'s caller vouches for the segment; `bytes` is ours and has the room.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    segment.iov_base.cast::<u8>(),
                    bytes.as_mut_ptr(),
                    count,
                );
            }
            bytes = &mut bytes[count..];
            self.advance(count);
        }
    }

    /// Copies to the front of the segments, and takes what was copied off them.
    fn write_from(&mut self, mut bytes: &[u8]) {
        while let (Some(segment), false) = (self.0.first(), bytes.is_empty()) {
            let count = segment.iov_len.min(bytes.len());
            // SAFETY: as for `read_into`, the other way round.
            unsafe {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), segment.iov_base.cast::<u8>(), count);
            }
            bytes = &bytes[count..];
            self.advance(count);
        }
    }

    /// Fills all that is left with zeroes.
    fn fill_zero(&mut self) {
        for segment in self.0.iter() {
            // SAFETY: as for `read_into`.
            unsafe { std::ptr::write_bytes(segment.iov_base.cast::<u8>(), 0, segment.iov_len) };
        }
    }
}

impl FdBacking {
    /// Reads `len` bytes at `offset`; zeroes past the end of the file.
    pub(crate) fn read(&self, offset: u64, len: u64, mut to: Segments<'_>) -> Result<(), Errno> {
        match self.direct {
            Some(direct) if !direct.fits(offset, len, to.as_slice()) => {
                self.read_buffered(offset, len, to, u64::from(direct.offset))
            }
            _ => {
                self.vectored(libc::preadv2, offset, &mut to, 0)?;
                to.fill_zero();
                Ok(())
            }
        }
    }

    /// Writes the segments, `len` bytes, at `offset`; stable when done if `fua`.
    pub(crate) fn write(
        &self,
        offset: u64,
        len: u64,
        mut from: Segments<'_>,
        fua: bool,
    ) -> Result<(), Errno> {
        let flags = if fua && !self.no_flush {
            libc::RWF_DSYNC
        } else {
            0
        };
        let _range = self.lock_blocks(offset, len);
        match self.direct {
            Some(direct) if !direct.fits(offset, len, from.as_slice()) => {
                self.write_buffered(offset, len, from, flags, u64::from(direct.offset))
            }
            _ => {
                self.vectored(libc::pwritev2, offset, &mut from, flags)?;
                // A write of nothing at all: the disk is full without saying so.
                if from.as_slice().is_empty() {
                    Ok(())
                } else {
                    Err(Errno::NOSPC)
                }
            }
        }
    }

    /// Holds the blocks that a write or a discard touches, where small writes rewrite neighbours.
    pub(crate) fn lock_blocks(&self, offset: u64, len: u64) -> Option<RangeGuard<'_>> {
        let direct = self.direct.filter(|_| self.block_mode.partial())?;
        Some(
            self.ranges
                .lock(blocks(offset, len, u64::from(direct.offset))),
        )
    }

    /// Moves bytes until all is done or nothing moves any more.
    fn vectored(
        &self,
        call: unsafe extern "C" fn(i32, *const libc::iovec, i32, libc::off_t, i32) -> isize,
        mut offset: u64,
        segments: &mut Segments<'_>,
        flags: i32,
    ) -> Result<(), Errno> {
        while !segments.as_slice().is_empty() {
            let list = segments.as_slice();
            let count = i32::try_from(list.len().min(IOV_MAX)).map_err(|_| Errno::INVAL)?;
            let position = i64::try_from(offset).map_err(|_| Errno::INVAL)?;
            // SAFETY: the list is ours and as long as said; `Segments::new`'s caller vouches for
            // the memory that it names.
            let moved = unsafe { call(self.raw_fd(), list.as_ptr(), count, position, flags) };
            match usize::try_from(moved) {
                Ok(0) => break,
                Ok(moved) => {
                    offset += moved as u64;
                    segments.advance(moved);
                }
                Err(_) => match last_errno() {
                    Errno::INTR => {}
                    error => return Err(error),
                },
            }
        }
        Ok(())
    }

    fn read_buffered(
        &self,
        offset: u64,
        len: u64,
        mut to: Segments<'_>,
        block: u64,
    ) -> Result<(), Errno> {
        for chunk in chunks(offset, len, block) {
            let around = blocks(chunk.start, chunk.end - chunk.start, block);
            let mut buffer = AlignedBuffer::new(to_usize(around.end - around.start)?);
            self.fill(around.start, buffer.bytes())?;
            let inside = to_usize(chunk.start - around.start)?..to_usize(chunk.end - around.start)?;
            to.write_from(&buffer.bytes()[inside]);
        }
        Ok(())
    }

    fn write_buffered(
        &self,
        offset: u64,
        len: u64,
        mut from: Segments<'_>,
        flags: i32,
        block: u64,
    ) -> Result<(), Errno> {
        for chunk in chunks(offset, len, block) {
            let around = blocks(chunk.start, chunk.end - chunk.start, block);
            let mut buffer = AlignedBuffer::new(to_usize(around.end - around.start)?);
            if around != chunk {
                self.fill(around.start, buffer.bytes())?;
            }
            let inside = to_usize(chunk.start - around.start)?..to_usize(chunk.end - around.start)?;
            from.read_into(&mut buffer.bytes()[inside]);
            let mut list = [as_iovec(buffer.bytes())];
            // SAFETY: the buffer outlives the transfer.
            let mut whole = unsafe { Segments::new(&mut list) };
            let size_before = self.file_size()?;
            self.vectored(libc::pwritev2, around.start, &mut whole, flags)?;
            if !whole.as_slice().is_empty() {
                return Err(Errno::NOSPC);
            }
            // The file may have ended within the last block: it must not become longer for that.
            let size_after = size_before.max(chunk.end);
            if !self.is_device && around.end > size_after {
                rustix::fs::ftruncate(&self.fd, size_after)?;
            }
        }
        Ok(())
    }

    fn file_size(&self) -> Result<u64, Errno> {
        if self.is_device {
            return Ok(u64::MAX);
        }
        Ok(u64::try_from(rustix::fs::fstat(&self.fd)?.st_size).unwrap_or(0))
    }

    /// Reads into a zeroed, aligned buffer, as far as the file goes.
    fn fill(&self, offset: u64, buffer: &mut [u8]) -> Result<(), Errno> {
        let mut done = 0;
        while done < buffer.len() {
            match rustix::io::pread(self.fd.as_fd(), &mut buffer[done..], offset + done as u64) {
                Ok(0) => break,
                // A read that ends within a block has met the end of the file.
                Ok(count)
                    if self
                        .direct
                        .is_some_and(|direct| count % direct.offset as usize != 0) =>
                {
                    break;
                }
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes zeroes the plain way, where the kernel has no better one.
    pub(crate) fn write_zero_bytes(&self, range: Range<u64>) -> Result<(), Errno> {
        let block = self.direct.map_or(1, |direct| u64::from(direct.offset));
        let mut zeroes = AlignedBuffer::new(to_usize(BUFFER_BYTES.min(range.end - range.start))?);
        for chunk in chunks(range.start, range.end - range.start, block) {
            let count = chunk.end - chunk.start;
            let mut list = [as_iovec(&mut zeroes.bytes()[..to_usize(count)?])];
            // SAFETY: the buffer outlives the transfer.
            let mut from = unsafe { Segments::new(&mut list) };
            match self.direct {
                Some(direct) if !direct.fits(chunk.start, count, from.as_slice()) => {
                    self.write_buffered(chunk.start, count, from, 0, block)?;
                }
                _ => {
                    self.vectored(libc::pwritev2, chunk.start, &mut from, 0)?;
                    if !from.as_slice().is_empty() {
                        return Err(Errno::NOSPC);
                    }
                }
            }
        }
        Ok(())
    }
}

fn as_iovec(bytes: &mut [u8]) -> libc::iovec {
    libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    }
}

fn to_usize(bytes: u64) -> Result<usize, Errno> {
    usize::try_from(bytes).map_err(|_| Errno::INVAL)
}

pub(crate) fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// The whole blocks around a range.
fn blocks(offset: u64, len: u64, block: u64) -> Range<u64> {
    offset / block * block..(offset + len).next_multiple_of(block)
}

/// A range in pieces whose surrounding blocks fit a buffer, cut at block borders.
fn chunks(offset: u64, len: u64, block: u64) -> impl Iterator<Item = Range<u64>> {
    let end = offset + len;
    let mut start = offset;
    std::iter::from_fn(move || {
        if start >= end {
            return None;
        }
        let cut = (start / block * block + BUFFER_BYTES).min(end);
        let chunk = start..cut;
        start = cut;
        Some(chunk)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_the_range_and_their_blocks_fit_the_buffer() {
        for (offset, len, block) in [
            (0, 10, 512),
            (513, 3 << 20, 4096),
            (4096, 1 << 20, 4096),
            (5, 0, 512),
        ] {
            let mut at = offset;
            for chunk in chunks(offset, len, block) {
                assert_eq!(chunk.start, at);
                assert!(chunk.end > chunk.start);
                let around = blocks(chunk.start, chunk.end - chunk.start, block);
                assert!(around.end - around.start <= BUFFER_BYTES);
                at = chunk.end;
            }
            assert_eq!(at, offset + len);
        }
    }
}
