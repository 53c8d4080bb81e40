//! Maps a part of the guest's memory, from a descriptor that a front-end has passed, after checks that no access can
//! wait or end the daemon.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};

use vm_memory::{FileOffset, MmapRegion};

use crate::passed_fds::truncation::{TooManyRegions, TruncationGuard};

/// Most bytes that are mapped for one front-end: more than the memory of any host, and a
/// small part of a process's address space, which all front-ends share.
pub const MAX_TOTAL_BYTES: u64 = 4 << 40;

const PAGE_BYTES: u64 = 4096;

/// `linux/magic.h`.
const FUSE_SUPER_MAGIC: i128 = 0x6573_5546;

/// Why memory could not be mapped.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// The descriptor's file cannot be used or is too short.
    #[error("cannot map {size} bytes at offset {offset} of the descriptor: {reason}")]
    Refused {
        /// Requested bytes.
        size: u64,
        /// Their offset in the file.
        offset: u64,
        /// The reason.
        reason: String,
    },
    /// The table of regions that are guarded against truncation is full.
    #[error("more than {max} regions of guest memory in one process")]
    TooManyRegions {
        /// The size of the table.
        max: usize,
    },
}

impl From<TooManyRegions> for MapError {
    fn from(TooManyRegions { max }: TooManyRegions) -> Self {
        MapError::TooManyRegions { max }
    }
}

/// A part of a file that is mapped readable and writable for as long as this lives.
pub struct Mapping {
    // First, since it must be dropped before the mapping.
    _guard: TruncationGuard,
    region: MmapRegion,
    /// The offset of the requested part in the mapping, which begins at a page's border.
    part_offset: usize,
}

impl Mapping {
    /// Maps `size` bytes at `offset` of `file`.
    ///
    /// # Errors
    /// [`MapError`].
    pub fn new(file: File, offset: u64, size: u64) -> Result<Self, MapError> {
        let refused = |reason: String| MapError::Refused {
            size,
            offset,
            reason,
        };
        // A page fault there would wait for the process that serves the file system, for as long as that likes.
        let file_system = rustix::fs::fstatfs(&file).map_err(|errno| refused(errno.to_string()))?;
        if i128::from(file_system.f_type) == FUSE_SUPER_MAGIC {
            return Err(refused(
                "it lies on a FUSE file system; share memory from a memfd, tmpfs or hugetlbfs"
                    .into(),
            ));
        }
        // Huge pages can only be mapped whole; their file system says how large they are.
        let stat = rustix::fs::fstat(file.as_fd()).map_err(|errno| refused(errno.to_string()))?;
        let page = u64::try_from(stat.st_blksize)
            .unwrap_or(0)
            .max(PAGE_BYTES)
            .next_power_of_two();
        let start = offset / page * page;
        let end_of_last_page = offset
            .checked_add(size)
            .and_then(|end| end.checked_next_multiple_of(page))
            .ok_or_else(|| refused("too large".into()))?;
        let end = if rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file() {
            // A mapping past the end of the file would kill us when touched.
            let file_end = u64::try_from(stat.st_size).unwrap_or(0);
            if offset + size > file_end {
                return Err(refused(format!(
                    "the file behind it has only {file_end} bytes"
                )));
            }
            end_of_last_page.min(file_end.max(offset + size))
        } else {
            end_of_last_page
        };
        let bytes = usize::try_from(end - start).map_err(|_| refused("too large".into()))?;
        let region = MmapRegion::<()>::build(
            Some(FileOffset::new(file, start)),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_NORESERVE,
        )
        .map_err(|reason| refused(reason.to_string()))?;
        // Less than `bytes`, which is a usize.
        let part_offset =
            usize::try_from(offset - start).map_err(|_| refused("too large".into()))?;
        let guard = TruncationGuard::register_region(region.as_ptr(), bytes)?;
        // A core dump of the daemon should not contain guests' memory. An error means that the kernel does not support this.
        // SAFETY: the region is mapped, and its content does not change.
        let _ = unsafe {
            rustix::mm::madvise(
                region.as_ptr().cast(),
                bytes,
                rustix::mm::Advice::LinuxDontDump,
            )
        };
        Ok(Mapping {
            _guard: guard,
            region,
            part_offset,
        })
    }

    /// The address of the requested part in this process.
    #[must_use]
    pub fn host_addr(&self) -> *mut u8 {
        self.region.as_ptr().wrapping_add(self.part_offset)
    }

    /// The file, and the offset of the requested part in it.
    #[must_use]
    pub fn file_and_offset(&self) -> Option<(BorrowedFd<'_>, u64)> {
        let source = self.region.file_offset()?;
        let offset = source.start() + self.part_offset as u64;
        Some((source.file().as_fd(), offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    fn file(bytes: &[u8]) -> File {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(bytes, 0).unwrap();
        file
    }

    #[test]
    fn host_is_the_address_of_the_requested_part() {
        let mut bytes = vec![0; 3 * 4096];
        bytes[5000] = 7;
        let mapping = Mapping::new(file(&bytes), 5000, 4096).unwrap();
        // SAFETY: inside the mapping; shared memory is accessed as volatile.
        assert_eq!(unsafe { mapping.host_addr().read_volatile() }, 7);
    }

    #[test]
    fn core_dumps_do_not_contain_mapped_memory() {
        let mapping = Mapping::new(file(&[0; 4096]), 0, 4096).unwrap();
        // proc_pid_smaps(5): a header with addresses, and at its end the flags, `dd` for this.
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let header = format!("{:x}-", mapping.host_addr().addr());
        let ours = smaps.lines().skip_while(|line| !line.starts_with(&header));
        let flags = ours.into_iter().find(|line| line.starts_with("VmFlags:"));
        assert!(flags.unwrap().contains(" dd"), "{flags:?}");
    }

    #[test]
    fn ranges_beyond_the_end_of_the_file_are_refused() {
        for (offset, size) in [(0, 8193), (8192, 1), (u64::MAX, 1), (0, u64::MAX), (0, 0)] {
            let refused = Mapping::new(file(&[0; 8192]), offset, size);
            assert!(
                matches!(refused, Err(MapError::Refused { .. })),
                "{offset} {size}"
            );
        }
        let (reader, _writer) = rustix::pipe::pipe().unwrap();
        assert!(Mapping::new(reader.into(), 0, 4096).is_err(), "a pipe");
    }
}
