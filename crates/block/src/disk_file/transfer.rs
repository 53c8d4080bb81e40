//! Reads and writes on worker threads, for requests that Linux AIO or a ring cannot carry.
//!
//! - Through the page cache, the kernel gets the segments as they are.
//! - With direct I/O and unaligned memory, data goes through an aligned buffer.
//! - With direct I/O and partial blocks at its edges, a write reads these blocks first.

use std::ops::Range;
use std::os::fd::AsFd;

use engine::Errno;
use rustix::io::retry_on_intr;

use crate::disk_file::DiskFile;
use crate::disk_file::alignment::AlignedBuffer;
use crate::range_lock::RangeLockTicket;

/// The most segments that `preadv(2)` takes.
pub(crate) const IOV_MAX: usize = 1024;

/// Most bytes of an aligned buffer: large enough for a disk's full speed, small enough for 64 workers.
const MAX_BUFFER_BYTES: u64 = 1 << 20;

/// Data segments in host memory.
pub(crate) struct Segments<'a>(&'a mut [libc::iovec]);

impl<'a> Segments<'a> {
    /// # Safety
    /// All segments are valid for reads and writes as long as this lives. A guest may write the memory meanwhile: there
    /// are never references to it.
    pub unsafe fn new(list: &'a mut [libc::iovec]) -> Self {
        Segments(list)
    }

    fn as_slice(&self) -> &[libc::iovec] {
        self.0
    }

    /// Removes `count` bytes from the front.
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

    /// Copies from the front of the segments, and removes what was copied.
    pub fn copy_to_slice_and_advance(&mut self, mut bytes: &mut [u8]) {
        while let (Some(segment), false) = (self.0.first(), bytes.is_empty()) {
            let count = segment.iov_len.min(bytes.len());
            // SAFETY: `new`'s caller promises that the segment is valid; `bytes` is ours and has the room.
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

    /// Copies to the front of the segments, and removes what was filled.
    fn copy_from_slice_and_advance(&mut self, mut bytes: &[u8]) {
        while let (Some(segment), false) = (self.0.first(), bytes.is_empty()) {
            let count = segment.iov_len.min(bytes.len());
            // SAFETY: as for `copy_to_slice_and_advance`, the other way round.
            unsafe {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), segment.iov_base.cast::<u8>(), count);
            }
            bytes = &bytes[count..];
            self.advance(count);
        }
    }

    /// Fills the remaining segments with zeroes.
    fn fill_rest_with_zeroes(&mut self) {
        for segment in self.0.iter() {
            // SAFETY: as for `copy_to_slice_and_advance`.
            unsafe { std::ptr::write_bytes(segment.iov_base.cast::<u8>(), 0, segment.iov_len) };
        }
    }
}

impl DiskFile {
    /// Reads `len` bytes at `offset`; zeroes past the end of the file.
    pub(crate) fn read(&self, offset: u64, len: u64, mut to: Segments<'_>) -> Result<(), Errno> {
        match self.direct {
            Some(direct) if !direct.fits(offset, len, to.as_slice()) => {
                self.read_bounced(offset, len, to, u64::from(direct.offset))
            }
            _ => {
                self.call_until_transferred(libc::preadv2, offset, &mut to, 0)?;
                to.fill_rest_with_zeroes();
                Ok(())
            }
        }
    }

