//! The handshake (fixed newstyle negotiation) as a state machine: bytes of the client in, bytes for it out, until the client has chosen an
//! export or the connection ends.
//!
//! All memory is bounded: an option has at most [`MAX_OPTION_BYTES`] of data, and no option is handled while much of the output is unsent.
//! The work of a call is bounded too: it handles at most [`MAX_OPTIONS_PER_CALL`] options, and none once the output has
//! [`FULL_OUTPUT_BYTES`]. The last option may exceed that by one list of all exports.

use super::contexts::ChosenContext;
use super::export::{ExportDescription, ExportDirectory, ExportNumber};
use super::option_data::{ContextQueries, parse_name};
use super::option_replies::{
    NO_SUCH_EXPORT, TLS_REQUIRED, describe_export, list_entry, reply, reply_error,
    reply_tls_required,
};
use super::{ReplyStyle, Transmission, contexts};
use crate::wire::{
    EXPORT_NAME_ZEROES, ExportInfo, ExportNameReply, Greeting, NBD_MAGIC, OPTION_MAGIC,
    OptionHeader, client_flag, handshake_flag, info, option, option_reply, transmission_flag,
};

/// Most bytes of an option's data. More is skipped and refused.
const MAX_OPTION_BYTES: u32 = 64 << 10;
/// Output above which no further option is handled.
const FULL_OUTPUT_BYTES: usize = 64 << 10;
/// Most options that are handled in one call of [`Handshake::advance`]: a client may send them without end.
pub const MAX_OPTIONS_PER_CALL: usize = 16;

/// Why a connection ends in the handshake: the client has violated the protocol, or has not got what it wanted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// The client's flags.
    #[error("the client has set unknown flags: {0:#x}")]
    UnknownFlags(u32),
    /// An option begins with other bytes.
    #[error("an option begins with {0:#018x}, not with IHAVEOPT: the client does not speak NBD")]
    Magic(u64),
    /// A client without fixed newstyle may only choose an export.
    #[error("option {0} of a client without fixed newstyle")]
    OptionWithoutFixedNewstyle(u32),
    /// More than `NBD_OPT_STARTTLS` has come before its reply: what was sent unencrypted must not count as encrypted.
    #[error("the client has sent more after NBD_OPT_STARTTLS without waiting for its reply")]
    DataBeforeTls,
    /// `NBD_OPT_EXPORT_NAME` cannot be answered by an error.
    #[error("NBD_OPT_EXPORT_NAME: {0}")]
    ExportName(String),
}

/// What follows after the bytes so far.
#[derive(Debug, PartialEq, Eq)]
pub enum HandshakeStep {
    /// Without output, more bytes are needed. Otherwise the output is to be sent first; whole options may be left in the bytes at hand.
    Continue,
    /// The client has chosen an export: once the output is sent, the transmission phase begins.
    Transmission(Box<Negotiated>),
    /// The client begins TLS: once the output is sent, a TLS handshake follows, and then [`Handshake::set_encrypted`].
    StartTls,
    /// The client ends the session: once the output is sent, the connection is closed.
    End,
}

/// Encryption of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Encryption {
    /// The server has no certificate.
    #[default]
    Unavailable,
    /// The client has to begin TLS before anything else.
    Required,
    /// All that follows is encrypted.
    Active,
}

/// The result of a successful handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// The number of the export: another one may have its name by now.
    pub export_number: ExportNumber,
    /// Its size as the client knows it.
    pub size: u64,
    /// Parameters of the connection.
    pub transmission: Transmission,
}

/// The state of a handshake.
#[derive(Debug, Default)]
pub struct Handshake {
    state: State,
    has_no_zeroes: bool,
    is_fixed_newstyle: bool,
    style: ReplyStyle,
    encryption: Encryption,
    /// The contexts of the last `NBD_OPT_SET_META_CONTEXT`, and its export.
    contexts: Option<(String, Vec<ChosenContext>)>,
}

