//! The client's handshake: chooses extended headers or structured replies, and enters transmission of one export.
//!
//! It blocks on a stream whose owner sets deadlines, and reads nothing of what follows.

use std::io::{self, Read, Write};

use crate::wire::{
    BlockSizeInfo, EXPORT_NAME_ZEROES, ExportInfo, ExportNameReply, Greeting, MAX_PAYLOAD_BYTES,
    MAX_STRING_BYTES, NBD_MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC, OptionHeader, OptionReplyHeader,
    client_flag, handshake_flag, info, option, option_reply, transmission_flag,
};

/// `cliserv_magic`: follows [`NBD_MAGIC`] in the greeting of an oldstyle server.
const OLDSTYLE_MAGIC: u64 = 0x0000_4202_8186_1253;

/// Most bytes of the data of a reply to an option: a string, and what stands before it.
const MAX_REPLY_BYTES: u32 = MAX_STRING_BYTES + 64;

/// Most replies to one option: a server with more information than that is not answering.
const MAX_REPLIES: usize = 64;

/// The form of a server's replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyStyle {
    /// Simple replies.
    Simple,
    /// Chunks; simple replies to commands that read nothing.
    Structured,
    /// Chunks with extended headers, to requests with such headers.
    Extended,
}

/// Block sizes of an export, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSizes {
    /// Offsets and lengths are multiples of this, a power of two.
    pub minimum: u32,
    /// They are best multiples of this, a power of two.
    pub preferred: u32,
    /// Most bytes of a read or write.
    pub maximum: u32,
}

impl Default for BlockSizes {
    /// The sizes of a server that reports none.
    fn default() -> Self {
        BlockSizes {
            minimum: 1,
            preferred: 4096,
            maximum: MAX_PAYLOAD_BYTES,
        }
    }
}

/// The result of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// Bytes of the export.
    pub size: u64,
    /// [`transmission_flag`]s.
    pub flags: u16,
    /// Block sizes, within what the protocol allows.
    pub blocks: BlockSizes,
    /// The form of replies.
    pub replies: ReplyStyle,
}

impl Negotiated {
    /// Whether the export has a [`transmission_flag`].
    #[must_use]
    pub fn has(&self, flag: u16) -> bool {
        self.flags & transmission_flag::HAS_FLAGS != 0 && self.flags & flag != 0
    }
}

/// Failure of a handshake.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The connection broke, or the server did not answer in time.
    #[error("{}", describe_io_error(.0))]
    Io(#[from] io::Error),
    /// The connection broke when the server had to accept the client's certificate: with TLS 1.3 it does that last.
    #[error(
        "the server closed the connection after the TLS handshake ({0}): does it require a certificate of the client \
         (client-cert.pem and client-key.pem), and accept this one?"
    )]
    ClosedAfterTls(io::Error),
    /// The server speaks something else.
    #[error("the server violates the NBD protocol: {0}")]
    Protocol(String),
    /// A server of a kind that is not supported.
    #[error("{0}")]
    Unsupported(&'static str),
    /// The server refuses the export.
    #[error("the server refuses the export: {reason}{}", text_suffix(.text))]
    Refused {
        /// The meaning of its answer.
        reason: &'static str,
        /// Its own words; may be empty.
        text: String,
    },
}

impl HandshakeError {
    /// The error after a TLS handshake.
    pub(super) fn after_tls(self) -> Self {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
        match self {
            HandshakeError::Io(error)
                if matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof) =>
            {
                HandshakeError::ClosedAfterTls(error)
            }
            other => other,
        }
    }
}

/// The text of an error of the connection.
fn describe_io_error(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            "the server did not answer the handshake in time".to_owned()
        }
        io::ErrorKind::UnexpectedEof => {
            "the server closed the connection in the handshake".to_owned()
        }
        // TLS says why.
        io::ErrorKind::InvalidData => error.to_string(),
        _ => format!("the connection broke in the handshake: {error}"),
    }
}

/// The server's words, after a colon.
fn text_suffix(text: &str) -> String {
    match text {
        "" => String::new(),
        text => format!(" (\"{text}\")"),
    }
}

fn protocol_error(text: impl Into<String>) -> HandshakeError {
    HandshakeError::Protocol(text.into())
}

/// A handshake after the greetings: options follow.
pub(super) struct Greeted {
    is_fixed_newstyle: bool,
    omits_zeroes: bool,
}

