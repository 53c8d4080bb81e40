//! Allocated parts of a disk, for GET LBA STATUS.

use engine::Errno;
use rustix::fs::SeekFrom;
use rustix::io::retry_on_intr;

use crate::drivers::disk_file::DiskFile;
use crate::node::Node;

/// A piece of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Bytes.
    pub len: u64,
    /// It has space, or nobody knows; else it reads as zeroes.
    pub allocated: bool,
}

impl Node {
    /// What is known about `len` bytes at `offset`, in at most `most` pieces, which may be less than all. It may wait
    /// for the disk. A block device does not say, and counts as having space, as a null disk does.
    ///
    /// # Errors
    /// What `lseek(2)` says, but for that it cannot.
    pub fn allocations(
        &self,
        offset: u64,
        len: u64,
        most: usize,
    ) -> Result<Vec<Allocation>, Errno> {
        let known = self.driver.allocations(offset, len, most)?;
        let allocated = true;
        Ok(known.unwrap_or_else(|| vec![Allocation { len, allocated }]))
    }
}

impl DiskFile {
    /// Data and holes in turn.
    pub(crate) fn pieces(
        &self,
        start: u64,
        end: u64,
        most: usize,
    ) -> Result<Vec<Allocation>, Errno> {
        let mut pieces = Vec::new();
        let mut at = start;
        while at < end && pieces.len() < most {
            let data = self.seek(SeekFrom::Data(at), end)?;
            let (next, allocated) = match data {
                data if data > at => (data, false),
                // A hole here as well: another request has just made it. The next look finds it.
                _ => (self.seek(SeekFrom::Hole(at), end)?.max(at + 1), true),
            };
            pieces.push(Allocation {
                len: next - at,
                allocated,
            });
            at = next;
        }
        Ok(pieces)
    }

    /// Where the next of its kind begins, at most at `end`. There is a hole behind the file.
    fn seek(&self, from: SeekFrom, end: u64) -> Result<u64, Errno> {
        match retry_on_intr(|| rustix::fs::seek(&self.fd, from)) {
            Ok(found) => Ok(found.min(end)),
            Err(Errno::NXIO) => Ok(end),
            Err(error) => Err(error),
        }
    }
}
