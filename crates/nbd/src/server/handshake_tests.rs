//! Tests of the handshake against bytes as the specification defines them.

use proptest::prelude::*;

use super::*;
use crate::server::BlockSizes;
use crate::wire::{OPTION_REPLY_MAGIC, OptionReplyHeader};

struct Exports;

impl ExportDirectory for Exports {
    fn list(&self) -> Vec<ExportDescription> {
        vec![ExportDescription {
            name: "disk".into(),
            description: "a disk".into(),
            size: 0x0010_0000,
            flags: transmission_flag::HAS_FLAGS | transmission_flag::SEND_FLUSH,
            block_sizes: BlockSizes {
                minimum: 1,
                preferred: 4096,
            },
            contexts: vec!["base:allocation".into(), "qemu:dirty-bitmap:b".into()],
        }]
    }
}

/// A client that has sent its flags.
fn client(flags: u32) -> Handshake {
    let mut handshake = Handshake::default();
    let mut out = Vec::new();
    let result = handshake.advance(&flags.to_be_bytes(), &Exports, &mut out);
    assert_eq!(result, Ok((4, HandshakeStep::Continue)));
    assert!(out.is_empty());
    handshake
}

/// An option of a client.
fn option_bytes(option: u32, data: &[u8]) -> Vec<u8> {
    let len = u32::try_from(data.len()).unwrap();
    [
        b"IHAVEOPT",
        &option.to_be_bytes()[..],
        &len.to_be_bytes(),
        data,
    ]
    .concat()
}

/// Sends an option. Returns the step, and the replies as (kind, data).
fn send(
    handshake: &mut Handshake,
    option: u32,
    data: &[u8],
) -> (HandshakeStep, Vec<(u32, Vec<u8>)>) {
    let mut out = Vec::new();
    let bytes = option_bytes(option, data);
    let (consumed, step) = handshake.advance(&bytes, &Exports, &mut out).unwrap();
    assert_eq!(consumed, bytes.len());
    (step, replies(&out, option))
}

fn replies(mut out: &[u8], option: u32) -> Vec<(u32, Vec<u8>)> {
    let mut replies = Vec::new();
    while !out.is_empty() {
        let header = OptionReplyHeader::decode_first(out).unwrap();
        assert_eq!((header.magic, header.option), (OPTION_REPLY_MAGIC, option));
        let (data, rest) = out[OptionReplyHeader::BYTES..].split_at(header.length as usize);
        replies.push((header.reply, data.to_vec()));
        out = rest;
    }
    replies
}

fn kinds(replies: &[(u32, Vec<u8>)]) -> Vec<u32> {
    replies.iter().map(|(kind, _)| *kind).collect()
}

/// A name after its length, and what follows.
fn named(name: &str, rest: &[u8]) -> Vec<u8> {
    let len = u32::try_from(name.len()).unwrap();
    [&len.to_be_bytes()[..], name.as_bytes(), rest].concat()
}

#[test]
fn the_greeting_offers_fixed_newstyle_without_zeroes() {
    assert_eq!(&Handshake::greeting(), b"NBDMAGICIHAVEOPT\0\x03");
}

#[test]
fn go_describes_the_export_and_enters_transmission() {
    let mut handshake = client(3);
    let infos = [0, 2, 0, 1, 0, 3];
    let (step, replies) = send(&mut handshake, option::GO, &named("disk", &infos));
    let expected: Vec<(u32, Vec<u8>)> = vec![
        (3, b"\0\x01disk".to_vec()),
        (3, vec![0, 3, 0, 0, 0, 1, 0, 0, 0x10, 0, 2, 0, 0, 0]),
        (3, vec![0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 5]),
        (1, vec![]),
    ];
    assert_eq!(replies, expected);
    let HandshakeStep::Transmission(negotiated) = step else {
        panic!("{step:?}");
    };
    assert_eq!(negotiated.export, "disk");
    assert_eq!(negotiated.transmission.style, ReplyStyle::Simple);
}

