//! Parser of a request's descriptor chain.
//!
//! Framing is arbitrary: header, data and status may be divided into descriptors in any way. The header
//! is the first 16 readable bytes, the status the last writable one, and the data all between.

use std::sync::atomic::{AtomicU64, Ordering};

use block::{Op, SECTOR_BYTES};
use libc::iovec;
use virtqueue::Chain;

use crate::wire::{
    HEADER_BYTES, RANGE_BYTES, RANGE_FLAG_UNMAP, RangeSegment, RequestHeader, Status, T_DISCARD,
    T_FLUSH, T_GET_ID, T_OUT, T_WRITE_ZEROES,
};
use telemetry::queue::RequestKind;

/// Malformed chain that leaves no room for a status: the queue is broken.
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

/// A request that is neither a read nor a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NonTransfer {
    /// It is answered with this status, without the disk. A request without a kind is not counted.
    Answered {
        kind: Option<RequestKind>,
        status: Status,
    },
    /// `GET_ID`.
    GetId,
    /// A flush, discard or write-zeroes.
    NoData { op: Op, offset: u64, len: u64 },
}

/// The parts of a request in the guest's memory.
pub(crate) struct RequestParts<'a> {
    pub header: RequestHeader,
    pub reply: ReplyLocation,
    /// The device-readable segments, with the header.
    pub readable: &'a mut [iovec],
    pub readable_len: u64,
    /// The device-writable segments before the status. None of them is empty.
    pub writable_data: &'a [iovec],
    pub writable_data_len: u64,
}

/// Place of a request's response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplyLocation {
    /// The status byte.
    pub status: *mut u8,
    /// Device-writable bytes, status included: the length in its used entry.
    pub used_len: u32,
}

impl<'a> RequestParts<'a> {
    /// Divides a chain into header, data and status.
    #[inline(always)]
    pub fn split(chain: &'a mut Chain) -> Result<Self, RequestError> {
        let (readable_len, writable_len) = (chain.readable_len(), chain.writable_len());
        let (readable, writable) = chain.readable_and_writable_mut();
        let header = read_header(readable, readable_len)?;
        let Some(last) = writable.last_mut() else {
            return Err(RequestError::NoStatus);
        };
        last.iov_len -= 1;
        let status = last.iov_base.cast::<u8>().wrapping_add(last.iov_len);
        let only_status = last.iov_len == 0;
        let count = writable.len() - usize::from(only_status);
        // A chain has at most 2^32 - 1 bytes.
        let used_len = u32::try_from(writable_len).unwrap_or(u32::MAX);
        Ok(RequestParts {
            header,
            reply: ReplyLocation { status, used_len },
            readable,
            readable_len,
            writable_data: &writable[..count],
            writable_data_len: writable_len - 1,
        })
    }
}

/// Limits of a device that each of its requests is checked against.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestLimits {
    pub capacity_bytes: u64,
    /// Bits that must be clear in offsets and lengths: the block size, less one.
    pub block_mask: u64,
    pub max_discard_bytes: u64,
    pub read_only: bool,
}

impl RequestLimits {
    /// Parses a request that is not a read or an allowed write.
    pub fn parse_non_transfer(
        &self,
        kind: u32,
        readable: &[iovec],
        readable_len: u64,
    ) -> NonTransfer {
        match kind {
            T_OUT => counted_answer(RequestKind::Write, Status::IoErr),
            T_FLUSH => NonTransfer::NoData {
                op: Op::Flush,
                offset: 0,
                len: 0,
            },
            T_GET_ID => NonTransfer::GetId,
            T_DISCARD | T_WRITE_ZEROES => {
                self.parse_discard_or_zeroes(kind, readable, readable_len - HEADER_BYTES as u64)
            }
            _ => NonTransfer::Answered {
                kind: None,
                status: Status::Unsupported,
            },
        }
    }

