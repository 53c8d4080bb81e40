//! A piece of the guest's memory, mapped.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};

use vm_memory::{FileOffset, MmapRegion};

use crate::passed_fds::truncation::{TooManyRegions, TruncationGuard};

/// Bytes that are mapped for one front-end at most: more than machines have that run guests, and a
/// small part of a process's address space, which all front-ends share.
pub const MAX_TOTAL_BYTES: u64 = 4 << 40;

const PAGE_BYTES: u64 = 4096;

/// `linux/magic.h`.
const FUSE_SUPER_MAGIC: i128 = 0x6573_5546;

/// Why memory could not be mapped.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// The descriptor does not have it.
    #[error("cannot map {size} bytes at offset {offset} of the descriptor: {reason}")]
    Refused {
        /// Bytes that were asked for.
        size: u64,
        /// Where in the file they begin.
        offset: u64,
        /// What is wrong, in words.
        reason: String,
    },
    /// More than can be guarded against truncation.
    #[error("more than {max} regions of guest memory in one process")]
    TooManyRegions {
        /// As many there may be.
        max: usize,
    },
}

impl From<TooManyRegions> for MapError {
    fn from(TooManyRegions { max }: TooManyRegions) -> Self {
        MapError::TooManyRegions { max }
    }
}

/// A part of a file, mapped readable and writable for as long as this lives. The guard goes before the
/// mapping does.
pub struct Mapping {
    _guard: TruncationGuard,
    region: MmapRegion,
    /// Where in the mapping, which begins at a page's border, the wanted part is.
    inside: usize,
}

impl Mapping {
    /// Maps `size` bytes at `offset` of `file`.
    ///
    /// # Errors
    /// [`MapError`].
    pub fn new(file: File, offset: u64, size: u64) -> Result<Self, MapError> {
        let error = |reason: String| MapError::Refused {
            size,
            offset,
            reason,
        };
        // A page fault there would wait for whoever serves the file system, as long as that likes.
        let file_system = rustix::fs::fstatfs(&file).map_err(|errno| error(errno.to_string()))?;
        if i128::from(file_system.f_type) == FUSE_SUPER_MAGIC {
            return Err(error(
                "it lies on a FUSE file system; share memory from a memfd, tmpfs or hugetlbfs"
                    .into(),
            ));
        }
        // Huge pages can only be mapped whole; their file system says how large they are.
        let stat = rustix::fs::fstat(file.as_fd()).map_err(|errno| error(errno.to_string()))?;
        let page = u64::try_from(stat.st_blksize)
            .unwrap_or(0)
            .max(PAGE_BYTES)
            .next_power_of_two();
        let start = offset / page * page;
        let whole = offset
            .checked_add(size)
            .and_then(|end| end.checked_next_multiple_of(page))
            .ok_or_else(|| error("too large".into()))?;
        let end = if rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file() {
            // A mapping past the end of the file would kill us when touched.
            let file_end = u64::try_from(stat.st_size).unwrap_or(0);
            if offset + size > file_end {
                return Err(error(format!(
                    "the file behind it has only {file_end} bytes"
                )));
            }
            whole.min(file_end.max(offset + size))
        } else {
            whole
        };
        let bytes = usize::try_from(end - start).map_err(|_| error("too large".into()))?;
        let region = MmapRegion::<()>::build(
            Some(FileOffset::new(file, start)),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_NORESERVE,
        )
        .map_err(|reason| error(reason.to_string()))?;
        // Less than `bytes`, which is a usize.
        let inside = usize::try_from(offset - start).map_err(|_| error("too large".into()))?;
        let guard = TruncationGuard::new(region.as_ptr(), bytes)?;
        // A core dump of ours is no place for a guest's memory. An error says that the kernel has no such thing.
        // SAFETY: the region is mapped, and its content stays what it is.
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
            inside,
        })
    }

    /// Where the wanted part begins in our address space.
    #[must_use]
    pub fn host(&self) -> *mut u8 {
        self.region.as_ptr().wrapping_add(self.inside)
    }

    /// The file, and where in it the wanted part begins.
    #[must_use]
    pub fn source(&self) -> Option<(BorrowedFd<'_>, u64)> {
        let source = self.region.file_offset()?;
        Some((source.file().as_fd(), source.start() + self.inside as u64))
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
    fn the_part_that_was_asked_for_is_seen() {
        let mut bytes = vec![0; 3 * 4096];
        bytes[5000] = 7;
        let mapping = Mapping::new(file(&bytes), 5000, 4096).unwrap();
        // SAFETY: inside the mapping; shared memory is accessed as volatile.
        assert_eq!(unsafe { mapping.host().read_volatile() }, 7);
    }

    #[test]
    fn a_core_dump_is_without_it() {
        let mapping = Mapping::new(file(&[0; 4096]), 0, 4096).unwrap();
        // proc_pid_smaps(5): a header with addresses, and at its end the flags, `dd` for this.
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let header = format!("{:x}-", mapping.host().addr());
        let ours = smaps.lines().skip_while(|line| !line.starts_with(&header));
        let flags = ours.into_iter().find(|line| line.starts_with("VmFlags:"));
        assert!(flags.unwrap().contains(" dd"), "{flags:?}");
    }

    #[test]
    fn what_the_file_does_not_have_is_refused() {
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
