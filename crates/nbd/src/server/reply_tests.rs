//! Tests of replies against bytes as the specification defines them.

use super::*;

fn transmission(style: ReplyStyle) -> Transmission {
    Transmission {
        style,
        flags: 0,
        min_block_size: 1,
        contexts: Vec::new(),
    }
}

#[test]
fn simple_replies_have_the_layout_of_the_specification() {
    let simple = transmission(ReplyStyle::Simple);
    let expected = [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
    assert_eq!(simple.success_reply(9, 512).as_bytes(), expected);
    assert_eq!(simple.read_reply(9, 512, 4096).as_bytes(), expected);
    let failed = [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 28, 0, 0, 0, 0, 0, 0, 0, 9];
    let reply = simple.error_reply(9, 512, NbdErrno::NoSpc, "full");
    assert_eq!(reply.as_bytes(), failed);
}

#[test]
fn structured_replies_have_the_layout_of_the_specification() {
    let structured = transmission(ReplyStyle::Structured);
    let begin = [0x66, 0x8e, 0x33, 0xef, 0, 1];
    let cookie = [0, 0, 0, 0, 0, 0, 0, 9];
    let success = [&begin[..], &[0, 0], &cookie, &[0; 4]].concat();
    assert_eq!(structured.success_reply(9, 512).as_bytes(), success);
    let offset = [0, 0, 0, 0, 0, 0, 2, 0];
    let read = [&begin[..], &[0, 1], &cookie, &[0, 0, 16, 8], &offset].concat();
    assert_eq!(structured.read_reply(9, 512, 4096).as_bytes(), read);
    let error = [0, 0, 0, 28, 0, 4];
    let failed = [&begin[..], &[0x80, 1], &cookie, &[0, 0, 0, 10], &error].concat();
    let reply = structured.error_reply(9, 512, NbdErrno::NoSpc, "full");
    assert_eq!(reply.as_bytes(), failed);
}

#[test]
fn an_empty_read_has_no_chunk_of_data() {
    let structured = transmission(ReplyStyle::Structured);
    let (read, none) = (
        structured.read_reply(9, 512, 0),
        structured.success_reply(9, 512),
    );
    assert_eq!(read.as_bytes(), none.as_bytes());
}

#[test]
fn extended_replies_repeat_the_offset_of_the_request() {
    let extended = transmission(ReplyStyle::Extended);
    let header = ExtendedReply {
        magic: EXTENDED_REPLY_MAGIC,
        flags: reply_flag::DONE,
        chunk: chunk::OFFSET_DATA,
        cookie: 9,
        offset: 512,
        length: 4104,
    };
    let expected = [&header.encode()[..], &512u64.to_be_bytes()].concat();
    assert_eq!(extended.read_reply(9, 512, 4096).as_bytes(), expected);
}