#[test]
fn info_does_not_enter_transmission() {
    let mut handshake = client(3);
    let (step, replies) = send(&mut handshake, option::INFO, &named("disk", &[0, 1, 0, 2]));
    assert_eq!(step, HandshakeStep::Continue);
    assert_eq!(replies[0], (3, b"\0\x02a disk".to_vec()));
    assert_eq!(kinds(&replies), [3, 3, 3, 1]);
}

#[test]
fn an_unknown_export_is_refused_and_the_session_goes_on() {
    let mut handshake = client(3);
    for option in [option::GO, option::INFO] {
        let (step, replies) = send(&mut handshake, option, &named("other", &[0, 0]));
        assert_eq!(
            (step, kinds(&replies)),
            (HandshakeStep::Continue, vec![option_reply::ERR_UNKNOWN])
        );
    }
    let (step, _) = send(&mut handshake, option::GO, &named("disk", &[0, 0]));
    assert!(matches!(step, HandshakeStep::Transmission(_)));
}

#[test]
fn an_old_client_gets_zeroes_unless_it_declines_them() {
    for (flags, bytes) in [(1, 134), (3, 10), (0, 134)] {
        let mut handshake = client(flags);
        let mut out = Vec::new();
        let (_, step) = handshake
            .advance(
                &option_bytes(option::EXPORT_NAME, b"disk"),
                &Exports,
                &mut out,
            )
            .unwrap();
        assert!(matches!(step, HandshakeStep::Transmission(_)));
        assert_eq!(out.len(), bytes, "flags {flags}");
        assert_eq!(out[..10], [0, 0, 0, 0, 0, 0x10, 0, 0, 0, 5]);
    }
}

#[test]
fn options_without_data_refuse_data() {
    let mut handshake = client(3);
    for option in [
        option::LIST,
        option::STARTTLS,
        option::STRUCTURED_REPLY,
        option::EXTENDED_HEADERS,
    ] {
        let (_, replies) = send(&mut handshake, option, b"x");
        assert_eq!(
            kinds(&replies),
            [option_reply::ERR_INVALID],
            "option {option}"
        );
    }
    assert_eq!(handshake.style, ReplyStyle::Simple);
}

#[test]
fn exports_are_listed_with_their_descriptions() {
    let (_, replies) = send(&mut client(3), option::LIST, &[]);
    assert_eq!(replies[0], (2, b"\0\0\0\x04diska disk".to_vec()));
    assert_eq!(kinds(&replies), [2, 1]);
}

#[test]
fn contexts_need_structured_replies_and_are_kept_for_their_export() {
    let mut handshake = client(3);
    let query = named(
        "disk",
        &[&[0, 0, 0, 1][..], &named("base:allocation", &[])].concat(),
    );
    let (_, refused) = send(&mut handshake, option::SET_META_CONTEXT, &query);
    assert_eq!(kinds(&refused), [option_reply::ERR_INVALID]);

    send(&mut handshake, option::STRUCTURED_REPLY, &[]);
    let (_, replies) = send(&mut handshake, option::SET_META_CONTEXT, &query);
    assert_eq!(replies[0], (4, b"\0\0\0\0base:allocation".to_vec()));
    let (step, _) = send(&mut handshake, option::GO, &named("disk", &[0, 0]));
    let HandshakeStep::Transmission(negotiated) = step else {
        panic!("{step:?}");
    };
    let transmission = negotiated.transmission;
    let (number, name) = (0, "base:allocation".to_owned());
    assert_eq!(transmission.contexts, [ChosenContext { number, name }]);
    assert!(transmission.has_flag(transmission_flag::SEND_DF));
}