impl Greeted {
    /// Begins a handshake.
    pub fn begin(stream: &mut (impl Read + Write)) -> Result<Self, HandshakeError> {
        let greeting = Greeting::decode(&read_array(stream)?);
        if greeting.magic != NBD_MAGIC {
            let text = format!("its first bytes are {:#018x}, not NBDMAGIC", greeting.magic);
            return Err(protocol_error(text));
        }
        match greeting.option_magic {
            OPTION_MAGIC => {}
            OLDSTYLE_MAGIC => {
                return Err(HandshakeError::Unsupported(
                    "the server speaks the oldstyle handshake only, which is not supported",
                ));
            }
            other => {
                let text = format!("{other:#018x} follows NBDMAGIC, not IHAVEOPT");
                return Err(protocol_error(text));
            }
        }
        let is_fixed_newstyle = greeting.flags & handshake_flag::FIXED_NEWSTYLE != 0;
        let mut flags = 0;
        if is_fixed_newstyle {
            flags |= client_flag::FIXED_NEWSTYLE;
        }
        let omits_zeroes = greeting.flags & handshake_flag::NO_ZEROES != 0;
        if omits_zeroes {
            flags |= client_flag::NO_ZEROES;
        }
        stream.write_all(&flags.to_be_bytes())?;
        Ok(Greeted {
            is_fixed_newstyle,
            omits_zeroes,
        })
    }

    /// Asks for TLS, whose handshake follows. A server without it is not used.
    pub fn request_tls(&self, stream: &mut (impl Read + Write)) -> Result<(), HandshakeError> {
        let refused = HandshakeError::Unsupported(
            "the server does not offer TLS, which tls-creds requires: give it a certificate, or leave out tls-creds",
        );
        match self.is_fixed_newstyle && choose(stream, option::STARTTLS)? {
            true => Ok(()),
            false => Err(refused),
        }
    }

    /// Enters transmission of an export.
    ///
    /// # Errors
    /// [`HandshakeError`]; the stream is of no use then.
    pub fn enter(
        &self,
        stream: &mut (impl Read + Write),
        export: &str,
    ) -> Result<Negotiated, HandshakeError> {
        let mut replies = ReplyStyle::Simple;
        if self.is_fixed_newstyle {
            if choose(stream, option::EXTENDED_HEADERS)? {
                replies = ReplyStyle::Extended;
            } else if choose(stream, option::STRUCTURED_REPLY)? {
                replies = ReplyStyle::Structured;
            }
            if let Some(negotiated) = go(stream, export, replies)? {
                return Ok(negotiated);
            }
        }
        enter_by_export_name(stream, export, replies, self.omits_zeroes)
    }
}

/// Whether the server accepts an option without data.
fn choose(stream: &mut (impl Read + Write), option: u32) -> Result<bool, HandshakeError> {
    send_option(stream, option, &[])?;
    let (kind, data) = read_reply(stream, option)?;
    match kind {
        option_reply::ACK if data.is_empty() => Ok(true),
        option_reply::ERR_TLS_REQD => Err(refusal(kind, &data)),
        _ if kind & option_reply::ERROR != 0 => Ok(false),
        _ => Err(protocol_error(format!(
            "reply {kind} with {} bytes to option {option}",
            data.len()
        ))),
    }
}

/// Enters transmission by `NBD_OPT_GO`. `None`: the server does not have that option.
fn go(
    stream: &mut (impl Read + Write),
    export: &str,
    replies: ReplyStyle,
) -> Result<Option<Negotiated>, HandshakeError> {
    let name_len = u32::try_from(export.len()).unwrap_or(u32::MAX);
    let mut data = name_len.to_be_bytes().to_vec();
    data.extend_from_slice(export.as_bytes());
    data.extend_from_slice(&1_u16.to_be_bytes());
    data.extend_from_slice(&info::BLOCK_SIZE.to_be_bytes());
    send_option(stream, option::GO, &data)?;
    let (mut found, mut blocks) = (None, BlockSizes::default());
    for _ in 0..MAX_REPLIES {
        let (kind, data) = read_reply(stream, option::GO)?;
        match kind {
            option_reply::ACK => {
                let ExportInfo { size, flags, .. } = found
                    .ok_or_else(|| protocol_error("the export was entered without its size"))?;
                return Ok(Some(Negotiated {
                    size,
                    flags,
                    blocks,
                    replies,
                }));
            }
            option_reply::INFO => match data.first_chunk().copied().map(u16::from_be_bytes) {
                Some(info::EXPORT) => found = Some(ExportInfo::decode(&exact(&data)?)),
                Some(info::BLOCK_SIZE) => {
                    blocks = check_block_sizes(&BlockSizeInfo::decode(&exact(&data)?))?;
                }
                Some(_) => {}
                None => return Err(protocol_error("information without a type")),
            },
            option_reply::ERR_UNSUP => return Ok(None),
            _ if kind & option_reply::ERROR != 0 => return Err(refusal(kind, &data)),
            _ => return Err(protocol_error(format!("reply {kind} to NBD_OPT_GO"))),
        }
    }
    Err(protocol_error("endless information on an export"))
}

