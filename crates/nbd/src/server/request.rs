//! Requests of the transmission phase: parsed, and checked against the export and what was negotiated.

use super::{ReplyStyle, Transmission};
use crate::wire::{
    EXTENDED_REQUEST_MAGIC, ExtendedRequest, MAX_PAYLOAD_BYTES, NbdErrno, REQUEST_MAGIC, Request,
    command, command_flag, transmission_flag,
};

/// Why a connection ends at once: the next request cannot be found, or would take too much memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// A request begins with other bytes.
    #[error("a request begins with {0:#010x}: that is no request of NBD in the negotiated form")]
    Magic(u32),
    /// More than [`MAX_PAYLOAD_BYTES`].
    #[error("a request has {0} bytes of data, and 33554432 (32 MiB) is the most")]
    PayloadTooLarge(u64),
}

/// A request that is answered by an error, and the text for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The error.
    pub errno: NbdErrno,
    /// What is wrong.
    pub text: &'static str,
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reads at most 32 MiB.
    Read,
    /// Writes its payload, at most 32 MiB.
    Write,
    /// Makes completed writes stable.
    Flush,
    /// Discards.
    Trim,
    /// Announces that the range will be used.
    Cache,
    /// Makes the range read as zeroes.
    WriteZeroes {
        /// It may free the space.
        may_unmap: bool,
        /// It fails if it would not be faster than a write.
        only_if_fast: bool,
    },
    /// Queries the status of the range.
    BlockStatus {
        /// One range is enough.
        one: bool,
    },
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IncomingRequest {
    /// Chosen by the client, for the reply.
    pub cookie: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes of payload that follow the header, at most 32 MiB.
    pub payload: u32,
    /// What the request is.
    pub kind: RequestKind,
}

/// What a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// It is valid.
    Valid {
        /// What it does.
        operation: Operation,
        /// Bytes of its range. The range lies within the export.
        len: u64,
        /// Its data is stable when it completes.
        fua: bool,
    },
    /// It is answered by an error. Its payload is skipped.
    Refused(Refusal),
    /// The session ends when all earlier requests are done.
    Disconnect,
}

/// The fields of both headers.
struct Header {
    flags: u16,
    command: u16,
    cookie: u64,
    offset: u64,
    length: u64,
}

const fn refused<T>(errno: NbdErrno, text: &'static str) -> Result<T, Refusal> {
    Err(Refusal { errno, text })
}

impl Transmission {
    /// Bytes of a request's header.
    #[inline]
    #[must_use]
    pub fn request_header_bytes(&self) -> usize {
        match self.style {
            ReplyStyle::Simple | ReplyStyle::Structured => Request::BYTES,
            ReplyStyle::Extended => ExtendedRequest::BYTES,
        }
    }

    /// Parses the header at the beginning of `bytes`; `None` if it is not complete. `size` is that of the export now.
    ///
    /// # Errors
    /// [`ProtocolError`]
    #[inline]
    pub fn parse_request(
        &self,
        bytes: &[u8],
        size: u64,
    ) -> Result<Option<IncomingRequest>, ProtocolError> {
        let Some(header) = self.decode_header(bytes)? else {
            return Ok(None);
        };
        // QEMU (10.0) does not set the flag of a write.
        let has_payload = header.command == command::WRITE
            || (self.style == ReplyStyle::Extended
                && header.flags & command_flag::PAYLOAD_LEN != 0);
        let payload = match u32::try_from(header.length) {
            _ if !has_payload => 0,
            Ok(length @ ..=MAX_PAYLOAD_BYTES) => length,
            _ => return Err(ProtocolError::PayloadTooLarge(header.length)),
        };
        let kind = match header.command {
            command::DISC => RequestKind::Disconnect,
            _ => match self.check(&header, size) {
                Ok(operation) => RequestKind::Valid {
                    operation,
                    len: header.length,
                    fua: header.flags & command_flag::FUA != 0,
                },
                Err(refusal) => RequestKind::Refused(refusal),
            },
        };
        Ok(Some(IncomingRequest {
            cookie: header.cookie,
            offset: header.offset,
            payload,
            kind,
        }))
    }

