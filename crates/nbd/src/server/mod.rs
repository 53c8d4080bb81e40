//! The server's side of a connection: the handshake, then requests and their replies.

mod block_status;
mod contexts;
mod export;
mod handshake;
mod option_data;
mod option_replies;
mod reply;
mod request;

pub use block_status::BlockStatusList;
pub use contexts::ChosenContext;
pub use export::{BlockSizes, ExportDescription, ExportDirectory, ExportNumber};
pub use handshake::{Handshake, HandshakeError, HandshakeStep, MAX_OPTIONS_PER_CALL, Negotiated};
pub use reply::ReplyHeader;
pub use request::{IncomingRequest, Operation, ProtocolError, Refusal, RequestKind};

/// The form of requests and replies that was negotiated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplyStyle {
    /// Compact requests, simple replies.
    #[default]
    Simple,
    /// Compact requests, structured replies.
    Structured,
    /// Extended headers both ways.
    Extended,
}

/// The parameters of a connection in the transmission phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transmission {
    /// The form of requests and replies.
    pub style: ReplyStyle,
    /// Flags of the export that the client knows: [`transmission_flag`](crate::wire::transmission_flag).
    pub flags: u16,
    /// Offsets and lengths are multiples of this.
    pub min_block_size: u32,
    /// The metadata contexts that the client has chosen.
    pub contexts: Vec<ChosenContext>,
}

impl Transmission {
    /// Whether the client knows this [flag](crate::wire::transmission_flag).
    #[inline]
    #[must_use]
    pub fn has_flag(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}
