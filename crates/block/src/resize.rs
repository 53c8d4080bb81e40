//! Resizing of open disks: computes and checks the new end of the file and sizes of nodes, and sets them.
//!
//! A resize has two steps: to move the end of the file, and to set the sizes of the nodes. The caller orders them so that
//! every admitted request stays inside of the file: a disk grows in its file first, and shrinks in its nodes first. Nothing
//! here knows of requests.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use crate::SECTOR_BYTES;
use crate::drivers::{file, host_device, rbd};
use crate::node::{Node, SizePolicy};

/// The largest size that QEMU accepts.
const MAX_SIZE: u64 = 0x7fff_ffff_c000_0000;

/// Why a node cannot be resized. The texts are QEMU's, where it has one.
#[derive(Debug, thiserror::Error)]
pub enum ResizeError {
    /// It was opened for reading.
    #[error("Image is read-only")]
    ReadOnly,
    /// A null disk.
    #[error("Image format driver does not support resize")]
    Unsupported,
    /// A window whose options set its size.
    #[error("Cannot resize fixed-size raw disks")]
    FixedSize,
    /// The size exceeds the largest one.
    #[error("offset({0}) exceeds maximum({MAX_SIZE})")]
    TooLarge(u64),
    /// The window begins too far inside the disk for that size.
    #[error("Disk size too large for the chosen offset")]
    TooLargeForOffset,
    /// A block device would have to grow.
    #[error("Cannot grow device files: it has {found} bytes now, {wanted} are asked for")]
    GrowDevice {
        /// Where it ends.
        found: u64,
        /// Where it should end.
        wanted: u64,
    },
    /// The node would have no sector. No node is opened like that.
    #[error(
        "node '{node}' begins at byte {start} of this disk, which would end at {new_end}, and needs at least one sector of \
         {SECTOR_BYTES} bytes: remove that node first, or keep the disk larger"
    )]
    NoSector {
        /// The node.
        node: String,
        /// Its first byte.
        start: u64,
        /// Where the disk would end.
        new_end: u64,
    },
    /// An error of the kernel.
    #[error("Could not resize file: {0}")]
    Io(#[from] std::io::Error),
    /// A window would reach beyond the end.
    #[error(
        "node '{node}' shows bytes {start} to {end} of this disk, which would end at {new_end}: remove \
         that node first, or keep the disk larger"
    )]
    Cut {
        /// The window.
        node: String,
        /// Its first byte.
        start: u64,
        /// The byte behind its last.
        end: u64,
        /// Where the disk would end.
        new_end: u64,
    },
}

impl Node {
    /// The end offset, in bytes, that its file or device must have for the node to have `size` bytes. A block device cannot
    /// be changed: its end is the current one.
    ///
    /// # Errors
    /// [`ResizeError`].
    pub fn check_size_and_compute_disk_end_offset(&self, size: u64) -> Result<u64, ResizeError> {
        if self.read_only() {
            return Err(ResizeError::ReadOnly);
        }
        let (disk, base) = self.disk_and_offset();
        let file = disk.driver.file();
        if file.is_none() && disk.driver.image().is_none() {
            return Err(ResizeError::Unsupported);
        }
        if self.size_policy == SizePolicy::Fixed {
            return Err(ResizeError::FixedSize);
        }
        let end = size.checked_add(base);
        let end = end
            .filter(|end| i64::try_from(*end).is_ok())
            .ok_or(ResizeError::TooLargeForOffset)?;
        if end > MAX_SIZE {
            return Err(ResizeError::TooLarge(end));
        }
        let device = file.and_then(|file| Some((file, file.device_block?)));
        let Some((device, block)) = device else {
            return Ok(end);
        };
        match host_device::device_end(device.fd.as_fd(), block)? {
            found if end > found => Err(ResizeError::GrowDevice { found, wanted: end }),
            found => Ok(found),
        }
    }

    /// The size of the image of a Ceph cluster, as the cluster has announced it; `None` for a node that is none.
    #[must_use]
    pub fn announced_image_size(&self) -> Option<u64> {
        let image = self.driver.image()?;
        Some(image.image.known_size())
    }

    /// Whether both nodes show parts of the same opened disk.
    #[must_use]
    pub fn shares_disk_with(&self, other: &Node) -> bool {
        std::ptr::eq(self.disk_and_offset().0, other.disk_and_offset().0)
    }

    /// Size in bytes of a disk that ends at `end`: rounded up to sectors for a file, which grows when its last sector is written, down for
    /// an image, which does not.
    #[must_use]
    pub fn disk_size_for_end(&self, end: u64) -> u64 {
        match self.disk_and_offset().0.driver.image() {
            Some(_) => rbd::disk_size_for_end(end),
            None => file::disk_size_for_end(end),
        }
    }