/// What comes next from the client.
#[derive(Clone, Copy, Debug, Default)]
enum State {
    #[default]
    ClientFlags,
    Option,
    OptionData(OptionHeader),
    /// So many bytes of an option that is too large; a reply follows.
    SkippedData {
        option: u32,
        left: u32,
    },
}

impl Handshake {
    /// A handshake in which the client has to begin TLS first.
    #[must_use]
    pub fn requiring_tls() -> Self {
        Handshake {
            encryption: Encryption::Required,
            ..Handshake::default()
        }
    }

    /// Continues after the TLS handshake: what follows is encrypted.
    pub fn set_encrypted(&mut self) {
        self.encryption = Encryption::Active;
    }

    /// The first bytes that a server sends.
    #[must_use]
    pub fn greeting() -> [u8; Greeting::BYTES] {
        let greeting = Greeting {
            magic: NBD_MAGIC,
            option_magic: OPTION_MAGIC,
            flags: handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES,
        };
        greeting.encode()
    }

    /// Handles the bytes of the client that were not consumed yet, up to the limits of a call, and appends replies to `out`. Returns how
    /// many bytes were consumed, and what follows. After [`HandshakeStep::Transmission`] and [`HandshakeStep::End`] it is not called
    /// again.
    ///
    /// # Errors
    /// [`HandshakeError`]: the connection ends.
    pub fn advance(
        &mut self,
        input: &[u8],
        exports: &dyn ExportDirectory,
        out: &mut Vec<u8>,
    ) -> Result<(usize, HandshakeStep), HandshakeError> {
        let mut rest = input;
        let mut handled = 0;
        while handled < MAX_OPTIONS_PER_CALL && out.len() < FULL_OUTPUT_BYTES {
            let step = match self.state {
                State::ClientFlags => {
                    let Some((flags, after)) = rest.split_first_chunk() else {
                        break;
                    };
                    rest = after;
                    self.set_client_flags(u32::from_be_bytes(*flags))?;
                    HandshakeStep::Continue
                }
                State::Option => {
                    let Some(header) = OptionHeader::decode_first(rest) else {
                        break;
                    };
                    rest = &rest[OptionHeader::BYTES..];
                    self.begin_option(header)?;
                    HandshakeStep::Continue
                }
                State::OptionData(header) => {
                    let Some((data, after)) = rest.split_at_checked(header.length as usize) else {
                        break;
                    };
                    rest = after;
                    self.state = State::Option;
                    handled += 1;
                    self.handle_option(header.option, data, exports, out)?
                }
                State::SkippedData { option, left: 0 } => {
                    self.state = State::Option;
                    handled += 1;
                    match self.encryption {
                        Encryption::Required => reply_tls_required(out, option),
                        Encryption::Unavailable | Encryption::Active => {
                            let text = "the option is too large";
                            reply_error(out, option, option_reply::ERR_TOO_BIG, text);
                        }
                    }
                    HandshakeStep::Continue
                }
                State::SkippedData { option, left } => {
                    let skipped = rest.len().min(left as usize);
                    if skipped == 0 {
                        break;
                    }
                    rest = &rest[skipped..];
                    #[allow(clippy::cast_possible_truncation, reason = "at most `left`")]
                    let left = left - skipped as u32;
                    self.state = State::SkippedData { option, left };
                    HandshakeStep::Continue
                }
            };
            if step == HandshakeStep::StartTls && !rest.is_empty() {
                return Err(HandshakeError::DataBeforeTls);
            }
            if step != HandshakeStep::Continue {
                return Ok((input.len() - rest.len(), step));
            }
        }
        Ok((input.len() - rest.len(), HandshakeStep::Continue))
    }

    fn set_client_flags(&mut self, flags: u32) -> Result<(), HandshakeError> {
        if flags & !(client_flag::FIXED_NEWSTYLE | client_flag::NO_ZEROES) != 0 {
            return Err(HandshakeError::UnknownFlags(flags));
        }
        self.is_fixed_newstyle = flags & client_flag::FIXED_NEWSTYLE != 0;
        self.has_no_zeroes = flags & client_flag::NO_ZEROES != 0;
        self.state = State::Option;
        Ok(())
    }

