//! From a descriptor chain to a request.
//!
//! Framing is arbitrary: header, data and status may be cut into descriptors in any way. The header
//! is the first 16 readable bytes, the status the last writable one, the data what lies between.

use block::{Op, SECTOR_BYTES};
use libc::iovec;
use virtqueue::Chain;

use crate::device::Device;
use crate::wire::{
    HEADER_BYTES, RANGE_BYTES, RANGE_FLAG_UNMAP, RangeSegment, RequestHeader, Status, T_BARRIER,
    T_DISCARD, T_FLUSH, T_GET_ID, T_IN, T_OUT, T_WRITE_ZEROES,
};

/// A chain that is no request at all: there is nowhere to put a status. The queue is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// Too short for a header.
    #[error("a request with {0} device-readable bytes, expected a header of {HEADER_BYTES}")]
    ShortHeader(u64),
    /// No byte for the status.
    #[error("a request without a device-writable byte for its status")]
    NoStatus,
    /// The guest made a descriptor available again whose request was not finished.
    #[error("more requests in flight than the ring of {0} has entries")]
    TooMany(u16),
}

/// What a chain asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parsed {
    /// Over already, with this status.
    Done(Status),
    /// `GET_ID`.
    GetId,
    /// Data to move: the segments of the chain are the data now.
    Transfer { op: Op, offset: u64, len: u64 },
    /// A flush, discard or write-zeroes.
    NoData { op: Op, offset: u64, len: u64 },
}

/// A request as it stands in the guest's memory.
#[derive(Debug)]
pub(crate) struct Parse {
    /// Where the status byte goes.
    pub status: *mut u8,
    /// Device-writable bytes, status included: what a used entry says was written.
    pub writable: u32,
    pub what: Parsed,
}

impl Device {
    /// Parses a chain, and leaves in it the data segments of a transfer (see [`data_of`]).
    pub(crate) fn parse(&self, chain: &mut Chain) -> Result<Parse, RequestError> {
        let mut header = [0; HEADER_BYTES];
        if copy_from(chain.readable(), 0, &mut header) < HEADER_BYTES {
            return Err(RequestError::ShortHeader(chain.readable_len()));
        }
        let last = chain
            .writable_mut()
            .last_mut()
            .ok_or(RequestError::NoStatus)?;
        last.iov_len -= 1;
        let status = last.iov_base.cast::<u8>().wrapping_add(last.iov_len);
        let header = RequestHeader {
            kind: u32::from_le_bytes([header[0], header[1], header[2], header[3]]),
            reserved: 0,
            sector: u64::from_le_bytes([
                header[8], header[9], header[10], header[11], header[12], header[13], header[14],
                header[15],
            ]),
        };
        // A chain has at most 2^32 - 1 bytes.
        let writable = u32::try_from(chain.writable_len()).unwrap_or(u32::MAX);
        let readable_data = chain.readable_len() - HEADER_BYTES as u64;
        let writable_data = chain.writable_len() - 1;
        let what = match header.kind & !T_BARRIER {
            T_IN => self.transfer(Op::Read, header.sector, writable_data),
            T_OUT if self.options().read_only => Parsed::Done(Status::IoErr),
            T_OUT => self.transfer(Op::Write, header.sector, readable_data),
            T_FLUSH => Parsed::NoData {
                op: Op::Flush,
                offset: 0,
                len: 0,
            },
            T_GET_ID => Parsed::GetId,
            kind @ (T_DISCARD | T_WRITE_ZEROES) => self.range(kind, chain, readable_data),
            _ => Parsed::Done(Status::Unsupported),
        };
        Ok(Parse {
            status,
            writable,
            what,
        })
    }

    fn transfer(&self, op: Op, sector: u64, len: u64) -> Parsed {
        match self.checked_range(sector, len) {
            None => Parsed::Done(Status::IoErr),
            Some(_) if len == 0 => Parsed::Done(Status::Ok),
            Some(offset) => Parsed::Transfer { op, offset, len },
        }
    }