    /// The size that it would have on a disk that ends at `end`: one with which it could also be opened.
    ///
    /// # Errors
    /// [`ResizeError::Cut`] for a window that would not lie within the disk, [`ResizeError::NoSector`] for a node that would have no bytes,
    /// [`ResizeError::TooLarge`] for a disk that cannot be that large.
    pub fn size_if_disk_ends_at(&self, end: u64) -> Result<u64, ResizeError> {
        if i64::try_from(end).is_err() {
            return Err(ResizeError::TooLarge(end));
        }
        let disk_size = self.disk_size_for_end(end);
        let (_, base) = self.disk_and_offset();
        let size = match self.size_policy {
            SizePolicy::ToEnd => disk_size.checked_sub(base),
            SizePolicy::Fixed => Some(self.size()).filter(|size| base + size <= disk_size),
        };
        let node = || self.name().to_owned();
        match size {
            Some(0) => Err(ResizeError::NoSector {
                node: node(),
                start: base,
                new_end: end,
            }),
            Some(size) => Ok(size),
            None => Err(ResizeError::Cut {
                node: node(),
                start: base,
                end: base + self.size(),
                new_end: end,
            }),
        }
    }

    /// Sets its size, and that of its dirty bitmaps.
    pub fn record_new_size(&self, size: u64) {
        if size != self.size.swap(size, Ordering::Relaxed) {
            self.bitmaps().resize(size);
        }
    }

    /// Moves the end of its file or image. The end of a block device does not move. New bytes read as zeroes and take no
    /// space. It waits for the disk, and for writes in flight that could undo it.
    ///
    /// # Errors
    /// The error of `ftruncate(2)`, or of librbd.
    pub fn set_file_or_image_end(&self, end: u64) -> Result<(), ResizeError> {
        if let Some(disk) = self.underlying_image() {
            let resized = disk.resize(end);
            return resized.map_err(|error| ResizeError::Io(error.into()));
        }
        match self.underlying_file() {
            Some(file) if file.device_block.is_none() => {
                let moved = file.set_end(end);
                moved.map_err(|error| ResizeError::Io(error.into()))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::ops::Range;
    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use crate::Aio;
    use crate::disk_file::partial_blocks::PartialBlockMode;
    use crate::testing;

    const BLOCK: u64 = 4096;
    const OLD_END: u64 = 8 * BLOCK + 512;

    /// A file that ends within a block, and another opening of it, whose I/O has blocks of 4096 bytes.
    fn file_and_lock_of_other_opening(path: &Path) -> (Arc<Node>, PartialBlockMode) {
        let node = testing::file(path, &[1; 8 * 4096 + 512], Aio::Threads);
        let image = node.underlying_file().unwrap().fd.image;
        (node, PartialBlockMode::for_image(image, 4096))
    }

    /// Resizes the file while a write has locked a range, and sets the old end again when it is done, as writes of parts of blocks do.
    fn end_after_resize_beside_write(locked: Range<u64>, new_end: u64) -> u64 {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        let (node, other_opening) = file_and_lock_of_other_opening(&path);
        let ranges = other_opening.range_lock();
        std::thread::scope(|scope| {
            let write = ranges.lock_blocking(locked);
            let resize = scope.spawn(|| node.set_file_or_image_end(new_end));
            while ranges.claims() < 2 && !resize.is_finished() {
                std::thread::yield_now();
            }
            fs::OpenOptions::new()
                .write(true)
                .open(&path)
                .and_then(|file| file.set_len(OLD_END))
                .unwrap();
            drop(write);
            resize.join().unwrap().unwrap();
        });
        fs::metadata(&path).unwrap().len()
    }

    #[test]
    fn a_write_of_the_last_partial_block_does_not_undo_a_resize() {
        let last_block = 8 * BLOCK;
        for new_end in [OLD_END + 512, OLD_END + 10 * BLOCK] {
            let end = end_after_resize_beside_write(last_block..u64::MAX, new_end);
            assert_eq!(
                end, new_end,
                "resize to {new_end} beside a write of the last block"
            );
        }
        // The write is before the new end, and its block is not.
        for new_end in [4 * BLOCK + 512, 5 * BLOCK - 512] {
            let end = end_after_resize_beside_write(4 * BLOCK..5 * BLOCK, new_end);
            assert_eq!(
                end, new_end,
                "resize to {new_end} beside a write of the block around the new end"
            );
        }
    }

    #[test]
    fn a_resize_does_not_wait_for_writes_of_blocks_before_the_new_end() {
        let folder = tempfile::tempdir().unwrap();
        let (node, other_opening) = file_and_lock_of_other_opening(&folder.path().join("disk"));
        let _write = other_opening.range_lock().lock_blocking(0..4 * BLOCK);
        for new_end in [OLD_END + BLOCK, 4 * BLOCK + 512, 4 * BLOCK] {
            node.set_file_or_image_end(new_end).unwrap();
        }
    }
}
