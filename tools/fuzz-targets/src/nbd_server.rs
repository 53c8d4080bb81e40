//! Bytes of a client to the NBD server's state machines: a handshake in pieces, then requests in the form that it has negotiated.
//!
//! Whatever the client sends, no more than the bytes at hand are consumed, replies have the lengths that they say, and a valid request
//! lies within its export.

use nbd::server::{
    BlockSizes, ExportDescription, ExportDirectory, ExportNumber, Handshake, HandshakeStep,
    Negotiated, RequestKind,
};
use nbd::wire::{NbdErrno, OPTION_REPLY_MAGIC, OptionReplyHeader, transmission_flag};

use crate::input::Input;

/// Most pieces in which bytes arrive.
const MOST_PIECES: usize = 64;

struct Exports;

impl ExportDirectory for Exports {
    fn list(&self) -> Vec<ExportDescription> {
        let export = |name: &str, size, minimum, read_only| ExportDescription {
            number: ExportNumber(0),
            name: name.to_owned(),
            description: "a disk".to_owned(),
            size,
            flags: transmission_flag::HAS_FLAGS | read_only,
            block_sizes: BlockSizes {
                minimum,
                preferred: 4096,
            },
            contexts: vec![
                "base:allocation".to_owned(),
                "qemu:dirty-bitmap:b".to_owned(),
            ],
        };
        vec![
            export("", 1 << 20, 1, 0),
            export("d", u64::MAX >> 1, 512, 0),
            export("r", 1 << 20, 4096, transmission_flag::READ_ONLY),
        ]
    }
}

/// Runs an input.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let Some((negotiated, mut received)) = negotiate(&mut input) else {
        return;
    };
    received.extend_from_slice(input.bytes(usize::MAX));
    check_requests(&negotiated, &received);
}

/// The handshake. Returns what was negotiated, and the bytes that were not consumed.
fn negotiate(input: &mut Input<'_>) -> Option<(Negotiated, Vec<u8>)> {
    let mut handshake = Handshake::default();
    let (mut received, mut sent) = (Vec::new(), Vec::new());
    for _ in 0..MOST_PIECES {
        let len = usize::from(input.byte());
        received.extend_from_slice(input.bytes(len));
        let old_style_reply = sent.len();
        let (consumed, step) = handshake.advance(&received, &Exports, &mut sent).ok()?;
        assert!(consumed <= received.len());
        received.drain(..consumed);
        match step {
            HandshakeStep::Continue => check_replies(&sent),
            // There is no certificate.
            HandshakeStep::StartTls | HandshakeStep::End => return None,
            HandshakeStep::Transmission(negotiated) => {
                assert!(sent.len() > old_style_reply);
                return Some((*negotiated, received));
            }
        }
        // The client reads.
        sent.clear();
        if input.is_empty() {
            break;
        }
    }
    None
}

/// Checks that replies to options are whole.
fn check_replies(mut sent: &[u8]) {
    while !sent.is_empty() {
        let header = OptionReplyHeader::decode_first(sent).expect("a whole header");
        assert_eq!(header.magic, OPTION_REPLY_MAGIC);
        sent = &sent[OptionReplyHeader::BYTES + header.length as usize..];
    }
}

/// Parses requests until one is incomplete or violates the protocol.
fn check_requests(negotiated: &Negotiated, mut received: &[u8]) {
    let Negotiated {
        size, transmission, ..
    } = negotiated;
    while let Ok(Some(request)) = transmission.parse_request(received, *size) {
        let consumed = transmission.request_header_bytes() + request.payload as usize;
        assert!(request.payload <= nbd::wire::MAX_PAYLOAD_BYTES);
        let (cookie, offset) = (request.cookie, request.offset);
        match request.kind {
            RequestKind::Valid { len, .. } => {
                let end = offset.checked_add(len).expect("a range");
                assert!(end <= *size);
                let mask = u64::from(transmission.min_block_size) - 1;
                assert_eq!((offset | len) & mask, 0);
                let _ = transmission.read_reply(cookie, offset, request.payload);
            }
            RequestKind::Refused(refusal) => {
                let text = refusal.text;
                let _ = transmission.error_reply(cookie, offset, NbdErrno::Inval, text);
            }
            RequestKind::Disconnect => return,
        }
        received = received.get(consumed..).unwrap_or_default();
    }
}
