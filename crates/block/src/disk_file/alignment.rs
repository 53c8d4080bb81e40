//! The alignment that direct I/O on a file needs: finds it, checks requests for it, and allocates buffers that have it.
//!
//! Linux reports it since 6.1 (`statx(2)`, `STATX_DIOALIGN`). Elsewhere reads with growing alignment probe for it.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, StatxFlags};

/// Alignment that `O_DIRECT` needs, in bytes, powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Alignment {
    /// Of a segment's address.
    pub memory: u32,
    /// Of the offset in the file and of each segment's length.
    pub offset: u32,
}

/// The alignments to probe, up to the largest that any disk is known to need.
const CANDIDATES: [u32; 5] = [512, 1024, 2048, 4096, 8192];

/// Alignment of our own buffers, the largest that is supported.
pub(crate) const MAX_ALIGNMENT: usize = 8192;

impl Alignment {
    /// The alignment of a file or device. `None`: it has no direct I/O.
    pub fn of_fd(fd: BorrowedFd<'_>) -> io::Result<Option<Alignment>> {
        let dioalign = StatxFlags::from_bits_retain(libc::STATX_DIOALIGN);
        let statx = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, dioalign)?;
        if statx.stx_mask & libc::STATX_DIOALIGN != 0 {
            let (memory, offset) = (statx.stx_dio_mem_align, statx.stx_dio_offset_align);
            if memory == 0 || offset == 0 {
                return Ok(None);
            }
            if memory.is_power_of_two()
                && offset.is_power_of_two()
                && memory.max(offset) as usize <= MAX_ALIGNMENT
            {
                // Sectors are the smallest unit of any guest.
                return Ok(Some(Alignment {
                    memory,
                    offset: offset.max(512),
                }));
            }
        }
        Ok(Alignment::probe(fd))
    }

    /// The smallest candidate with which a read succeeds.
    fn probe(fd: BorrowedFd<'_>) -> Option<Alignment> {
        let mut buffer = AlignedBuffer::new(MAX_ALIGNMENT);
        CANDIDATES.into_iter().find_map(|offset| {
            let bytes = &mut buffer.bytes()[..offset as usize];
            let read = rustix::io::retry_on_intr(|| rustix::io::pread(fd, &mut *bytes, 0));
            read.is_ok().then_some(Alignment {
                memory: offset,
                offset,
            })
        })
    }

    /// Whether the kernel accepts the alignment of a request.
    #[inline]
    pub fn fits(self, offset: u64, len: u64, iov: &[libc::iovec]) -> bool {
        // Combines the low bits of all values, so that one check at the end is enough.
        let mut lengths = offset | len;
        let mut addresses = 0;
        for segment in iov {
            lengths |= segment.iov_len as u64;
            addresses |= segment.iov_base.addr();
        }
        lengths & (u64::from(self.offset) - 1) == 0 && addresses & (self.memory as usize - 1) == 0
    }
}

/// Memory that any direct I/O accepts.
pub(crate) struct AlignedBuffer {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBuffer {
    /// A zeroed buffer.
    pub fn new(len: usize) -> Self {
        let mut memory = vec![0; len + MAX_ALIGNMENT];
        let start = memory.as_mut_ptr().addr().wrapping_neg() % MAX_ALIGNMENT;
        AlignedBuffer { memory, start, len }
    }

    /// Its content, at an aligned address.
    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(address: usize, len: usize) -> libc::iovec {
        libc::iovec {
            iov_base: std::ptr::without_provenance_mut(address),
            iov_len: len,
        }
    }

    #[test]
    fn every_address_length_and_offset_counts() {
        let direct = Alignment {
            memory: 4,
            offset: 512,
        };
        assert!(direct.fits(512, 1024, &[segment(0x1004, 512), segment(0x2000, 512)]));
        assert!(!direct.fits(256, 1024, &[segment(0x1000, 1024)]));
        assert!(!direct.fits(512, 1000, &[segment(0x1000, 1000)]));
        assert!(!direct.fits(512, 1024, &[segment(0x1002, 1024)]));
        assert!(!direct.fits(512, 1024, &[segment(0x1000, 500), segment(0x2000, 524)]));
    }
}
