//! Probe for `RWF_NOWAIT` (preadv2(2)): a disk that has it says when a request would have to wait.
//!
//! It decides what a ring does with a request: tries it at once and goes on, or hands it to a worker
//! thread of the kernel's. And a disk that cannot say may be one that never waits, which Linux AIO then
//! finds out. Only the file system knows, so it is asked: one block is read.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags};

/// Fits every block that direct I/O may want, in size and alignment.
#[repr(C, align(4096))]
struct Block([u8; 4096]);

/// Reads the beginning of the file or device at `path`. False when the kernel does not know how to do
/// that without waiting, or the disk cannot be read: whoever opens it will say why.
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
    // Non-blocking, should a pipe have taken its place just now.
    let mut flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    flags.set(OFlags::DIRECT, direct);
    let Ok(file) = rustix::fs::open(path, flags, Mode::empty()) else {
        return false;
    };
    ask(file.as_fd()).is_ok()
}

/// Whether the kernel does not know how to read from the open file or device without waiting.
pub(crate) fn lacks_nowait(file: BorrowedFd<'_>) -> bool {
    ask(file) == Err(Errno::OPNOTSUPP)
}

/// Reads the beginning, but does not wait for it; `Ok` if that is a thing that can be asked for.
fn ask(file: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut block = Block([0; 4096]);
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
    fn what_is_no_disk_cannot_say_and_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        // The last has no read that could be asked not to wait.
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
