//! Tests of the handshake against bytes as the specification defines them.

use proptest::prelude::*;

use super::*;
use crate::server::BlockSizes;
use crate::wire::{OPTION_REPLY_MAGIC, OptionReplyHeader};

struct Exports;

impl ExportDirectory for Exports {
    fn list(&self) -> Vec<ExportDescription> {
        vec![ExportDescription {
            number: ExportNumber(7),
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
    after_flags(Handshake::default(), flags)
}

/// A client of a server that requires TLS.
fn client_before_tls() -> Handshake {
    after_flags(Handshake::requiring_tls(), 3)
}

fn after_flags(mut handshake: Handshake, flags: u32) -> Handshake {
    let mut out = Vec::new();
    let result = handshake.advance(&flags.to_be_bytes(), &Exports, &mut out);
    assert_eq!(result, Ok((4, HandshakeStep::Continue)));
    assert!(out.is_empty());
    handshake
}

/// An option of a client.
fn option_bytes(option: u32, data: &[u8]) -> Vec<u8> {
    let len = u32::try_from(data.len()).unwrap().to_be_bytes();
    [b"IHAVEOPT", &option.to_be_bytes()[..], &len, data].concat()
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
fn go_describes_the_export_and_enters_transmission_and_info_does_not() {
    assert_eq!(&Handshake::greeting(), b"NBDMAGICIHAVEOPT\0\x03");
    let mut handshake = client(3);
    let (step, replies) = send(&mut handshake, option::INFO, &named("disk", &[0, 1, 0, 2]));
    assert_eq!(step, HandshakeStep::Continue);
    assert_eq!(replies[0], (3, b"\0\x02a disk".to_vec()));
    assert_eq!(kinds(&replies), [3, 3, 3, 1]);
    let infos = named("disk", &[0, 2, 0, 1, 0, 3]);
    let (step, replies) = send(&mut handshake, option::GO, &infos);
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
    assert_eq!(negotiated.export_number, ExportNumber(7));
    assert_eq!(negotiated.transmission.style, ReplyStyle::Simple);
}

#[test]
fn an_old_client_gets_zeroes_unless_it_declines_them() {
    let enter = option_bytes(option::EXPORT_NAME, b"disk");
    for (flags, bytes) in [(1, 134), (3, 10), (0, 134)] {
        let mut out = Vec::new();
        let advanced = client(flags).advance(&enter, &Exports, &mut out);
        let (_, step) = advanced.unwrap();
        assert!(matches!(step, HandshakeStep::Transmission(_)));
        assert_eq!(out.len(), bytes, "flags {flags}");
        assert_eq!(out[..10], [0, 0, 0, 0, 0, 0x10, 0, 0, 0, 5]);
    }
}

#[test]
fn an_option_that_is_refused_does_not_end_the_session() {
    use option_reply::{ACK, ERR_EXT_HEADER_REQD, ERR_INVALID, ERR_POLICY, ERR_UNKNOWN, ERR_UNSUP};
    let mut handshake = client(3);
    let unknown = named("other", &[0, 0]);
    let context = named("disk", &[&[0, 0, 0, 1][..], &named("x:", &[])].concat());
    for (option, data, expected) in [
        (option::GO, &unknown[..], ERR_UNKNOWN),
        (option::INFO, &unknown, ERR_UNKNOWN),
        (option::SET_META_CONTEXT, &context, ERR_INVALID),
        (option::LIST, b"x", ERR_INVALID),
        (option::STARTTLS, b"x", ERR_INVALID),
        (option::STARTTLS, b"", ERR_POLICY),
        (option::STRUCTURED_REPLY, b"x", ERR_INVALID),
        (option::EXTENDED_HEADERS, b"x", ERR_INVALID),
        (99, b"whatever", ERR_UNSUP),
        (option::EXTENDED_HEADERS, b"", ACK),
        (option::STRUCTURED_REPLY, b"", ERR_EXT_HEADER_REQD),
    ] {
        let (step, replies) = send(&mut handshake, option, data);
        let expected = (HandshakeStep::Continue, vec![expected]);
        assert_eq!((step, kinds(&replies)), expected, "option {option}");
    }
    let (step, replies) = send(&mut handshake, option::ABORT, b"ignored");
    assert_eq!((step, kinds(&replies)), (HandshakeStep::End, vec![1]));
}

#[test]
fn exports_are_listed_with_their_descriptions() {
    let (_, replies) = send(&mut client(3), option::LIST, &[]);
    assert_eq!(replies[0], (2, b"\0\0\0\x04diska disk".to_vec()));
    assert_eq!(kinds(&replies), [2, 1]);
}

#[test]
fn contexts_are_kept_for_their_export() {
    let mut handshake = client(3);
    send(&mut handshake, option::STRUCTURED_REPLY, &[]);
    let query = [&[0, 0, 0, 1][..], &named("base:allocation", &[])].concat();
    let query = named("disk", &query);
    let (_, replies) = send(&mut handshake, option::SET_META_CONTEXT, &query);
    assert_eq!(replies[0], (4, b"\0\0\0\0base:allocation".to_vec()));
    let all = named("disk", &[0; 4]);
    let (_, listed) = send(&mut handshake, option::LIST_META_CONTEXT, &all);
    assert_eq!(kinds(&listed), [4, 4, 1]);
    let without_number = b"\0\0\0\0qemu:dirty-bitmap:b";
    assert_eq!(listed[1].1, without_number, "a list chooses nothing");
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
fn nothing_but_tls_is_answered_where_it_is_required() {
    let mut handshake = client_before_tls();
    let others = (2..20).filter(|option| ![option::ABORT, option::STARTTLS].contains(option));
    for option in others {
        for data in [vec![], vec![0; 70 << 10]] {
            let (step, replies) = send(&mut handshake, option, &data);
            assert_eq!(step, HandshakeStep::Continue);
            assert_eq!(kinds(&replies), [option_reply::ERR_TLS_REQD], "{option}");
        }
    }
    let (step, replies) = send(&mut handshake, option::STARTTLS, &[]);
    let begins = (HandshakeStep::StartTls, vec![option_reply::ACK]);
    assert_eq!((step, kinds(&replies)), begins);
    handshake.set_encrypted();
    let (_, replies) = send(&mut handshake, option::STARTTLS, &[]);
    assert_eq!(kinds(&replies), [option_reply::ERR_INVALID]);
    let (_, replies) = send(&mut handshake, option::LIST, &[]);
    assert_eq!(kinds(&replies), [option_reply::SERVER, option_reply::ACK]);
    let (step, _) = send(&mut client_before_tls(), option::ABORT, &[]);
    assert_eq!(step, HandshakeStep::End);
}

#[test]
fn what_comes_unencrypted_with_the_request_for_tls_ends_the_connection() {
    let [start_tls, list] = [option::STARTTLS, option::LIST].map(|it| option_bytes(it, &[]));
    let bytes = [start_tls, list].concat();
    let result = client_before_tls().advance(&bytes, &Exports, &mut Vec::new());
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
    let expected = HandshakeError::OptionWithoutFixedNewstyle(option::LIST);
    assert_eq!(not_fixed, Err(expected));
    assert!(out.is_empty());
    // It has no form for extended headers, and none for a refusal.
    let by_name = option_bytes(option::EXPORT_NAME, b"disk");
    let mut extended = client(3);
    send(&mut extended, option::EXTENDED_HEADERS, &[]);
    for mut handshake in [extended, client_before_tls()] {
        let result = handshake.advance(&by_name, &Exports, &mut out);
        assert!(matches!(result, Err(HandshakeError::ExportName(_))));
    }
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

#[test]
fn advance_handles_a_limited_number_of_options_and_continues_at_the_next_call() {
    let mut handshake = client(3);
    let options: Vec<u8> = (0..40).flat_map(|it| option_bytes(99, &[it])).collect();
    let (mut begin, mut out) = (0, Vec::new());
    for handled in [MAX_OPTIONS_PER_CALL, 2 * MAX_OPTIONS_PER_CALL, 40] {
        let (consumed, _) = handshake
            .advance(&options[begin..], &Exports, &mut out)
            .unwrap();
        begin += consumed;
        assert_eq!(replies(&out, 99).len(), handled);
    }
    assert_eq!(begin, options.len());
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

}
