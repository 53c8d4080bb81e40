//! Headers and constants of the handshake: greeting, options and their replies.

use super::wire_struct;

/// `NBDMAGIC`: the first bytes of a server.
pub const NBD_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// `IHAVEOPT`: follows in the greeting, and begins each option.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Begins each reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;

/// Zeroes after the reply to [`option::EXPORT_NAME`], unless the client has set [`client_flag::NO_ZEROES`].
pub const EXPORT_NAME_ZEROES: usize = 124;

wire_struct! {
    /// The server's first message, of a newstyle server.
    Greeting: 18 {
        /// [`NBD_MAGIC`]
        magic: u64,
        /// [`OPTION_MAGIC`]
        option_magic: u64,
        /// [`handshake_flag`]
        flags: u16,
    }
}

wire_struct! {
    /// The header of an option, from the client.
    OptionHeader: 16 {
        /// [`OPTION_MAGIC`]
        magic: u64,
        /// [`option`]
        option: u32,
        /// Bytes of data that follow.
        length: u32,
    }
}

wire_struct! {
    /// The header of a reply to an option, from the server.
    OptionReplyHeader: 20 {
        /// [`OPTION_REPLY_MAGIC`]
        magic: u64,
        /// The option of the request.
        option: u32,
        /// [`option_reply`]
        reply: u32,
        /// Bytes of data that follow.
        length: u32,
    }
}

wire_struct! {
    /// The reply to [`option::EXPORT_NAME`], perhaps with [`EXPORT_NAME_ZEROES`] after it.
    ExportNameReply: 10 {
        /// Bytes of the export.
        size: u64,
        /// [`transmission_flag`]
        flags: u16,
    }
}

wire_struct! {
    /// Data of [`option_reply::INFO`] with [`info::EXPORT`].
    ExportInfo: 12 {
        /// [`info::EXPORT`]
        info: u16,
        /// Bytes of the export.
        size: u64,
        /// [`transmission_flag`]
        flags: u16,
    }
}

wire_struct! {
    /// Data of [`option_reply::INFO`] with [`info::BLOCK_SIZE`].
    BlockSizeInfo: 14 {
        /// [`info::BLOCK_SIZE`]
        info: u16,
        /// Offsets and lengths are multiples of this: a power of two.
        minimum: u32,
        /// Offsets and lengths are best multiples of this: a power of two.
        preferred: u32,
        /// Most bytes of a payload.
        maximum: u32,
    }
}

/// Flags of the server in its [`Greeting`].
pub mod handshake_flag {
    /// The server speaks fixed newstyle.
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    /// The server can leave out the zeroes after the reply to `NBD_OPT_EXPORT_NAME`.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Flags of the client after the greeting: 32 bits.
pub mod client_flag {
    /// The client speaks fixed newstyle.
    pub const FIXED_NEWSTYLE: u32 = 1 << 0;
    /// The zeroes are left out.
    pub const NO_ZEROES: u32 = 1 << 1;
}

/// Options that a client sends.
pub mod option {
    /// Enters transmission, or ends the connection if there is no such export.
    pub const EXPORT_NAME: u32 = 1;
    /// Ends the session.
    pub const ABORT: u32 = 2;
    /// Lists the exports.
    pub const LIST: u32 = 3;
    /// Begins TLS.
    pub const STARTTLS: u32 = 5;
    /// Describes an export.
    pub const INFO: u32 = 6;
    /// Describes an export and enters transmission.
    pub const GO: u32 = 7;
    /// Chooses structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// Lists the metadata contexts of an export.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Chooses metadata contexts of an export.
    pub const SET_META_CONTEXT: u32 = 10;
    /// Chooses extended headers.
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// Kinds of replies to an option.
pub mod option_reply {
    /// The end of a successful reply.
    pub const ACK: u32 = 1;
    /// An export of the list.
    pub const SERVER: u32 = 2;
    /// One piece of information on an export.
    pub const INFO: u32 = 3;
    /// A metadata context.
    pub const META_CONTEXT: u32 = 4;

    /// Set in all errors.
    pub const ERROR: u32 = 1 << 31;
    /// The option is not known.
    pub const ERR_UNSUP: u32 = ERROR | 1;
    /// Forbidden by the server's settings.
    pub const ERR_POLICY: u32 = ERROR | 2;
    /// The option's data is invalid, or the option is not possible now.
    pub const ERR_INVALID: u32 = ERROR | 3;
    /// The platform lacks what the option needs.
    pub const ERR_PLATFORM: u32 = ERROR | 4;
    /// TLS has to begin first.
    pub const ERR_TLS_REQD: u32 = ERROR | 5;
    /// There is no such export.
    pub const ERR_UNKNOWN: u32 = ERROR | 6;
    /// The server is ending.
    pub const ERR_SHUTDOWN: u32 = ERROR | 7;
    /// The client has to ask for the block sizes.
    pub const ERR_BLOCK_SIZE_REQD: u32 = ERROR | 8;
    /// The request or its reply is too large.
    pub const ERR_TOO_BIG: u32 = ERROR | 9;
    /// The client has to choose extended headers, or has chosen them already.
    pub const ERR_EXT_HEADER_REQD: u32 = ERROR | 10;
}

/// Kinds of information on an export.
pub mod info {
    /// Size and transmission flags; always sent.
    pub const EXPORT: u16 = 0;
    /// The name of the export.
    pub const NAME: u16 = 1;
    /// Its description, for people.
    pub const DESCRIPTION: u16 = 2;
    /// Its block sizes.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Flags of an export.
pub mod transmission_flag {
    /// Always set.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// Writes fail.
    pub const READ_ONLY: u16 = 1 << 1;
    /// `NBD_CMD_FLUSH` is possible.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// `NBD_CMD_FLAG_FUA` is possible.
    pub const SEND_FUA: u16 = 1 << 3;
    /// The disk rotates.
    pub const ROTATIONAL: u16 = 1 << 4;
    /// `NBD_CMD_TRIM` is possible.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// `NBD_CMD_WRITE_ZEROES` is possible.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// `NBD_CMD_FLAG_DF` is possible.
    pub const SEND_DF: u16 = 1 << 7;
    /// Flushes and FUA hold for all connections.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// `NBD_CMD_RESIZE` is possible.
    pub const SEND_RESIZE: u16 = 1 << 9;
    /// `NBD_CMD_CACHE` is possible.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// `NBD_CMD_FLAG_FAST_ZERO` is possible.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
    /// `NBD_CMD_BLOCK_STATUS` may have a payload.
    pub const BLOCK_STATUS_PAYLOAD: u16 = 1 << 12;
}

/// The metadata context of allocated and zero blocks.
pub const BASE_ALLOCATION: &str = "base:allocation";

/// Begins the metadata context of a dirty bitmap; its name follows.
pub const QEMU_DIRTY_BITMAP: &str = "qemu:dirty-bitmap:";

/// The flag of [`QEMU_DIRTY_BITMAP`] for ranges that may have changed.
pub const STATE_DIRTY: u32 = 1 << 0;

/// The metadata context that has the layer of a chain of images which a range comes from: 0 for none, 1 for the export itself.
pub const QEMU_ALLOCATION_DEPTH: &str = "qemu:allocation-depth";

/// Flags of [`BASE_ALLOCATION`].
pub mod allocation_state {
    /// The range is not allocated.
    pub const HOLE: u32 = 1 << 0;
    /// The range reads as zeroes.
    pub const ZERO: u32 = 1 << 1;
}
