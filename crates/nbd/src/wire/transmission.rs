//! Headers and constants of the transmission phase: requests and their replies.

use super::wire_struct;

/// Begins a request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Begins a request with an extended header.
pub const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
/// Begins a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Begins a chunk of a structured reply.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;
/// Begins a chunk of a reply with an extended header.
pub const EXTENDED_REPLY_MAGIC: u32 = 0x6e8a_278c;

wire_struct! {
    /// A request. The data of a write follows.
    Request: 28 {
        /// [`REQUEST_MAGIC`]
        magic: u32,
        /// [`command_flag`]
        flags: u16,
        /// [`command`]
        command: u16,
        /// Chosen by the client, and repeated in the reply.
        cookie: u64,
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u32,
    }
}

wire_struct! {
    /// A request with an extended header. A payload follows if [`command_flag::PAYLOAD_LEN`] is set.
    ExtendedRequest: 32 {
        /// [`EXTENDED_REQUEST_MAGIC`]
        magic: u32,
        /// [`command_flag`]
        flags: u16,
        /// [`command`]
        command: u16,
        /// Chosen by the client, and repeated in the reply.
        cookie: u64,
        /// First byte.
        offset: u64,
        /// Bytes: of the payload if there is one, otherwise of the range.
        length: u64,
    }
}

wire_struct! {
    /// A simple reply. The data of a successful read follows.
    SimpleReply: 16 {
        /// [`SIMPLE_REPLY_MAGIC`]
        magic: u32,
        /// 0, or the value of an [`NbdErrno`](super::NbdErrno).
        error: u32,
        /// That of the request.
        cookie: u64,
    }
}

wire_struct! {
    /// The header of a chunk of a structured reply.
    StructuredReply: 20 {
        /// [`STRUCTURED_REPLY_MAGIC`]
        magic: u32,
        /// [`reply_flag`]
        flags: u16,
        /// [`chunk`]
        chunk: u16,
        /// That of the request.
        cookie: u64,
        /// Bytes of the payload that follows.
        length: u32,
    }
}

wire_struct! {
    /// The header of a chunk of a reply with an extended header.
    ExtendedReply: 32 {
        /// [`EXTENDED_REPLY_MAGIC`]
        magic: u32,
        /// [`reply_flag`]
        flags: u16,
        /// [`chunk`]
        chunk: u16,
        /// That of the request.
        cookie: u64,
        /// That of the request.
        offset: u64,
        /// Bytes of the payload that follows.
        length: u64,
    }
}

wire_struct! {
    /// The payload of [`chunk::OFFSET_HOLE`].
    HolePayload: 12 {
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u32,
    }
}

wire_struct! {
    /// Begins the payload of an error; the text follows, and with [`chunk::ERROR_OFFSET`] an offset of 64 bits.
    ErrorPayload: 6 {
        /// The value of an [`NbdErrno`](super::NbdErrno).
        error: u32,
        /// Bytes of the text.
        text_length: u16,
    }
}

wire_struct! {
    /// A range with its status, after the 32 bits of the context in the payload of [`chunk::BLOCK_STATUS`].
    BlockDescriptor: 8 {
        /// Bytes.
        length: u32,
        /// Flags that the context defines.
        status: u32,
    }
}

wire_struct! {
    /// Begins the payload of [`chunk::BLOCK_STATUS_EXT`].
    BlockStatusExt: 8 {
        /// The context.
        context: u32,
        /// Descriptors that follow.
        count: u32,
    }
}

wire_struct! {
    /// A range with its status, in the payload of [`chunk::BLOCK_STATUS_EXT`].
    BlockDescriptorExt: 16 {
        /// Bytes.
        length: u64,
        /// Flags that the context defines.
        status: u64,
    }
}

/// Commands.
pub mod command {
    /// Reads.
    pub const READ: u16 = 0;
    /// Writes.
    pub const WRITE: u16 = 1;
    /// Ends the session, without a reply.
    pub const DISC: u16 = 2;
    /// Makes completed writes stable.
    pub const FLUSH: u16 = 3;
    /// The range is no longer needed.
    pub const TRIM: u16 = 4;
    /// The range will be used soon.
    pub const CACHE: u16 = 5;
    /// The range reads as zeroes afterwards.
    pub const WRITE_ZEROES: u16 = 6;
    /// Queries the status of the range.
    pub const BLOCK_STATUS: u16 = 7;
    /// Changes the size of the export (of an extension).
    pub const RESIZE: u16 = 8;
}

/// Flags of a command.
pub mod command_flag {
    /// The reply waits until the data is stable.
    pub const FUA: u16 = 1 << 0;
    /// `WRITE_ZEROES` frees no space.
    pub const NO_HOLE: u16 = 1 << 1;
    /// The reply to `READ` has one piece of data.
    pub const DF: u16 = 1 << 2;
    /// The reply to `BLOCK_STATUS` has one range.
    pub const REQ_ONE: u16 = 1 << 3;
    /// `WRITE_ZEROES` fails at once if it would not be faster than a write.
    pub const FAST_ZERO: u16 = 1 << 4;
    /// `length` is that of a payload (with extended headers).
    pub const PAYLOAD_LEN: u16 = 1 << 5;
}

/// Flags of a chunk.
pub mod reply_flag {
    /// The last chunk of its reply.
    pub const DONE: u16 = 1 << 0;
}

/// Kinds of chunks.
pub mod chunk {
    /// Nothing; the last chunk.
    pub const NONE: u16 = 0;
    /// An offset of 64 bits, and data.
    pub const OFFSET_DATA: u16 = 1;
    /// [`HolePayload`](super::HolePayload)
    pub const OFFSET_HOLE: u16 = 2;
    /// A context of 32 bits, and [`BlockDescriptor`](super::BlockDescriptor)s.
    pub const BLOCK_STATUS: u16 = 5;
    /// [`BlockStatusExt`](super::BlockStatusExt) and [`BlockDescriptorExt`](super::BlockDescriptorExt)s.
    pub const BLOCK_STATUS_EXT: u16 = 6;
    /// Set in all errors.
    pub const IS_ERROR: u16 = 1 << 15;
    /// [`ErrorPayload`](super::ErrorPayload)
    pub const ERROR: u16 = IS_ERROR | 1;
    /// The same, with an offset.
    pub const ERROR_OFFSET: u16 = IS_ERROR | 2;
}
