//! Recognizes and reads chains as common drivers lay them out, for the fast path: header and response are a segment each, and
//! the data is in others.

use std::sync::atomic::{Ordering, compiler_fence};

use libc::iovec;
use scsi::{CdbWords, TaskAttribute};
use virtqueue::Chain;

use crate::device::SenseAndCdbSizes;
use crate::wire::{HEADER_BYTES, RESPONSE_BYTES, decode_attribute};

/// Bytes that are read of a header: plain reads and writes have CDBs of up to 16 bytes.
const HEAD_BYTES: usize = HEADER_BYTES + 16;

/// Lengths of header and response in this layout.
#[derive(Clone, Copy)]
pub(crate) struct FastPathSizes {
    header: usize,
    pub response: usize,
}

impl FastPathSizes {
    /// The lengths for these configured sizes.
    pub fn new(sizes: SenseAndCdbSizes) -> Self {
        let header = HEADER_BYTES + sizes.cdb;
        FastPathSizes {
            // No segment is this long: no chain takes the fast path.
            header: if header < HEAD_BYTES {
                usize::MAX
            } else {
                header
            },
            response: RESPONSE_BYTES + sizes.sense,
        }
    }
}

/// A chain of this layout that moves data in one direction.
pub(crate) struct FastPathChain<'a> {
    header: *const u8,
    /// Address of the response.
    pub response: *mut u8,
    pub data: ReadOrWriteSegments<'a>,
}

/// Segments of the data, and its length.
pub(crate) enum ReadOrWriteSegments<'a> {
    /// To the guest, or none.
    Reads(&'a [iovec], u64),
    Writes(&'a [iovec], u64),
}

/// The header of a command, as far as the fast path needs it.
pub(crate) struct FastPathHeader {
    pub lun: u64,
    pub tag: u64,
    /// Its task attribute.
    pub attribute: TaskAttribute,
    pub cdb: CdbWords,
}

impl<'a> FastPathChain<'a> {
    /// Divides a chain of this layout into header, response and data. `None`: it has another layout.
    #[inline(always)]
    pub fn parse(chain: &'a Chain, sizes: FastPathSizes) -> Option<Self> {
        let [header, out @ ..] = chain.readable() else {
            return None;
        };
        let [response, into @ ..] = chain.writable() else {
            return None;
        };
        if header.iov_len != sizes.header || response.iov_len != sizes.response {
            return None;
        }
        let data = match (out, into) {
            ([], into) => {
                ReadOrWriteSegments::Reads(into, chain.writable_len() - sizes.response as u64)
            }
            (out, []) => {
                ReadOrWriteSegments::Writes(out, chain.readable_len() - sizes.header as u64)
            }
            _ => return None,
        };
        Some(FastPathChain {
            header: header.iov_base.cast(),
            response: response.iov_base.cast(),
            data,
        })
    }

    /// Reads the header, each byte of it once.
    ///
    /// # Safety
    /// The memory that the chain was popped with is held.
    #[inline(always)]
    pub unsafe fn read_header(&self) -> FastPathHeader {
        // SAFETY: as promised to us, and the segment has all of these bytes: see `FastPathSizes`.
        let ([lun, tag, low, high], attribute) = unsafe {
            let word = |at: usize| u64::from_le(self.header.add(at).cast::<u64>().read_unaligned());
            let words = [0, 8, HEADER_BYTES, HEADER_BYTES + 8].map(word);
            (words, self.header.add(16).read())
        };
        // The guest may be writing it now: what was read is not to be read again.
        compiler_fence(Ordering::SeqCst);
        FastPathHeader {
            lun,
            tag,
            attribute: decode_attribute(attribute),
            cdb: CdbWords(low, high),
        }
    }
}