    fn decode_header(&self, bytes: &[u8]) -> Result<Option<Header>, ProtocolError> {
        let magic_is = |found, expected| match found == expected {
            true => Ok(()),
            false => Err(ProtocolError::Magic(found)),
        };
        if self.style == ReplyStyle::Extended {
            let Some(request) = ExtendedRequest::decode_first(bytes) else {
                return Ok(None);
            };
            magic_is(request.magic, EXTENDED_REQUEST_MAGIC)?;
            return Ok(Some(Header {
                flags: request.flags,
                command: request.command,
                cookie: request.cookie,
                offset: request.offset,
                length: request.length,
            }));
        }
        let Some(request) = Request::decode_first(bytes) else {
            return Ok(None);
        };
        magic_is(request.magic, REQUEST_MAGIC)?;
        Ok(Some(Header {
            flags: request.flags,
            command: request.command,
            cookie: request.cookie,
            offset: request.offset,
            length: request.length.into(),
        }))
    }

    /// The operation of a request, if it is valid.
    fn check(&self, header: &Header, size: u64) -> Result<Operation, Refusal> {
        let (operation, own_flags) = match header.command {
            command::READ => (Operation::Read, command_flag::DF),
            command::WRITE => (Operation::Write, command_flag::PAYLOAD_LEN),
            command::FLUSH => (Operation::Flush, 0),
            command::TRIM => (Operation::Trim, 0),
            command::CACHE => (Operation::Cache, 0),
            command::WRITE_ZEROES => {
                let operation = Operation::WriteZeroes {
                    may_unmap: header.flags & command_flag::NO_HOLE == 0,
                    only_if_fast: header.flags & command_flag::FAST_ZERO != 0,
                };
                (operation, command_flag::NO_HOLE | command_flag::FAST_ZERO)
            }
            command::BLOCK_STATUS => {
                let one = header.flags & command_flag::REQ_ONE != 0;
                (Operation::BlockStatus { one }, command_flag::REQ_ONE)
            }
            command::RESIZE => {
                return refused(
                    NbdErrno::Inval,
                    "NBD_CMD_RESIZE is not supported: resize the node by its daemon",
                );
            }
            _ => return refused(NbdErrno::Inval, "the command is not known"),
        };
        let mut allowed = own_flags | command_flag::FUA;
        if !self.has_flag(transmission_flag::SEND_DF) {
            allowed &= !command_flag::DF;
        }
        if self.style != ReplyStyle::Extended {
            allowed &= !command_flag::PAYLOAD_LEN;
        }
        if header.flags & !allowed != 0 {
            return refused(
                NbdErrno::Inval,
                "the command does not have one of its flags",
            );
        }
        let changes = matches!(
            operation,
            Operation::Write | Operation::Trim | Operation::WriteZeroes { .. }
        );
        if changes && self.has_flag(transmission_flag::READ_ONLY) {
            return refused(NbdErrno::Perm, "the export is read-only");
        }
        self.check_range(operation, header, size)?;
        Ok(operation)
    }

    fn check_range(&self, operation: Operation, header: &Header, size: u64) -> Result<(), Refusal> {
        let Header { offset, length, .. } = *header;
        match operation {
            Operation::Flush if offset != 0 || length != 0 => {
                return refused(NbdErrno::Inval, "a flush has no range");
            }
            Operation::Read if length > MAX_PAYLOAD_BYTES.into() => {
                let errno = match self.style {
                    ReplyStyle::Simple => NbdErrno::Inval,
                    ReplyStyle::Structured | ReplyStyle::Extended => NbdErrno::Overflow,
                };
                return refused(errno, "a read is larger than 32 MiB");
            }
            Operation::BlockStatus { .. } if self.contexts.is_empty() => {
                return refused(NbdErrno::Inval, "no metadata context was negotiated");
            }
            Operation::BlockStatus { .. } if length == 0 => {
                return refused(NbdErrno::Inval, "the range is empty");
            }
            _ => {}
        }
        let end = offset.checked_add(length);
        if end.is_none_or(|end| end > size) {
            let errno = match operation {
                Operation::Write | Operation::WriteZeroes { .. } => NbdErrno::NoSpc,
                _ => NbdErrno::Inval,
            };
            return refused(errno, "the range reaches beyond the end of the export");
        }
        // A power of two.
        let mask = u64::from(self.min_block_size) - 1;
        if (offset | length) & mask != 0 {
            return refused(
                NbdErrno::Inval,
                "the range is not aligned to the minimum block size",
            );
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