#[test]
fn a_namespace_lists_its_contexts() {
    let mut handshake = client(3);
    send(&mut handshake, option::EXTENDED_HEADERS, &[]);
    for (queries, found) in [
        (
            vec![],
            vec![
                &b"\0\0\0\0base:allocation"[..],
                b"\0\0\0\0qemu:dirty-bitmap:b",
            ],
        ),
        (vec!["qemu:"], vec![b"\0\0\0\0qemu:dirty-bitmap:b"]),
        (vec!["x:", "base:"], vec![b"\0\0\0\0base:allocation"]),
    ] {
        let count = u32::try_from(queries.len()).unwrap();
        let queries = queries.iter().flat_map(|query| named(query, &[]));
        let rest: Vec<u8> = count.to_be_bytes().into_iter().chain(queries).collect();
        let data = named("disk", &rest);
        let (_, replies) = send(&mut handshake, option::LIST_META_CONTEXT, &data);
        let contexts: Vec<_> = replies.iter().filter(|(kind, _)| *kind == 4).collect();
        let contexts: Vec<&[u8]> = contexts.iter().map(|(_, data)| &data[..]).collect();
        assert_eq!(contexts, found);
    }
}

#[test]
fn extended_headers_forbid_what_has_no_extended_form() {
    let mut handshake = client(3);
    send(&mut handshake, option::EXTENDED_HEADERS, &[]);
    let (_, replies) = send(&mut handshake, option::STRUCTURED_REPLY, &[]);
    assert_eq!(kinds(&replies), [option_reply::ERR_EXT_HEADER_REQD]);
    let old = option_bytes(option::EXPORT_NAME, b"disk");
    let result = handshake.advance(&old, &Exports, &mut Vec::new());
    assert!(matches!(result, Err(HandshakeError::ExportName(_))));
}

#[test]
fn tls_and_unknown_options_are_refused() {
    let mut handshake = client(3);
    let (_, replies) = send(&mut handshake, option::STARTTLS, &[]);
    assert_eq!(kinds(&replies), [option_reply::ERR_POLICY]);
    let (_, replies) = send(&mut handshake, 99, b"whatever");
    assert_eq!(kinds(&replies), [option_reply::ERR_UNSUP]);
    let (step, replies) = send(&mut handshake, option::ABORT, b"ignored");
    assert_eq!(
        (step, kinds(&replies)),
        (HandshakeStep::End, vec![option_reply::ACK])
    );
}

/// A client of a server that requires TLS.
fn client_before_tls() -> Handshake {
    let mut handshake = Handshake::requiring_tls();
    let flags = handshake.advance(&3u32.to_be_bytes(), &Exports, &mut Vec::new());
    assert_eq!(flags, Ok((4, HandshakeStep::Continue)));
    handshake
}

#[test]
fn nothing_but_tls_is_answered_where_it_is_required() {
    let mut handshake = client_before_tls();
    for option in (2..20).filter(|option| ![option::ABORT, option::STARTTLS].contains(option)) {
        let (step, replies) = send(&mut handshake, option, &[]);
        assert_eq!(step, HandshakeStep::Continue);
        assert_eq!(kinds(&replies), [option_reply::ERR_TLS_REQD], "{option}");
    }
    let large = vec![0; 70 << 10];
    let (_, replies) = send(&mut handshake, option::GO, &large);
    assert_eq!(kinds(&replies), [option_reply::ERR_TLS_REQD]);
    let by_name = option_bytes(option::EXPORT_NAME, b"disk");
    let result = handshake.advance(&by_name, &Exports, &mut Vec::new());
    assert!(matches!(result, Err(HandshakeError::ExportName(_))));
    let (step, _) = send(&mut client_before_tls(), option::ABORT, &[]);
    assert_eq!(step, HandshakeStep::End);
}

#[test]
fn options_are_answered_after_tls_which_begins_once() {
    let mut handshake = client_before_tls();
    let (step, replies) = send(&mut handshake, option::STARTTLS, &[]);
    assert_eq!(
        (step, kinds(&replies)),
        (HandshakeStep::StartTls, vec![option_reply::ACK])
    );
    handshake.set_encrypted();
    let (_, replies) = send(&mut handshake, option::STARTTLS, &[]);
    assert_eq!(kinds(&replies), [option_reply::ERR_INVALID]);
    let (_, replies) = send(&mut handshake, option::LIST, &[]);
    assert_eq!(kinds(&replies), [option_reply::SERVER, option_reply::ACK]);
}

