//! Discard and write-zeroes, by a worker thread: the kernel has no asynchronous form of them that
//! Linux AIO could carry.

use std::ops::Range;

use engine::Errno;
use rustix::fs::FallocateFlags;

use crate::node::FdBacking;
use crate::transfer::last_errno;

/// `_IO(0x12, 119)` and `_IO(0x12, 127)`, see `linux/fs.h`.
const BLKDISCARD: libc::Ioctl = 0x1277;
const BLKZEROOUT: libc::Ioctl = 0x127f;

impl FdBacking {
    /// Tells the disk that the range is not needed. A disk that cannot is no error.
    pub(crate) fn discard(&self, offset: u64, len: u64) -> Result<(), Errno> {
        if len == 0 {
            return Ok(());
        }
        let _range = self.lock_blocks(offset, len);
        let done = if self.is_device {
            let whole = self.whole_blocks(offset, len);
            if whole.is_empty() {
                Ok(())
            } else {
                self.range_ioctl(BLKDISCARD, &whole)
            }
        } else {
            self.punch_hole(offset, len)
        };
        match done {
            Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::NOSYS) => Ok(()),
            done => done,
        }
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
            let _range = self.lock_blocks(offset, len);
            if self.is_device {
                self.zero_device(offset, len, unmap)?;
            } else {
                self.zero_file(offset, len, unmap)?;
            }
        }
        if fua { self.flush() } else { Ok(()) }
    }

    /// Makes all completed writes stable.
    pub(crate) fn flush(&self) -> Result<(), Errno> {
        if self.no_flush {
            Ok(())
        } else {
            rustix::fs::fdatasync(&self.fd)
        }
    }

    fn zero_file(&self, offset: u64, len: u64, unmap: bool) -> Result<(), Errno> {
        if unmap && supported(self.punch_hole(offset, len))? {
            return Ok(());
        }
        if supported(rustix::fs::fallocate(
            &self.fd,
            FallocateFlags::ZERO_RANGE,
            offset,
            len,
        ))? {
            return Ok(());
        }
        if supported(self.punch_hole(offset, len))? {
            // Zeroes are there; that they have space of their own is a wish.
            let _ = rustix::fs::fallocate(&self.fd, FallocateFlags::KEEP_SIZE, offset, len);
            return Ok(());
        }
        self.write_zero_bytes(offset..offset + len)
    }

    fn zero_device(&self, offset: u64, len: u64, unmap: bool) -> Result<(), Errno> {
        let whole = self.whole_blocks(offset, len);
        if whole.is_empty() {
            return self.write_zero_bytes(offset..offset + len);
        }
        let unmapped = unmap && supported(self.punch_hole(whole.start, whole.end - whole.start))?;
        if !unmapped && !supported(self.range_ioctl(BLKZEROOUT, &whole))? {
            self.write_zero_bytes(whole.clone())?;
        }
        // Parts of blocks at the edges.
        for edge in [offset..whole.start, whole.end..offset + len] {
            if !edge.is_empty() {
                self.write_zero_bytes(edge)?;
            }
        }
        Ok(())
    }

    fn punch_hole(&self, offset: u64, len: u64) -> Result<(), Errno> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&self.fd, flags, offset, len)
    }

    fn range_ioctl(&self, request: libc::Ioctl, range: &Range<u64>) -> Result<(), Errno> {
        let argument = [range.start, range.end - range.start];
        // SAFETY: both requests read two u64 from where the pointer points.
        if unsafe { libc::ioctl(self.raw_fd(), request, argument.as_ptr()) } == 0 {
            Ok(())
        } else {
            Err(last_errno())
        }
    }

    /// The whole blocks of the device within a range; empty when there is none.
    fn whole_blocks(&self, offset: u64, len: u64) -> Range<u64> {
        let block = u64::from(rustix::fs::ioctl_blksszget(&self.fd).unwrap_or(512));
        let start = offset.next_multiple_of(block);
        start..((offset + len) / block * block).max(start)
    }
}

/// Whether the kernel did it; `false` when this file cannot do it that way.
fn supported(result: Result<(), Errno>) -> Result<bool, Errno> {
    match result {
        Ok(()) => Ok(true),
        Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::NOSYS) => Ok(false),
        Err(error) => Err(error),
    }
}
