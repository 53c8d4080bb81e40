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
fn replies_have_the_layout_of_the_specification() {
    let simple = transmission(ReplyStyle::Simple);
    let cookie = [0, 0, 0, 0, 0, 0, 0, 9];
    let done = [&[0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0][..], &cookie].concat();
    assert_eq!(simple.success_reply(9, 512).as_bytes(), done);
    assert_eq!(simple.read_reply(9, 512, 4096).as_bytes(), done);
    let failed = [&[0x67, 0x44, 0x66, 0x98, 0, 0, 0, 28][..], &cookie].concat();
    let error = |style: &Transmission| style.error_reply(9, 512, NbdErrno::NoSpc, "full");
    assert_eq!(error(&simple).as_bytes(), failed);

    let structured = transmission(ReplyStyle::Structured);
    let begin = [0x66, 0x8e, 0x33, 0xef, 0, 1];
    let done = [&begin[..], &[0, 0], &cookie, &[0; 4]].concat();
    assert_eq!(structured.success_reply(9, 512).as_bytes(), done);
    // No chunk of data.
    assert_eq!(structured.read_reply(9, 512, 0).as_bytes(), done);
    let offset = [0, 0, 0, 0, 0, 0, 2, 0];
    let read = [&begin[..], &[0, 1], &cookie, &[0, 0, 16, 8], &offset].concat();
    assert_eq!(structured.read_reply(9, 512, 4096).as_bytes(), read);
    let failed = [&begin[..], &[0x80, 1], &cookie, &[0, 0, 0, 10]].concat();
    let failed = [&failed[..], &[0, 0, 0, 28, 0, 4]].concat();
    assert_eq!(error(&structured).as_bytes(), failed);

    // They repeat the offset of the request.
    let extended = transmission(ReplyStyle::Extended);
    let begin = [0x6e, 0x8a, 0x27, 0x8c, 0, 1, 0, 1];
    let len = [0, 0, 0, 0, 0, 0, 16, 8];
    let read = [&begin[..], &cookie, &offset, &len, &offset].concat();
    assert_eq!(extended.read_reply(9, 512, 4096).as_bytes(), read);
}