    fn begin_option(&mut self, header: OptionHeader) -> Result<(), HandshakeError> {
        if header.magic != OPTION_MAGIC {
            return Err(HandshakeError::Magic(header.magic));
        }
        if !self.is_fixed_newstyle && header.option != option::EXPORT_NAME {
            return Err(HandshakeError::OptionWithoutFixedNewstyle(header.option));
        }
        self.state = if header.length <= MAX_OPTION_BYTES {
            State::OptionData(header)
        } else if header.option == option::EXPORT_NAME {
            return Err(HandshakeError::ExportName("the name is too long".into()));
        } else {
            State::SkippedData {
                option: header.option,
                left: header.length,
            }
        };
        Ok(())
    }

    /// Handles a whole option.
    fn handle_option(
        &mut self,
        option: u32,
        data: &[u8],
        exports: &dyn ExportDirectory,
        out: &mut Vec<u8>,
    ) -> Result<HandshakeStep, HandshakeError> {
        let takes_no_data = matches!(
            option,
            option::LIST | option::STARTTLS | option::STRUCTURED_REPLY | option::EXTENDED_HEADERS
        );
        if takes_no_data && !data.is_empty() {
            let text = "this option has no data";
            reply_error(out, option, option_reply::ERR_INVALID, text);
            return Ok(HandshakeStep::Continue);
        }
        let may_precede_tls = matches!(option, option::STARTTLS | option::ABORT);
        if self.encryption == Encryption::Required && !may_precede_tls {
            if option == option::EXPORT_NAME {
                return Err(HandshakeError::ExportName(TLS_REQUIRED.into()));
            }
            reply_tls_required(out, option);
            return Ok(HandshakeStep::Continue);
        }
        match option {
            option::EXPORT_NAME => return self.enter_by_export_name(data, exports, out),
            option::ABORT => {
                reply(out, option, option_reply::ACK, &[]);
                return Ok(HandshakeStep::End);
            }
            option::LIST => {
                for export in exports.list() {
                    reply(out, option, option_reply::SERVER, &list_entry(&export));
                }
                reply(out, option, option_reply::ACK, &[]);
            }
            option::STARTTLS => match self.encryption {
                Encryption::Required => {
                    reply(out, option, option_reply::ACK, &[]);
                    return Ok(HandshakeStep::StartTls);
                }
                Encryption::Unavailable => {
                    let text = "TLS is not configured";
                    reply_error(out, option, option_reply::ERR_POLICY, text);
                }
                Encryption::Active => {
                    let text = "TLS has begun already";
                    reply_error(out, option, option_reply::ERR_INVALID, text);
                }
            },
            option::INFO | option::GO => match describe_export(option, data, exports, out) {
                Err((error, text)) => reply_error(out, option, error, text),
                Ok(export) => {
                    let flags = export.flags | self.additional_flags();
                    let export_info = ExportInfo {
                        info: info::EXPORT,
                        size: export.size,
                        flags,
                    };
                    reply(out, option, option_reply::INFO, &export_info.encode());
                    reply(out, option, option_reply::ACK, &[]);
                    if option == option::GO {
                        return Ok(self.enter(export));
                    }
                }
            },
            option::STRUCTURED_REPLY if self.style == ReplyStyle::Extended => {
                let text = "extended headers are in use";
                reply_error(out, option, option_reply::ERR_EXT_HEADER_REQD, text);
            }
            option::STRUCTURED_REPLY => {
                self.style = ReplyStyle::Structured;
                reply(out, option, option_reply::ACK, &[]);
            }
            option::EXTENDED_HEADERS => {
                self.style = ReplyStyle::Extended;
                reply(out, option, option_reply::ACK, &[]);
            }
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                match self.query_contexts(option, data, exports, out) {
                    Err((error, text)) => reply_error(out, option, error, text),
                    Ok(()) => reply(out, option, option_reply::ACK, &[]),
                }
            }
            _ => {
                let text = "this option is not supported";
                reply_error(out, option, option_reply::ERR_UNSUP, text);
            }
        }
        Ok(HandshakeStep::Continue)
    }

    /// `NBD_OPT_EXPORT_NAME`, which an old client uses.
    fn enter_by_export_name(
        &self,
        data: &[u8],
        exports: &dyn ExportDirectory,
        out: &mut Vec<u8>,
    ) -> Result<HandshakeStep, HandshakeError> {
        if self.style == ReplyStyle::Extended {
            let text = "extended headers are in use, which need NBD_OPT_GO";
            return Err(HandshakeError::ExportName(text.into()));
        }
        let name = parse_name(data).map_err(|text| HandshakeError::ExportName(text.into()))?;
        let export = exports
            .find(name)
            .ok_or_else(|| HandshakeError::ExportName(format!("there is no export '{name}'")))?;
        let flags = export.flags | self.additional_flags();
        let size = export.size;
        out.extend_from_slice(&ExportNameReply { size, flags }.encode());
        if !self.has_no_zeroes {
            out.extend_from_slice(&[0; EXPORT_NAME_ZEROES]);
        }
        Ok(self.enter(export))
    }

    /// Flags that depend on what the client has chosen.
    fn additional_flags(&self) -> u16 {
        match self.style {
            ReplyStyle::Simple => 0,
            ReplyStyle::Structured | ReplyStyle::Extended => transmission_flag::SEND_DF,
        }
    }

    /// The transmission phase of an export begins.
    fn enter(&self, export: ExportDescription) -> HandshakeStep {
        let contexts = match &self.contexts {
            Some((name, contexts)) if *name == export.name => contexts.clone(),
            _ => Vec::new(),
        };
        HandshakeStep::Transmission(Box::new(Negotiated {
            size: export.size,
            transmission: Transmission {
                style: self.style,
                flags: export.flags | self.additional_flags(),
                min_block_size: export.block_sizes.minimum,
                contexts,
            },
            export_number: export.number,
        }))
    }

    /// `NBD_OPT_LIST_META_CONTEXT` and `NBD_OPT_SET_META_CONTEXT`, without the final acknowledgement.
    fn query_contexts(
        &mut self,
        option: u32,
        data: &[u8],
        exports: &dyn ExportDirectory,
        out: &mut Vec<u8>,
    ) -> Result<(), (u32, &'static str)> {
        let sets = option == option::SET_META_CONTEXT;
        if sets {
            self.contexts = None;
        }
        if self.style == ReplyStyle::Simple {
            let text = "choose structured replies or extended headers first";
            return Err((option_reply::ERR_INVALID, text));
        }
        let asked = ContextQueries::parse(data);
        let asked = asked.map_err(|text| (option_reply::ERR_INVALID, text))?;
        let export = exports.find(asked.export);
        let export = export.ok_or((option_reply::ERR_UNKNOWN, NO_SUCH_EXPORT))?;
        let is_named = |context: &str| match sets {
            true => asked
                .queries
                .iter()
                .any(|query| contexts::selects(query, context)),
            false => {
                asked.queries.is_empty()
                    || asked
                        .queries
                        .iter()
                        .any(|query| contexts::lists(query, context))
            }
        };
        let mut chosen = Vec::new();
        for (number, context) in (0u32..).zip(&export.contexts) {
            if is_named(context) {
                // The number is reserved in a list.
                let shown = if sets { number } else { 0 };
                let data = [&shown.to_be_bytes()[..], context.as_bytes()].concat();
                reply(out, option, option_reply::META_CONTEXT, &data);
                let name = context.clone();
                chosen.push(ChosenContext { number, name });
            }
        }
        if sets {
            self.contexts = Some((export.name, chosen));
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "handshake_tests.rs"]
mod tests;