    /// Parses the range of a discard or write-zeroes request.
    fn parse_discard_or_zeroes(&self, kind: u32, readable: &[iovec], len: u64) -> NonTransfer {
        let counts_as = match kind {
            T_DISCARD => RequestKind::Unmap,
            _ => RequestKind::Write,
        };
        if self.read_only || len < RANGE_BYTES as u64 {
            return counted_answer(counts_as, Status::IoErr);
        }
        if len > RANGE_BYTES as u64 {
            // The configuration space announces one segment per request.
            return counted_answer(counts_as, Status::Unsupported);
        }
        let mut bytes = [0; RANGE_BYTES];
        copy_from_guest(readable, HEADER_BYTES, &mut bytes);
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
            _ => return counted_answer(counts_as, Status::Unsupported),
        };
        let len = u64::from(segment.num_sectors) * SECTOR_BYTES;
        match self.checked_offset(segment.sector, len) {
            Some(_) if len == 0 => counted_answer(counts_as, Status::Ok),
            Some(offset) if len <= self.max_discard_bytes => {
                NonTransfer::NoData { op, offset, len }
            }
            _ => counted_answer(counts_as, Status::IoErr),
        }
    }

    /// The byte offset of a range that is whole blocks within the disk.
    #[inline]
    pub fn checked_offset(&self, sector: u64, len: u64) -> Option<u64> {
        let offset = sector.checked_mul(SECTOR_BYTES)?;
        let end = offset.checked_add(len)?;
        (end <= self.capacity_bytes && (offset | len) & self.block_mask == 0).then_some(offset)
    }
}

/// A request that is answered without the disk, and counts as this kind.
fn counted_answer(kind: RequestKind, status: Status) -> NonTransfer {
    NonTransfer::Answered {
        kind: Some(kind),
        status,
    }
}

/// Reads the header, each byte of it once.
#[inline(always)]
pub(crate) fn read_header(readable: &[iovec], len: u64) -> Result<RequestHeader, RequestError> {
    // Nearly every driver puts it into one buffer, aligned for its largest field.
    if let Some(first) = readable.first()
        && first.iov_len >= HEADER_BYTES
        && first.iov_base.cast::<u64>().is_aligned()
    {
        let words = first.iov_base.cast::<u64>();
        // SAFETY: the first 16 bytes of a segment of the chain, which is mapped guest memory, checked
        // when the chain was popped; the map is held during the read. Aligned as just checked. Atomic
        // because the guest may be writing it now.
        let [low, sector] = unsafe {
            [
                AtomicU64::from_ptr(words).load(Ordering::Relaxed),
                AtomicU64::from_ptr(words.add(1)).load(Ordering::Relaxed),
            ]
        };
        return Ok(RequestHeader::from_words(low, sector));
    }
    read_scattered_header(readable, len)
}

/// A header in pieces, or at an odd address.
#[cold]
fn read_scattered_header(readable: &[iovec], len: u64) -> Result<RequestHeader, RequestError> {
    let mut words = [[0; 8]; 2];
    if copy_from_guest(readable, 0, words.as_flattened_mut()) < HEADER_BYTES {
        return Err(RequestError::ShortHeader(len));
    }
    let [low, sector] = words.map(u64::from_ne_bytes);
    Ok(RequestHeader::from_words(low, sector))
}

/// The data of a write: what follows the header in the device-readable segments.
#[inline]
pub(crate) fn skip_header(readable: &mut [iovec]) -> &[iovec] {
    let mut skip = HEADER_BYTES;
    let mut index = 0;
    while let Some(segment) = readable.get_mut(index) {
        if segment.iov_len > skip {
            segment.iov_base = segment.iov_base.wrapping_byte_add(skip);
            segment.iov_len -= skip;
            break;
        }
        skip -= segment.iov_len;
        index += 1;
    }
    &readable[index..]
}

/// Copies bytes of the guest's memory, from `skip` on. Returns how many were copied.
fn copy_from_guest(segments: &[iovec], mut skip: usize, to: &mut [u8]) -> usize {
    let mut done = 0;
    for segment in segments {
        let cut = skip.min(segment.iov_len);
        skip -= cut;
        let count = (segment.iov_len - cut).min(to.len() - done);
        // SAFETY: the segments of a chain are mapped guest memory, checked when the chain was
        // popped, and the map is held during the copy; `to` has room for `count` more.
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

/// Copies as many bytes to the guest's memory as fit. Returns how many were copied.
pub(crate) fn copy_to_guest(segments: &[iovec], from: &[u8]) -> usize {
    let mut done = 0;
    for segment in segments {
        let count = segment.iov_len.min(from.len() - done);
        // SAFETY: as for `copy_from_guest`, the other way round.
        unsafe {
            let to = segment.iov_base.cast::<u8>();
            std::ptr::copy_nonoverlapping(from.as_ptr().add(done), to, count);
        }
        done += count;
    }
    done
}
