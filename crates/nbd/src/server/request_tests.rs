//! Tests of the checks of requests.

use proptest::prelude::*;

use super::*;
use crate::server::ChosenContext;

const SIZE: u64 = 1 << 20;

fn transmission(style: ReplyStyle, flags: u16) -> Transmission {
    Transmission {
        style,
        flags,
        min_block_size: 1,
        contexts: vec![ChosenContext {
            number: 0,
            name: "base:allocation".into(),
        }],
    }
}

/// A request in the form of the connection.
fn bytes(style: ReplyStyle, command: u16, flags: u16, (offset, length): (u64, u64)) -> Vec<u8> {
    let cookie = 5;
    if style == ReplyStyle::Extended {
        let magic = EXTENDED_REQUEST_MAGIC;
        let request = ExtendedRequest {
            magic,
            flags,
            command,
            cookie,
            offset,
            length,
        };
        return request.encode().to_vec();
    }
    let request = Request {
        magic: REQUEST_MAGIC,
        flags,
        command,
        cookie,
        offset,
        length: length.try_into().unwrap(),
    };
    request.encode().to_vec()
}

fn parse(
    transmission: &Transmission,
    command: u16,
    flags: u16,
    range: (u64, u64),
) -> IncomingRequest {
    let bytes = bytes(transmission.style, command, flags, range);
    assert_eq!(bytes.len(), transmission.request_header_bytes());
    let parsed = transmission.parse_request(&bytes, SIZE).unwrap().unwrap();
    assert_eq!((parsed.cookie, parsed.offset), (5, range.0));
    parsed
}

fn errno(request: IncomingRequest) -> Option<NbdErrno> {
    match request.kind {
        RequestKind::Refused(refusal) => Some(refusal.errno),
        _ => None,
    }
}

const STYLES: [ReplyStyle; 3] = [
    ReplyStyle::Simple,
    ReplyStyle::Structured,
    ReplyStyle::Extended,
];

#[test]
fn a_write_has_the_payload_of_its_length() {
    for (style, flag) in [
        (ReplyStyle::Structured, 0),
        (ReplyStyle::Extended, command_flag::PAYLOAD_LEN),
        // As QEMU does.
        (ReplyStyle::Extended, 0),
    ] {
        let flags = command_flag::FUA | flag;
        let parsed = parse(&transmission(style, 0), command::WRITE, flags, (512, 4096));
        assert_eq!(parsed.payload, 4096);
        let expected = RequestKind::Valid {
            operation: Operation::Write,
            len: 4096,
            fua: true,
        };
        assert_eq!(parsed.kind, expected);
    }
}

#[test]
fn a_refused_write_still_has_its_payload() {
    let read_only = transmission(ReplyStyle::Simple, transmission_flag::READ_ONLY);
    let parsed = parse(&read_only, command::WRITE, 0, (0, 512));
    assert_eq!((errno(parsed), parsed.payload), (Some(NbdErrno::Perm), 512));
    let beyond = parse(
        &transmission(ReplyStyle::Simple, 0),
        command::WRITE,
        0,
        (SIZE, 512),
    );
    assert_eq!(
        (errno(beyond), beyond.payload),
        (Some(NbdErrno::NoSpc), 512)
    );
}

#[test]
fn an_extended_payload_that_no_command_takes_is_skipped() {
    let extended = transmission(ReplyStyle::Extended, 0);
    let parsed = parse(
        &extended,
        command::BLOCK_STATUS,
        command_flag::PAYLOAD_LEN,
        (0, 12),
    );
    assert_eq!((errno(parsed), parsed.payload), (Some(NbdErrno::Inval), 12));
}

#[test]
fn changes_of_a_read_only_export_are_not_permitted() {
    let read_only = transmission(ReplyStyle::Structured, transmission_flag::READ_ONLY);
    for command in [command::WRITE, command::TRIM, command::WRITE_ZEROES] {
        let parsed = parse(&read_only, command, 0, (0, 512));
        assert_eq!(errno(parsed), Some(NbdErrno::Perm), "command {command}");
    }
    for command in [command::READ, command::CACHE, command::BLOCK_STATUS] {
        assert_eq!(errno(parse(&read_only, command, 0, (0, 512))), None);
    }
    assert_eq!(errno(parse(&read_only, command::FLUSH, 0, (0, 0))), None);
}

#[test]
fn a_range_beyond_the_end_is_refused_also_where_it_overflows() {
    for style in STYLES {
        let transmission = transmission(style, 0);
        let payload = match style {
            ReplyStyle::Extended => command_flag::PAYLOAD_LEN,
            _ => 0,
        };
        for range in [
            (SIZE - 511, 512),
            (SIZE + 1, 0),
            (u64::MAX, 1),
            (u64::MAX - 511, 512),
        ] {
            for (command, flags, expected) in [
                (command::READ, 0, NbdErrno::Inval),
                (command::WRITE, payload, NbdErrno::NoSpc),
                (command::TRIM, 0, NbdErrno::Inval),
                (command::WRITE_ZEROES, 0, NbdErrno::NoSpc),
                (command::CACHE, 0, NbdErrno::Inval),
            ] {
                let parsed = parse(&transmission, command, flags, range);
                assert_eq!(
                    errno(parsed),
                    Some(expected),
                    "{style:?} {command} {range:?}"
                );
            }
        }
        assert_eq!(
            errno(parse(&transmission, command::READ, 0, (SIZE - 512, 512))),
            None
        );
    }
}