#[test]
fn what_comes_unencrypted_with_the_request_for_tls_ends_the_connection() {
    let mut handshake = client_before_tls();
    let start_tls = option_bytes(option::STARTTLS, &[]);
    let list = option_bytes(option::LIST, &[]);
    let result = handshake.advance(&[start_tls, list].concat(), &Exports, &mut Vec::new());
    assert_eq!(result, Err(HandshakeError::DataBeforeTls));
}

#[test]
fn violations_end_the_connection() {
    let mut out = Vec::new();
    let flags = Handshake::default().advance(&[0, 0, 0, 4], &Exports, &mut out);
    assert_eq!(flags, Err(HandshakeError::UnknownFlags(4)));
    let magic = client(3).advance(b"GET / HTTP/1.1\r\n", &Exports, &mut out);
    assert!(matches!(magic, Err(HandshakeError::Magic(_))));
    let list = option_bytes(option::LIST, &[]);
    let not_fixed = client(0).advance(&list, &Exports, &mut out);
    assert_eq!(
        not_fixed,
        Err(HandshakeError::OptionWithoutFixedNewstyle(option::LIST))
    );
    assert!(out.is_empty());
}

#[test]
fn a_huge_option_is_skipped_without_memory_for_it() {
    let mut handshake = client(3);
    let header = OptionHeader {
        magic: OPTION_MAGIC,
        option: option::GO,
        length: u32::MAX,
    };
    let mut out = Vec::new();
    let consumed = handshake.advance(&header.encode(), &Exports, &mut out);
    assert_eq!(consumed, Ok((16, HandshakeStep::Continue)));
    let chunk = vec![0; 1 << 24];
    for _ in 0..255 {
        let consumed = handshake.advance(&chunk, &Exports, &mut out);
        assert_eq!(consumed, Ok((1 << 24, HandshakeStep::Continue)));
    }
    assert!(out.is_empty());
    handshake.advance(&chunk[1..], &Exports, &mut out).unwrap();
    let replies = replies(&out, option::GO);
    assert_eq!(kinds(&replies), [option_reply::ERR_TOO_BIG]);
}

#[test]
fn a_client_that_reads_no_replies_is_not_answered_further() {
    let mut handshake = client(3);
    let many = option_bytes(option::LIST, &[]).repeat(10_000);
    let mut out = Vec::new();
    let (consumed, _) = handshake.advance(&many, &Exports, &mut out).unwrap();
    assert!(consumed < many.len());
    assert!(out.len() < 2 * FULL_OUTPUT_BYTES, "{}", out.len());
}

proptest! {
    #[test]
    fn bytes_may_arrive_in_any_pieces(cuts in proptest::collection::vec(1usize..40, 1..20)) {
        let bytes = [
            &3u32.to_be_bytes()[..],
            &option_bytes(option::STRUCTURED_REPLY, &[]),
            &option_bytes(option::LIST, &[]),
            &option_bytes(option::GO, &named("disk", &[0, 0])),
        ]
        .concat();
        let mut whole = Vec::new();
        let all_at_once = Handshake::default().advance(&bytes, &Exports, &mut whole).unwrap();

        let (mut handshake, mut out) = (Handshake::default(), Vec::new());
        let (mut begin, mut end) = (0, 0);
        let mut cuts = cuts.iter().cycle();
        let last = loop {
            end = (end + cuts.next().unwrap()).min(bytes.len());
            let (consumed, step) = handshake.advance(&bytes[begin..end], &Exports, &mut out).unwrap();
            begin += consumed;
            if step != HandshakeStep::Continue {
                break step;
            }
        };
        prop_assert_eq!((begin, last), all_at_once);
        prop_assert_eq!(out, whole);
    }

    #[test]
    fn any_data_of_an_option_is_answered(option in 3u32..13, data in proptest::collection::vec(any::<u8>(), 0..64)) {
        let mut handshake = client(3);
        send(&mut handshake, option::EXTENDED_HEADERS, &[]);
        let (_, replies) = send(&mut handshake, option, &data);
        prop_assert!(!replies.is_empty());
    }
}
