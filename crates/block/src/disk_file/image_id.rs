//! Identity of an image: a file by device and inode, a block device by its number, so that two paths to one image are recognised.

use std::os::fd::BorrowedFd;

use rustix::fs::FileType;

/// The identity of an image, the same one under any path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageId {
    /// A file.
    File {
        /// The number of the device that it is on.
        device: u64,
        /// The number of its inode.
        inode: u64,
    },
    /// A block device, of this number.
    BlockDevice(u64),
}

impl ImageId {
    /// The image of an open file.
    pub(crate) fn of_fd(fd: BorrowedFd<'_>) -> rustix::io::Result<Self> {
        let stat = rustix::fs::fstat(fd)?;
        let is_device = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
        Ok(match is_device {
            true => ImageId::BlockDevice(stat.st_rdev),
            false => ImageId::File {
                device: stat.st_dev,
                inode: stat.st_ino,
            },
        })
    }
}
