//! A chain as drivers lay it out: header and response are a segment each, and the data is in others.

use std::sync::atomic::{Ordering, compiler_fence};

use libc::iovec;
use scsi::{Attribute, CdbWords};
use virtqueue::Chain;

use crate::device::Sizes;
use crate::wire::{HEADER_BYTES, RESPONSE_BYTES, attribute_of};

/// What of a command is looked at: plain reads and writes have CDBs of up to 16 bytes.
const HEAD_BYTES: usize = HEADER_BYTES + 16;

/// How long header and response are.
#[derive(Clone, Copy)]
pub(crate) struct UsualSizes {
    header: usize,
    pub response: usize,
}

impl UsualSizes {
    pub fn new(sizes: Sizes) -> Self {
        let header = HEADER_BYTES + sizes.cdb;
        UsualSizes {
            // No segment is as long.
            header: if header < HEAD_BYTES {
                usize::MAX
            } else {
                header
            },
            response: RESPONSE_BYTES + sizes.sense,
        }
    }
}

/// A chain that moves data in one direction.
pub(crate) struct Usual<'a> {
    header: *const u8,
    /// Where the response goes.
    pub response: *mut u8,
    pub data: Direction<'a>,
}

/// Where the data is, or goes, and its bytes.
pub(crate) enum Direction<'a> {
    /// It goes to the guest; or there is none.
    Reads(&'a [iovec], u64),
    Writes(&'a [iovec], u64),
}

/// What its header says.
pub(crate) struct Head {
    pub lun: u64,
    pub tag: u64,
    /// Its task attribute.
    pub attribute: Attribute,
    pub cdb: CdbWords,
}

impl<'a> Usual<'a> {
    /// `None`: it is another one.
    #[inline(always)]
    pub fn of(chain: &'a Chain, sizes: UsualSizes) -> Option<Self> {
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
            ([], into) => Direction::Reads(into, chain.writable_len() - sizes.response as u64),
            (out, []) => Direction::Writes(out, chain.readable_len() - sizes.header as u64),
            _ => return None,
        };
        Some(Usual {
            header: header.iov_base.cast(),
            response: response.iov_base.cast(),
            data,
        })
    }

    /// Each byte of it is looked at once.
    ///
    /// # Safety
    /// The memory that the chain was popped with is held.
    #[inline(always)]
    pub unsafe fn head(&self) -> Head {
        // SAFETY: as promised to us, and the segment has all of these bytes: see `UsualSizes`.
        let ([lun, tag, low, high], attribute) = unsafe {
            let word = |at: usize| u64::from_le(self.header.add(at).cast::<u64>().read_unaligned());
            let words = [0, 8, HEADER_BYTES, HEADER_BYTES + 8].map(word);
            (words, self.header.add(16).read())
        };
        // The guest may be writing it now: what was read is not to be read again.
        compiler_fence(Ordering::SeqCst);
        Head {
            lun,
            tag,
            attribute: attribute_of(attribute),
            cdb: CdbWords(low, high),
        }
    }
}
