//! Parser of a command's descriptor chain: copies the header, and sorts its segments into response and data of a slot.
//!
//! Framing is arbitrary: the header is the first readable bytes, and data for the device follows; the response is the first
//! writable bytes, and data for the driver follows.

use libc::iovec;
use virtqueue::Chain;

use crate::device::SenseAndCdbSizes;
use crate::error::RequestError;
use crate::guest_bytes::{copy_from_guest, split_segments};
use crate::slots::Slot;
use crate::wire::{CDB_BYTES, HEADER_BYTES, RESPONSE_BYTES, decode_attribute};

/// The header of a command.
pub(crate) struct ParsedHeader {
    pub lun: [u8; 8],
    tag: u64,
    attribute: u8,
    cdb: [u8; CDB_BYTES],
}

impl ParsedHeader {
    /// Checks the chain's length, and reads the header, each byte of it once.
    #[inline]
    pub fn check_lengths_and_parse(
        chain: &Chain,
        sizes: SenseAndCdbSizes,
    ) -> Result<Self, RequestError> {
        let (readable, writable) = (chain.readable_len(), chain.writable_len());
        if readable < (HEADER_BYTES + sizes.cdb) as u64 {
            return Err(RequestError::ShortHeader {
                found: readable,
                cdb: sizes.cdb,
            });
        }
        let expected = RESPONSE_BYTES + sizes.sense;
        if writable < expected as u64 {
            return Err(RequestError::ShortResponse {
                found: writable,
                expected,
            });
        }
        let mut header = [0; HEADER_BYTES + CDB_BYTES];
        let len = header.len().min(HEADER_BYTES + sizes.cdb);
        // SAFETY: the chain was popped with the memory that its batch holds.
        unsafe { copy_from_guest(chain.readable(), &mut header[..len]) };
        let [lun, tag] = [0, 8].map(|at| {
            let mut word = [0; 8];
            word.copy_from_slice(&header[at..at + 8]);
            word
        });
        let mut cdb = [0; CDB_BYTES];
        cdb.copy_from_slice(&header[HEADER_BYTES..]);
        Ok(ParsedHeader {
            lun,
            tag: u64::from_le_bytes(tag),
            attribute: header[16],
            cdb,
        })
    }

    /// Fills a slot with the command and the segments of its chain. True: there is data in both directions.
    #[inline]
    pub fn fill_slot_with_header_and_segments(
        &self,
        slot: &mut Slot,
        chain: &Chain,
        sizes: SenseAndCdbSizes,
    ) -> bool {
        slot.tag = self.tag;
        slot.attribute = decode_attribute(self.attribute);
        slot.cdb = self.cdb;
        slot.cancelled = None;
        (slot.kind, slot.bytes) = (None, 0);
        slot.sense_room = sizes.sense;
        slot.response.clear();
        slot.data.clear();
        let Slot { response, data, .. } = slot;
        let data_out_len = chain.readable_len() - (HEADER_BYTES + sizes.cdb) as u64;
        if data_out_len > 0 {
            let header = HEADER_BYTES + sizes.cdb;
            split_segments(chain.readable(), header, |_| (), data);
        }
        let response_len = RESPONSE_BYTES + sizes.sense;
        let data_in_len = chain.writable_len() - response_len as u64;
        let push_response = |segment: iovec| response.push(segment);
        split_segments(chain.writable(), response_len, push_response, data);
        slot.data_is_for_guest = data_out_len == 0;
        slot.data_len = data_out_len + data_in_len;
        data_out_len > 0 && data_in_len > 0
    }
}