    /// Writes `len` bytes at `offset` from the segments; stable when done if `fua`.
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
        let _range = self.lock_blocks_if_partial(offset, len)?;
        match self.direct {
            Some(direct) if !direct.fits(offset, len, from.as_slice()) => {
                self.write_bounced(offset, len, from, flags, u64::from(direct.offset))
            }
            _ => self.write_all(offset, &mut from, flags),
        }
    }

    /// Locks the blocks that a write or a discard touches, where small writes rewrite whole blocks.
    ///
    /// # Errors
    /// The error of `fstat(2)`.
    pub(crate) fn lock_blocks_if_partial(
        &self,
        offset: u64,
        len: u64,
    ) -> Result<Option<RangeLockTicket<'_>>, Errno> {
        if !self.block_mode.has_partial_blocks() {
            return Ok(None);
        }
        let ranges = self.block_mode.range_lock();
        let range = surrounding_blocks(offset, len, self.block_mode.block_bytes());
        let guard = ranges.lock_blocking(range.clone());
        if range.end <= self.file_end_or_max()? {
            return Ok(Some(guard));
        }
        // It may move the end of the file: then everything behind must be locked as well, see `write_bounced`. (The test above holds as
        // long as the range is locked: `set_end` to an end inside the range waits for it.)
        drop(guard);
        Ok(Some(ranges.lock_blocking(range.start..u64::MAX)))
    }

    /// Writes all segments.
    fn write_all(&self, offset: u64, segments: &mut Segments<'_>, flags: i32) -> Result<(), Errno> {
        self.call_until_transferred(libc::pwritev2, offset, segments, flags)?;
        // A write that stops without an error: the disk is full and does not report it.
        if segments.as_slice().is_empty() {
            Ok(())
        } else {
            Err(Errno::NOSPC)
        }
    }

    /// Transfers bytes by `preadv2(2)` or `pwritev2(2)` until the segments are done or nothing is transferred any more.
    fn call_until_transferred(
        &self,
        call: unsafe extern "C" fn(i32, *const libc::iovec, i32, libc::off_t, i32) -> isize,
        mut offset: u64,
        segments: &mut Segments<'_>,
        flags: i32,
    ) -> Result<(), Errno> {
        let block = self.direct.map_or(1, |direct| direct.offset as usize);
        // Empty segments at the front would look like the end of the file.
        segments.advance(0);
        while !segments.as_slice().is_empty() {
            let list = segments.as_slice();
            let count = i32::try_from(list.len().min(IOV_MAX)).map_err(|_| Errno::INVAL)?;
            let position = i64::try_from(offset).map_err(|_| Errno::INVAL)?;
            // SAFETY: the list is ours and has `count` entries; `Segments::new`'s caller promises that the memory that it
            // names is valid.
            let moved = unsafe { call(self.raw_fd(), list.as_ptr(), count, position, flags) };
            match usize::try_from(moved) {
                Ok(0) => break,
                Ok(moved) => {
                    offset += moved as u64;
                    segments.advance(moved);
                    // Direct I/O that ends within a block has reached the end of the file, and cannot continue from
                    // there.
                    if moved % block != 0 {
                        break;
                    }
                }
                Err(_) => match last_errno() {
                    Errno::INTR => {}
                    error => return Err(error),
                },
            }
        }
        Ok(())
    }

    /// Reads through an aligned buffer, for memory or a range that direct I/O does not accept.
    fn read_bounced(
        &self,
        offset: u64,
        len: u64,
        mut to: Segments<'_>,
        block: u64,
    ) -> Result<(), Errno> {
        for chunk in split_into_buffer_chunks(offset, len, block) {
            let around = surrounding_blocks(chunk.start, chunk.end - chunk.start, block);
            let mut buffer = AlignedBuffer::new(to_usize(around.end - around.start)?);
            self.read_until_eof(around.start, buffer.bytes())?;
            let inside = to_usize(chunk.start - around.start)?..to_usize(chunk.end - around.start)?;
            to.copy_from_slice_and_advance(&buffer.bytes()[inside]);
        }
        Ok(())
    }

    /// Writes through an aligned buffer. Blocks that the range covers in part are read first.
    fn write_bounced(
        &self,
        offset: u64,
        len: u64,
        mut from: Segments<'_>,
        flags: i32,
        block: u64,
    ) -> Result<(), Errno> {
        for chunk in split_into_buffer_chunks(offset, len, block) {
            let around = surrounding_blocks(chunk.start, chunk.end - chunk.start, block);
            let mut buffer = AlignedBuffer::new(to_usize(around.end - around.start)?);
            if around != chunk {
                self.read_until_eof(around.start, buffer.bytes())?;
            }
            let inside = to_usize(chunk.start - around.start)?..to_usize(chunk.end - around.start)?;
            from.copy_to_slice_and_advance(&mut buffer.bytes()[inside]);
            let mut list = [as_iovec(buffer.bytes())];
            // SAFETY: the buffer outlives the transfer.
            let mut whole = unsafe { Segments::new(&mut list) };
            let end_before = self.file_end_or_max()?;
            self.write_all(around.start, &mut whole, flags)?;
            // The file may have ended within the last block. It must not become longer by that, or the disk would have
            // another size when it is opened the next time.
            let end_after = end_before.max(chunk.end);
            if around.end > end_after {
                retry_on_intr(|| rustix::fs::ftruncate(&self.fd, end_after))?;
            }
        }
        Ok(())
    }

    /// Moves the end of a file. It waits for writes that rewrite the block around the new end, and for those that may move the end
    /// themselves: such a write reads the end, and sets it again when it is done, see `write_bounced`.
    ///
    /// # Errors
    /// The error of `ftruncate(2)`.
    pub(crate) fn set_end(&self, end: u64) -> Result<(), Errno> {
        // Locked even while no guest writes parts of blocks, since the first one may begin now. No rounding to blocks: a write locks whole
        // blocks, so one that rewrites the block around `end` has locked beyond it, and one that may move the end has locked everything
        // behind its offset.
        let _range = self.block_mode.range_lock().lock_blocking(end..u64::MAX);
        retry_on_intr(|| rustix::fs::ftruncate(&self.fd, end))
    }

    /// The current end of the file. That of a device does not move.
    fn file_end_or_max(&self) -> Result<u64, Errno> {
        if self.device_block.is_some() {
            return Ok(u64::MAX);
        }
        Ok(rustix::fs::fstat(&self.fd)?.st_size.unsigned_abs())
    }

    /// Reads into a zeroed, aligned buffer, up to the end of the file.
    fn read_until_eof(&self, offset: u64, buffer: &mut [u8]) -> Result<(), Errno> {
        let block = self.direct.map_or(1, |direct| direct.offset as usize);
        let mut done = 0;
        while done < buffer.len() {
            match rustix::io::pread(self.fd.as_fd(), &mut buffer[done..], offset + done as u64) {
                Ok(0) => break,
                // As in `call_until_transferred`.
                Ok(count) if count % block != 0 => break,
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes zeroes as data, where the kernel has no better operation.
    pub(crate) fn write_zero_bytes(&self, range: Range<u64>) -> Result<(), Errno> {
        let block = self.direct.map_or(1, |direct| u64::from(direct.offset));
        let mut zeroes =
            AlignedBuffer::new(to_usize(MAX_BUFFER_BYTES.min(range.end - range.start))?);
        for chunk in split_into_buffer_chunks(range.start, range.end - range.start, block) {
            let count = chunk.end - chunk.start;
            let mut list = [as_iovec(&mut zeroes.bytes()[..to_usize(count)?])];
            // SAFETY: the buffer outlives the transfer.
            let mut from = unsafe { Segments::new(&mut list) };
            match self.direct {
                Some(direct) if !direct.fits(chunk.start, count, from.as_slice()) => {
                    self.write_bounced(chunk.start, count, from, 0, block)?;
                }
                _ => self.write_all(chunk.start, &mut from, 0)?,
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
fn surrounding_blocks(offset: u64, len: u64, block: u64) -> Range<u64> {
    offset / block * block..(offset + len).next_multiple_of(block)
}

/// A range in pieces whose surrounding blocks fit a buffer, cut at block borders.
fn split_into_buffer_chunks(offset: u64, len: u64, block: u64) -> impl Iterator<Item = Range<u64>> {
    let end = offset + len;
    let mut start = offset;
    std::iter::from_fn(move || {
        if start >= end {
            return None;
        }
        let cut = (start / block * block + MAX_BUFFER_BYTES).min(end);
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
            for chunk in split_into_buffer_chunks(offset, len, block) {
                assert_eq!(chunk.start, at);
                assert!(chunk.end > chunk.start);
                let around = surrounding_blocks(chunk.start, chunk.end - chunk.start, block);
                assert!(around.end - around.start <= MAX_BUFFER_BYTES);
                at = chunk.end;
            }
            assert_eq!(at, offset + len);
        }
    }
}