#[test]
fn a_size_that_shrinks_counts_for_the_next_request() {
    let bytes = bytes(ReplyStyle::Simple, command::READ, 0, (4096, 512));
    let parsed = transmission(ReplyStyle::Simple, 0).parse_request(&bytes, 4096);
    assert_eq!(errno(parsed.unwrap().unwrap()), Some(NbdErrno::Inval));
}

#[test]
fn flags_that_a_command_does_not_have_are_refused() {
    let transmission = transmission(ReplyStyle::Simple, 0);
    for (command, flags) in [
        (command::READ, command_flag::DF),
        (command::READ, command_flag::NO_HOLE),
        (command::WRITE, command_flag::FAST_ZERO),
        (command::WRITE, command_flag::PAYLOAD_LEN),
        (command::TRIM, 1 << 15),
        (command::CACHE, command_flag::REQ_ONE),
    ] {
        let parsed = parse(&transmission, command, flags, (0, 0));
        assert_eq!(errno(parsed), Some(NbdErrno::Inval), "{command} {flags:#x}");
    }
}

#[test]
fn unknown_commands_and_resizes_are_refused() {
    let transmission = transmission(ReplyStyle::Structured, 0);
    for command in [command::RESIZE, 9, 0xffff] {
        let parsed = parse(&transmission, command, 0, (0, 0));
        assert_eq!(errno(parsed), Some(NbdErrno::Inval), "{command}");
    }
}

#[test]
fn a_large_read_is_refused_and_a_large_payload_ends_the_connection() {
    let large = u64::from(MAX_PAYLOAD_BYTES) + 1;
    let size = 1 << 40;
    for style in STYLES {
        let transmission = transmission(style, 0);
        let read = bytes(style, command::READ, 0, (0, large));
        let parsed = transmission.parse_request(&read, size).unwrap().unwrap();
        let expected = match style {
            ReplyStyle::Simple => NbdErrno::Inval,
            _ => NbdErrno::Overflow,
        };
        assert_eq!(errno(parsed), Some(expected));
        let flags = match style {
            ReplyStyle::Extended => command_flag::PAYLOAD_LEN,
            _ => 0,
        };
        let write = bytes(style, command::WRITE, flags, (0, large));
        let parsed = transmission.parse_request(&write, size);
        assert_eq!(parsed, Err(ProtocolError::PayloadTooLarge(large)));
        // Without a payload, the length is no matter.
        let trim = bytes(style, command::TRIM, 0, (0, large));
        assert_eq!(
            errno(transmission.parse_request(&trim, size).unwrap().unwrap()),
            None
        );
    }
}

#[test]
fn block_status_needs_a_context() {
    let mut transmission = transmission(ReplyStyle::Structured, 0);
    assert_eq!(
        errno(parse(&transmission, command::BLOCK_STATUS, 0, (0, 512))),
        None
    );
    transmission.contexts.clear();
    let parsed = parse(&transmission, command::BLOCK_STATUS, 0, (0, 512));
    assert_eq!(errno(parsed), Some(NbdErrno::Inval));
}

#[test]
fn ranges_are_aligned_to_the_minimum_block_size() {
    let transmission = Transmission {
        min_block_size: 512,
        ..transmission(ReplyStyle::Structured, 0)
    };
    for (range, is_valid) in [((512, 1024), true), ((1, 512), false), ((512, 513), false)] {
        let parsed = parse(&transmission, command::READ, 0, range);
        assert_eq!(errno(parsed).is_none(), is_valid, "{range:?}");
    }
}

#[test]
fn other_bytes_end_the_connection() {
    for style in STYLES {
        let parsed = transmission(style, 0).parse_request(&[0x47; 32], SIZE);
        assert_eq!(parsed, Err(ProtocolError::Magic(0x4747_4747)));
    }
    // A compact request where extended ones were negotiated.
    let mut compact = bytes(ReplyStyle::Simple, command::READ, 0, (0, 512));
    compact.extend([0; 4]);
    let parsed = transmission(ReplyStyle::Extended, 0).parse_request(&compact, SIZE);
    assert_eq!(parsed, Err(ProtocolError::Magic(REQUEST_MAGIC)));
}

proptest! {
    #[test]
    fn a_valid_request_lies_within_the_export(
        style in proptest::sample::select(&STYLES),
        mut request in proptest::collection::vec(any::<u8>(), 32),
        command in 0u16..9,
    ) {
        let magic = match style {
            ReplyStyle::Extended => EXTENDED_REQUEST_MAGIC,
            _ => REQUEST_MAGIC,
        };
        request[..4].copy_from_slice(&magic.to_be_bytes());
        request[6..8].copy_from_slice(&command.to_be_bytes());
        if let Ok(parsed) = transmission(style, 0).parse_request(&request, SIZE) {
            let parsed = parsed.expect("32 bytes are a whole header");
            if let RequestKind::Valid { len, operation, .. } = parsed.kind {
                prop_assert!(parsed.offset.checked_add(len).is_some_and(|end| end <= SIZE));
                if operation == Operation::Write {
                    prop_assert_eq!(u64::from(parsed.payload), len);
                } else {
                    prop_assert_eq!(parsed.payload, 0);
                }
            }
        }
    }
}