/// The bytes of a struct, which the data of a reply has to be.
fn exact<const N: usize>(data: &[u8]) -> Result<[u8; N], HandshakeError> {
    data.try_into().map_err(|_| {
        protocol_error(format!(
            "information of {} bytes instead of {N}",
            data.len()
        ))
    })
}

/// Checks block sizes against the rules of the protocol.
fn check_block_sizes(found: &BlockSizeInfo) -> Result<BlockSizes, HandshakeError> {
    let BlockSizeInfo {
        minimum,
        preferred,
        maximum,
        ..
    } = *found;
    let is_valid = minimum.is_power_of_two()
        && minimum <= 1 << 16
        && preferred.is_power_of_two()
        && preferred >= minimum
        && maximum >= minimum;
    if !is_valid {
        return Err(protocol_error(format!(
            "block sizes {minimum}, {preferred}, {maximum}"
        )));
    }
    Ok(BlockSizes {
        minimum,
        preferred,
        maximum: maximum.min(MAX_PAYLOAD_BYTES) / minimum * minimum,
    })
}

/// Enters transmission by `NBD_OPT_EXPORT_NAME`, which a server answers by closing the connection if it has no such export.
fn enter_by_export_name(
    stream: &mut (impl Read + Write),
    export: &str,
    replies: ReplyStyle,
    omits_zeroes: bool,
) -> Result<Negotiated, HandshakeError> {
    send_option(stream, option::EXPORT_NAME, export.as_bytes())?;
    let reply = match read_array(stream) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            return Err(HandshakeError::Refused {
                reason: "it closed the connection, probably since there is no such export",
                text: String::new(),
            });
        }
        reply => ExportNameReply::decode(&reply?),
    };
    if !omits_zeroes {
        read_array::<EXPORT_NAME_ZEROES>(stream)?;
    }
    Ok(Negotiated {
        size: reply.size,
        flags: reply.flags,
        blocks: BlockSizes::default(),
        replies,
    })
}

/// Sends an option.
fn send_option(stream: &mut impl Write, option: u32, data: &[u8]) -> io::Result<()> {
    let header = OptionHeader {
        magic: OPTION_MAGIC,
        option,
        length: u32::try_from(data.len()).unwrap_or(u32::MAX),
    };
    let mut message = header.encode().to_vec();
    message.extend_from_slice(data);
    stream.write_all(&message)
}

/// Reads a reply to an option: its kind, and its data.
fn read_reply(stream: &mut impl Read, option: u32) -> Result<(u32, Vec<u8>), HandshakeError> {
    let header = OptionReplyHeader::decode(&read_array(stream)?);
    if header.magic != OPTION_REPLY_MAGIC {
        let text = format!("a reply to an option begins with {:#018x}", header.magic);
        return Err(protocol_error(text));
    }
    if header.option != option {
        let text = format!("a reply to option {}, not {option}", header.option);
        return Err(protocol_error(text));
    }
    if header.length > MAX_REPLY_BYTES {
        let text = format!("a reply of {} bytes to an option", header.length);
        return Err(protocol_error(text));
    }
    let mut data = vec![0; header.length as usize];
    stream.read_exact(&mut data)?;
    Ok((header.reply, data))
}

fn read_array<const N: usize>(stream: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// The error for a server's refusal, with its words: a server may send anything, so control characters are replaced.
fn refusal(kind: u32, data: &[u8]) -> HandshakeError {
    let reason = match kind {
        option_reply::ERR_UNKNOWN => "there is no such export",
        option_reply::ERR_POLICY => "forbidden by its settings",
        option_reply::ERR_TLS_REQD => "it requires TLS: set tls-creds",
        option_reply::ERR_SHUTDOWN => "it is ending",
        option_reply::ERR_BLOCK_SIZE_REQD => "it requires block sizes that this client lacks",
        option_reply::ERR_EXT_HEADER_REQD => "it requires extended headers and does not offer them",
        option_reply::ERR_TOO_BIG => "the name is too long for it",
        _ => "it does not say why",
    };
    let text = String::from_utf8_lossy(data);
    let text = text.chars().take(200);
    let text = text.map(|c| if c.is_control() { '?' } else { c }).collect();
    HandshakeError::Refused { reason, text }
}
