//! Finds the allocated parts of a disk file by `lseek(2)`, for the SCSI command GET LBA STATUS.

use engine::Errno;
use rustix::fs::SeekFrom;
use rustix::io::retry_on_intr;

use crate::disk_file::DiskFile;

/// A piece of a disk that is allocated, or is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Bytes.
    pub len: u64,
    /// It has space, or that is unknown. False: it reads as zeroes.
    pub allocated: bool,
}

impl Allocation {
    /// Cuts the last of the pieces, so that all of them together have so many bytes at most.
    pub fn cut(pieces: &mut [Allocation], most: u64) {
        if let [before @ .., last] = pieces {
            let len_before: u64 = before.iter().map(|piece| piece.len).sum();
            last.len = last.len.min(most.saturating_sub(len_before));
        }
    }
}

impl DiskFile {
    /// The pieces of a range, data and holes in turn. The last one ends where the data or hole does, which may be behind the range.
    pub(crate) fn query_allocation(
        &self,
        start: u64,
        end: u64,
        most: usize,
    ) -> Result<Vec<Allocation>, Errno> {
        let mut pieces = Vec::new();
        let mut at = start;
        while at < end && pieces.len() < most {
            let (next, allocated) = match self.seek_data_or_hole(SeekFrom::Data(at))? {
                // The range may end behind the file.
                None => (end, false),
                Some(data) if data > at => (data, false),
                // If it is a hole as well, another request has just punched it. The rest may be read as data.
                Some(_) => {
                    let hole = self.seek_data_or_hole(SeekFrom::Hole(at))?;
                    let hole = hole.filter(|hole| *hole > at);
                    (hole.unwrap_or(end), true)
                }
            };
            pieces.push(Allocation {
                len: next - at,
                allocated,
            });
            at = next;
        }
        Ok(pieces)
    }

    /// The beginning of the next data or hole, if there is any. The kernel reports a hole behind the end of the file.
    fn seek_data_or_hole(&self, from: SeekFrom) -> Result<Option<u64>, Errno> {
        #[cfg(feature = "simulation")]
        if let (Some(disk), SeekFrom::Data(at) | SeekFrom::Hole(at)) = (&self.simulated, from) {
            return Ok(disk.next_data_or_hole(matches!(from, SeekFrom::Data(_)), at));
        }
        match retry_on_intr(|| rustix::fs::seek(&self.fd, from)) {
            Ok(found) => Ok(Some(found)),
            Err(Errno::NXIO) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
