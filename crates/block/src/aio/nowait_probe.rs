//! Probes a disk for `RWF_NOWAIT` (preadv2(2)), with which it reports that a request would have to wait.
//!
//! With it, a ring tries a request at once and goes on; without it, the ring passes the request to a worker thread of the
//! kernel. A disk without it may also be one that never waits, which Linux AIO then detects. Only the file system knows,
//! so the probe reads one block.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags};

/// Fits every block that direct I/O may want, in size and alignment.
#[repr(C, align(4096))]
struct AlignedBlock([u8; 4096]);

/// Whether the file or device at `path` supports `RWF_NOWAIT`. False also if it cannot be read: opening it reports why.
pub(crate) fn supports_nowait(path: &Path, direct: bool) -> bool {
    let is_disk = |mode| {
        matches!(
            FileType::from_raw_mode(mode),
            FileType::RegularFile | FileType::BlockDevice
        )
    };
    if !rustix::fs::stat(path).is_ok_and(|found| is_disk(found.st_mode)) {
        return false;
    }
    // Non-blocking, in case a pipe has just taken its place.
    let mut flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    flags.set(OFlags::DIRECT, direct);
    let Ok(file) = rustix::fs::open(path, flags, Mode::empty()) else {
        return false;
    };
    read_nowait(file.as_fd()).is_ok()
}

/// Whether the open file or device has no `RWF_NOWAIT`.
pub(crate) fn probe_lacks_nowait(file: BorrowedFd<'_>) -> bool {
    read_nowait(file) == Err(Errno::OPNOTSUPP)
}

/// Reads the first block without waiting for it; `Ok` if the kernel supports that here.
fn read_nowait(file: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut block = AlignedBlock([0; 4096]);
    let mut buffers = [std::io::IoSliceMut::new(&mut block.0)];
    match rustix::io::preadv2(file, &mut buffers, 0, ReadWriteFlags::NOWAIT) {
        Ok(_) | Err(Errno::AGAIN) => Ok(()),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_probe_fails_on_what_is_no_disk_and_does_not_wait_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        // The last is a file whose reads have no `RWF_NOWAIT`.
        let places = [
            folder.path(),
            &pipe,
            "/nowhere".as_ref(),
            "/proc/self/status".as_ref(),
        ];
        for place in places {
            for direct in [true, false] {
                assert!(!supports_nowait(place, direct), "{place:?}");
            }
        }
    }
}
