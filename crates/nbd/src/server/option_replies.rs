//! Replies to options of the handshake: the description of an export, and errors.

use super::export::{ExportDescription, ExportDirectory};
use super::option_data::InfoRequest;
use crate::wire::{
    BlockSizeInfo, MAX_PAYLOAD_BYTES, OPTION_REPLY_MAGIC, OptionReplyHeader, info, option_reply,
};

pub(super) const TLS_REQUIRED: &str = "this server requires TLS: begin with NBD_OPT_STARTTLS";

/// Refuses an option before TLS.
pub(super) fn reply_tls_required(out: &mut Vec<u8>, option: u32) {
    reply_error(out, option, option_reply::ERR_TLS_REQD, TLS_REQUIRED);
}

pub(super) const NO_SUCH_EXPORT: &str = "there is no export of this name";

/// Replies the pieces of information on an export that `NBD_OPT_INFO` or `NBD_OPT_GO` asks for, except size and flags.
pub(super) fn describe_export(
    option: u32,
    data: &[u8],
    exports: &dyn ExportDirectory,
    out: &mut Vec<u8>,
) -> Result<ExportDescription, (u32, &'static str)> {
    let request = InfoRequest::parse(data).map_err(|text| (option_reply::ERR_INVALID, text))?;
    let export = exports.find(request.name);
    let export = export.ok_or((option_reply::ERR_UNKNOWN, NO_SUCH_EXPORT))?;
    for (info, text) in [
        (info::NAME, &export.name),
        (info::DESCRIPTION, &export.description),
    ] {
        if request.asks_for(info) && !text.is_empty() {
            let data = [&info.to_be_bytes()[..], text.as_bytes()].concat();
            reply(out, option, option_reply::INFO, &data);
        }
    }
    let block_sizes = BlockSizeInfo {
        info: info::BLOCK_SIZE,
        minimum: export.block_sizes.minimum,
        preferred: export.block_sizes.preferred,
        maximum: MAX_PAYLOAD_BYTES,
    };
    reply(out, option, option_reply::INFO, &block_sizes.encode());
    Ok(export)
}

/// The data of `NBD_REP_SERVER`.
pub(super) fn list_entry(export: &ExportDescription) -> Vec<u8> {
    #[allow(clippy::cast_possible_truncation, reason = "at most 4096 bytes")]
    let name_len = export.name.len() as u32;
    let (name, description) = (export.name.as_bytes(), export.description.as_bytes());
    [&name_len.to_be_bytes(), name, description].concat()
}

/// Appends a reply to an option.
pub(super) fn reply(out: &mut Vec<u8>, option: u32, reply: u32, data: &[u8]) {
    #[allow(clippy::cast_possible_truncation, reason = "two strings at most")]
    let header = OptionReplyHeader {
        magic: OPTION_REPLY_MAGIC,
        option,
        reply,
        length: data.len() as u32,
    };
    out.extend_from_slice(&header.encode());
    out.extend_from_slice(data);
}

/// Appends an error with its text.
pub(super) fn reply_error(out: &mut Vec<u8>, option: u32, error: u32, text: &str) {
    reply(out, option, error, text.as_bytes());
}
