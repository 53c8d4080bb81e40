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

/// A request in the form of the connection, with cookie 5.
fn bytes(style: ReplyStyle, command: u16, flags: u16, (offset, length): (u64, u64)) -> Vec<u8> {
    let magic = match style {
        ReplyStyle::Extended => EXTENDED_REQUEST_MAGIC,
        _ => REQUEST_MAGIC,
    };
    let mut bytes = magic.to_be_bytes().to_vec();
    bytes.extend([flags, command].map(u16::to_be_bytes).concat());
    bytes.extend([5, offset].map(u64::to_be_bytes).concat());
    match style {
        ReplyStyle::Extended => bytes.extend(length.to_be_bytes()),
        _ => bytes.extend(u32::try_from(length).unwrap().to_be_bytes()),
    }
    bytes
}

fn parse(
    transmission: &Transmission,
    command: u16,
    flags: u16,
    range: (u64, u64),
) -> IncomingRequest {
    parse_with_size(transmission, command, flags, range, SIZE).unwrap()
}

fn parse_with_size(
    transmission: &Transmission,
    command: u16,
    flags: u16,
    range: (u64, u64),
    size: u64,
) -> Result<IncomingRequest, ProtocolError> {
    let bytes = bytes(transmission.style, command, flags, range);
    assert_eq!(bytes.len(), transmission.request_header_bytes());
    let parsed = transmission.parse_request(&bytes, size)?.unwrap();
    assert_eq!((parsed.cookie, parsed.offset), (5, range.0));
    Ok(parsed)
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

/// A payload that is not written is skipped.
#[test]
fn requests_that_the_export_or_the_protocol_does_not_permit_are_refused() {
    use NbdErrno::{Inval, NoSpc, Perm};
    use command::{BLOCK_STATUS, CACHE, FLUSH, READ, RESIZE, TRIM, WRITE, WRITE_ZEROES};
    use command_flag::{DF, FAST_ZERO, NO_HOLE, PAYLOAD_LEN, REQ_ONE};
    let simple = &transmission(ReplyStyle::Simple, 0);
    let read_only = &transmission(ReplyStyle::Structured, transmission_flag::READ_ONLY);
    let extended = &transmission(ReplyStyle::Extended, 0);
    let with_large_blocks = &Transmission {
        min_block_size: 512,
        ..simple.clone()
    };
    let without_context = &Transmission {
        contexts: Vec::new(),
        ..read_only.clone()
    };
    for (transmission, command, flags, range, expected) in [
        (read_only, WRITE, 0, (0, 512), Some(Perm)),
        (read_only, TRIM, 0, (0, 512), Some(Perm)),
        (read_only, WRITE_ZEROES, 0, (0, 512), Some(Perm)),
        (read_only, READ, 0, (0, 512), None),
        (read_only, CACHE, 0, (0, 512), None),
        (read_only, FLUSH, 0, (0, 0), None),
        (read_only, BLOCK_STATUS, 0, (0, 512), None),
        (without_context, BLOCK_STATUS, 0, (0, 512), Some(Inval)),
        (extended, BLOCK_STATUS, PAYLOAD_LEN, (0, 12), Some(Inval)),
        (simple, WRITE, 0, (SIZE, 512), Some(NoSpc)),
        (simple, READ, DF, (0, 0), Some(Inval)),
        (simple, READ, NO_HOLE, (0, 0), Some(Inval)),
        (simple, WRITE, FAST_ZERO, (0, 0), Some(Inval)),
        (simple, WRITE, PAYLOAD_LEN, (0, 0), Some(Inval)),
        (simple, TRIM, 1 << 15, (0, 0), Some(Inval)),
        (simple, CACHE, REQ_ONE, (0, 0), Some(Inval)),
        (simple, RESIZE, 0, (0, 0), Some(Inval)),
        (simple, 9, 0, (0, 0), Some(Inval)),
        (simple, 0xffff, 0, (0, 0), Some(Inval)),
        (with_large_blocks, READ, 0, (512, 1024), None),
        (with_large_blocks, READ, 0, (1, 512), Some(Inval)),
        (with_large_blocks, READ, 0, (512, 513), Some(Inval)),
    ] {
        let parsed = parse(transmission, command, flags, range);
        let has_payload = command == WRITE || flags == PAYLOAD_LEN;
        let payload = if has_payload { range.1 } else { 0 };
        assert_eq!(u64::from(parsed.payload), payload, "{command} {flags:#x}");
        assert_eq!(errno(parsed), expected, "{command} {flags:#x} {range:?}");
    }
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
                let errno = errno(parse(&transmission, command, flags, range));
                assert_eq!(errno, Some(expected), "{style:?} {command} {range:?}");
            }
        }
        let last = parse(&transmission, command::READ, 0, (SIZE - 512, 512));
        assert_eq!(errno(last), None);
    }
}

#[test]
fn a_large_read_is_refused_and_a_large_payload_ends_the_connection() {
    let large = u64::from(MAX_PAYLOAD_BYTES) + 1;
    for style in STYLES {
        let transmission = transmission(style, 0);
        let parse =
            |command, flags| parse_with_size(&transmission, command, flags, (0, large), 1 << 40);
        let (flags, too_large) = match style {
            ReplyStyle::Simple => (0, NbdErrno::Inval),
            ReplyStyle::Structured => (0, NbdErrno::Overflow),
            ReplyStyle::Extended => (command_flag::PAYLOAD_LEN, NbdErrno::Overflow),
        };
        assert_eq!(errno(parse(command::READ, 0).unwrap()), Some(too_large));
        let written = parse(command::WRITE, flags);
        assert_eq!(written, Err(ProtocolError::PayloadTooLarge(large)));
        // Without a payload, the length is no matter.
        assert_eq!(errno(parse(command::TRIM, 0).unwrap()), None);
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