    fn range(&self, kind: u32, chain: &Chain, len: u64) -> Parsed {
        if self.options().read_only || len < RANGE_BYTES as u64 {
            return Parsed::Done(Status::IoErr);
        }
        if len > RANGE_BYTES as u64 {
            // One segment per request is what we announce.
            return Parsed::Done(Status::Unsupported);
        }
        let mut bytes = [0; RANGE_BYTES];
        copy_from(chain.readable(), HEADER_BYTES, &mut bytes);
        let [
            b0,
            b1,
            b2,
            b3,
            b4,
            b5,
            b6,
            b7,
            n0,
            n1,
            n2,
            n3,
            f0,
            f1,
            f2,
            f3,
        ] = bytes;
        let segment = RangeSegment {
            sector: u64::from_le_bytes([b0, b1, b2, b3, b4, b5, b6, b7]),
            num_sectors: u32::from_le_bytes([n0, n1, n2, n3]),
            flags: u32::from_le_bytes([f0, f1, f2, f3]),
        };
        let op = match (kind, segment.flags) {
            (T_DISCARD, 0) => Op::Discard,
            (T_WRITE_ZEROES, 0) => Op::WriteZeroes { unmap: false },
            (T_WRITE_ZEROES, RANGE_FLAG_UNMAP) => Op::WriteZeroes { unmap: true },
            // Unknown flags, and UNMAP on a discard.
            _ => return Parsed::Done(Status::Unsupported),
        };
        let len = u64::from(segment.num_sectors) * SECTOR_BYTES;
        match self.checked_range(segment.sector, len) {
            Some(_) if len == 0 => Parsed::Done(Status::Ok),
            Some(offset) if len <= self.geometry().discard.max_bytes => {
                Parsed::NoData { op, offset, len }
            }
            _ => Parsed::Done(Status::IoErr),
        }
    }

    /// The byte offset of a range that is whole blocks within the disk.
    fn checked_range(&self, sector: u64, len: u64) -> Option<u64> {
        let offset = sector.checked_mul(SECTOR_BYTES)?;
        let end = offset.checked_add(len)?;
        let block = u64::from(self.options().logical_block_size) - 1;
        (end <= self.capacity_bytes() && (offset | len) & block == 0).then_some(offset)
    }
}

/// The data segments of a parsed transfer, in order, empty ones left out.
pub(crate) fn data_of(chain: &Chain, op: Op) -> impl Iterator<Item = iovec> {
    let (list, mut skip) = match op {
        Op::Write => (chain.readable(), HEADER_BYTES),
        _ => (chain.writable(), 0),
    };
    list.iter().filter_map(move |segment| {
        let cut = skip.min(segment.iov_len);
        skip -= cut;
        let rest = iovec {
            iov_base: segment.iov_base.wrapping_byte_add(cut),
            iov_len: segment.iov_len - cut,
        };
        (rest.iov_len > 0).then_some(rest)
    })
}

/// Copies bytes of the guest's, from `skip` on, and says how many there were.
fn copy_from(segments: &[iovec], mut skip: usize, to: &mut [u8]) -> usize {
    let mut done = 0;
    for segment in segments {
        let cut = skip.min(segment.iov_len);
        skip -= cut;
        let count = (segment.iov_len - cut).min(to.len() - done);
        // SAFETY: the segments of a chain are mapped guest memory, checked when the chain was
        // popped, and the map is held while we look; `to` has room for `count` more.
        unsafe {
            let from = segment.iov_base.cast::<u8>().add(cut);
            std::ptr::copy_nonoverlapping(from, to.as_mut_ptr().add(done), count);
        }
        done += count;
        if done == to.len() {
            break;
        }
    }
    done
}

/// Copies to the guest, as much as fits, and says how much that was.
pub(crate) fn copy_to(segments: &[iovec], from: &[u8]) -> usize {
    let mut done = 0;
    for segment in segments {
        let count = segment.iov_len.min(from.len() - done);
        // SAFETY: as for `copy_from`, the other way round.
        unsafe {
            let to = segment.iov_base.cast::<u8>();
            std::ptr::copy_nonoverlapping(from.as_ptr().add(done), to, count);
        }
        done += count;
    }
    done
}
