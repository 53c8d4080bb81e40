//! Discard, write-zeroes and flush on worker threads: Linux AIO carries no discard or write-zeroes, and a ring only some.

use std::ops::Range;

use engine::Errno;
use rustix::fs::FallocateFlags;
use rustix::io::retry_on_intr;

use crate::disk_file::DiskFile;
use crate::disk_file::transfer::last_errno;

/// `_IO(0x12, 119)` and `_IO(0x12, 127)`, see `linux/fs.h`.
const BLKDISCARD: libc::Ioctl = 0x1277;
const BLKZEROOUT: libc::Ioctl = 0x127f;

impl DiskFile {
    /// Discards a range. A disk that does not support it is no error.
    pub(crate) fn discard(&self, offset: u64, len: u64) -> Result<(), Errno> {
        if len == 0 {
            return Ok(());
        }
        let _range = self.lock_blocks_if_partial(offset, len)?;
        let done = match self.device_block {
            None => self.punch_hole(offset, len),
            Some(block) => {
                // Partial blocks at the edges keep their space.
                let whole = whole_blocks(offset, len, block);
                if whole.is_empty() {
                    return Ok(());
                }
                self.range_ioctl(BLKDISCARD, &whole)
            }
        };
        unsupported_as_false(done).map(drop)
    }

    /// Makes the range read as zeroes.
    pub(crate) fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        unmap: bool,
        fua: bool,
    ) -> Result<(), Errno> {
        if len > 0 {
            let _range = self.lock_blocks_if_partial(offset, len)?;
            match self.device_block {
                None => self.zero_file(offset, len, unmap)?,
                Some(block) => self.zero_device(offset, len, unmap, block)?,
            }
        }
        if fua {
            self.flush_unless_disabled()
        } else {
            Ok(())
        }
    }

    /// Makes all completed writes stable.
    pub(crate) fn flush_unless_disabled(&self) -> Result<(), Errno> {
        if self.no_flush {
            Ok(())
        } else {
            retry_on_intr(|| rustix::fs::fdatasync(&self.fd))
        }
    }

    /// Makes a range of a file read as zeroes, by the cheapest operation that its file system has.
    fn zero_file(&self, offset: u64, len: u64, unmap: bool) -> Result<(), Errno> {
        if unmap && unsupported_as_false(self.punch_hole(offset, len))? {
            return Ok(());
        }
        if unsupported_as_false(self.fallocate(FallocateFlags::ZERO_RANGE, offset, len))? {
            return Ok(());
        }
        if unsupported_as_false(self.punch_hole(offset, len))? {
            // The range reads as zeroes; allocating its space is optional.
            let _ = self.fallocate(FallocateFlags::KEEP_SIZE, offset, len);
            return Ok(());
        }
        self.write_zero_bytes(offset..offset + len)
    }

    /// Makes a range of a block device read as zeroes: whole blocks by the device, the edges by writes.
    fn zero_device(&self, offset: u64, len: u64, unmap: bool, block: u32) -> Result<(), Errno> {
        let whole = whole_blocks(offset, len, block);
        if whole.is_empty() {
            return self.write_zero_bytes(offset..offset + len);
        }
        let unmapped =
            unmap && unsupported_as_false(self.punch_hole(whole.start, whole.end - whole.start))?;
        if !unmapped && !unsupported_as_false(self.range_ioctl(BLKZEROOUT, &whole))? {
            self.write_zero_bytes(whole.clone())?;
        }
        // Partial blocks at the edges.
        for edge in [offset..whole.start, whole.end..offset + len] {
            if !edge.is_empty() {
                self.write_zero_bytes(edge)?;
            }
        }
        Ok(())
    }

    fn punch_hole(&self, offset: u64, len: u64) -> Result<(), Errno> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        self.fallocate(flags, offset, len)
    }

    fn fallocate(&self, flags: FallocateFlags, offset: u64, len: u64) -> Result<(), Errno> {
        retry_on_intr(|| rustix::fs::fallocate(&self.fd, flags, offset, len))
    }

    /// An ioctl that takes the first byte and the length of a range.
    fn range_ioctl(&self, request: libc::Ioctl, range: &Range<u64>) -> Result<(), Errno> {
        let argument = [range.start, range.end - range.start];
        // SAFETY: both requests read two u64 from where the pointer points.
        if unsafe { libc::ioctl(self.raw_fd(), request, argument.as_ptr()) } == 0 {
            Ok(())
        } else {
            Err(last_errno())
        }
    }
}

/// The whole blocks within a range; empty when there is none.
pub(crate) fn whole_blocks(offset: u64, len: u64, block: u32) -> Range<u64> {
    let block = u64::from(block);
    let start = offset.next_multiple_of(block);
    start..((offset + len) / block * block).max(start)
}

/// `false` instead of an error where the file does not support the operation.
fn unsupported_as_false(result: Result<(), Errno>) -> Result<bool, Errno> {
    match result {
        Ok(()) => Ok(true),
        Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::NOSYS) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_discards_whole_blocks_only() {
        assert_eq!(whole_blocks(0, 8192, 4096), 0..8192);
        assert_eq!(whole_blocks(512, 8192, 4096), 4096..8192);
        assert_eq!(whole_blocks(512, 3584, 4096), 4096..4096);
        assert_eq!(whole_blocks(512, 512, 4096), 4096..4096);
        assert_eq!(whole_blocks(512, 1024, 512), 512..1536);
    }
}
