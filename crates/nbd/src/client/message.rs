//! The message of a piece of a request: its header, and the data of a write.

use engine::Op;
use libc::iovec;

use super::disk::Disk;
use super::features::Features;
use super::handshake::{Negotiated, ReplyStyle};
use super::record::{Record, Step};
use super::segments::append_part;
use crate::wire::{self, command, command_flag};

/// Zeroes to send.
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

impl Record {
    /// Writes the header of the piece. `slot` is the index of the record.
    pub fn encode(&mut self, slot: u32, disk: &Disk, connection: &Negotiated) {
        let features = disk.features();
        let sends_zeroes = self.sends_zeroes(features);
        let (command, mut flags) = match (self.step, self.request.op) {
            (Step::Flush, _) | (_, Op::Flush) => (command::FLUSH, 0),
            (_, Op::Read) => (command::READ, 0),
            (_, Op::Write) => (command::WRITE, 0),
            (_, Op::Discard) => (command::TRIM, 0),
            (_, Op::WriteZeroes { .. }) if sends_zeroes => (command::WRITE, 0),
            (_, Op::WriteZeroes { unmap: true }) => (command::WRITE_ZEROES, 0),
            (_, Op::WriteZeroes { unmap: false }) => (command::WRITE_ZEROES, command_flag::NO_HOLE),
        };
        let is_stable = self.request.fua && features.fua;
        if is_stable && matches!(command, command::WRITE | command::WRITE_ZEROES) {
            flags |= command_flag::FUA;
        }
        let cookie = u64::from(self.serial) << 32 | u64::from(slot);
        let offset = match command {
            command::FLUSH => 0,
            _ => self.piece_offset(),
        };
        if connection.replies == ReplyStyle::Extended {
            if command == command::WRITE {
                flags |= command_flag::PAYLOAD_LEN;
            }
            let header = wire::ExtendedRequest {
                magic: wire::EXTENDED_REQUEST_MAGIC,
                flags,
                command,
                cookie,
                offset,
                length: self.piece,
            };
            self.header = header.encode();
            self.header_len = wire::ExtendedRequest::BYTES;
        } else {
            let header = wire::Request {
                magic: wire::REQUEST_MAGIC,
                flags,
                command,
                cookie,
                offset,
                // Pieces are smaller.
                length: u32::try_from(self.piece).unwrap_or(u32::MAX),
            };
            self.header[..wire::Request::BYTES].copy_from_slice(&header.encode());
            self.header_len = wire::Request::BYTES;
        }
    }

    /// Bytes of the piece on the wire.
    pub fn wire_len(&self, features: Features) -> u64 {
        let payload = match self.request.op {
            _ if self.sends_segments() || self.sends_zeroes(features) => self.piece,
            _ => 0,
        };
        self.header_len as u64 + payload
    }

    /// Appends header and data of the piece, without the first `skip` bytes, until `out` has `most` entries. Returns the bytes
    /// that were appended.
    ///
    /// # Safety
    /// As for [`segments`](Self::segments). The list is valid until the record changes or the request completes.
    pub unsafe fn append_message(
        &self,
        features: Features,
        skip: u64,
        out: &mut Vec<iovec>,
        most: usize,
    ) -> u64 {
        let header = iovec {
            iov_base: self.header.as_ptr().cast_mut().cast(),
            iov_len: self.header_len,
        };
        let header_len = self.header_len as u64;
        let mut bytes = append_part(&[header], skip, header_len.saturating_sub(skip), out, most);
        let payload = self.wire_len(features) - header_len;
        let skip = skip.saturating_sub(header_len);
        if payload == 0 {
        } else if self.sends_zeroes(features) {
            let zeroes = iovec {
                iov_base: ZEROES.as_ptr().cast_mut().cast(),
                iov_len: ZEROES.len(),
            };
            let mut rest = payload - skip;
            while rest > 0 && out.len() < most {
                let part = append_part(&[zeroes], 0, rest.min(ZEROES.len() as u64), out, most);
                rest -= part;
                bytes += part;
            }
        } else if self.is_given_up {
            let kept = iovec {
                iov_base: self.kept_data.as_ptr().cast_mut().cast(),
                iov_len: self.kept_data.len(),
            };
            bytes += append_part(&[kept], skip, payload - skip, out, most);
        } else {
            // SAFETY: our caller promises it.
            let segments = unsafe { self.segments() };
            bytes += append_part(segments, self.done + skip, payload - skip, out, most);
        }
        bytes
    }
}
